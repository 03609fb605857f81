// A small part of Markdown as elements: paragraphs, headings, lists, quotes, tables, code, emphasis
// and links. Nodes are made one by one and text is set as text, so a reply cannot bring HTML along.

import { el } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const BULLET = /^( *)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const DIVIDER = /^ *\|?(?: *:?-+:? *\|)+ *(?::?-+:? *)?$/;
// Code first: what it holds is no markup. Then the stronger emphasis before the weaker.
const INLINE =
  /(`+)([^`](?:.*?[^`])?)\1(?!`)|\*\*(?=\S)(.+?\S?)\*\*|(?<![\w*])[*_](?=\S)([^*_]+?)(?<=\S)[*_](?![\w*])|~~(?=\S)(.+?)~~|\[([^\]\n]+)\]\(([^()\s]+)\)|(https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]])/s;
const DEEPEST = 8;

/** The nodes of a text. */
export function render(text) {
  return blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const nodes = [];
  for (let at = 0; at < lines.length; ) {
    const [node, next] = depth < DEEPEST ? block(lines, at, depth) : plain(lines, at);
    if (node) nodes.push(node);
    at = next;
  }
  return nodes;
}

const plain = (lines, at) => [el("p", {}, lines.slice(at).join("\n")), lines.length];

function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  if (FENCE.test(line)) return fenced(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return [el(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])), at + 1];
  if (RULE.test(line)) return [el("hr"), at + 1];
  if (QUOTE.test(line)) return quote(lines, at, depth);
  if (BULLET.test(line)) return list(lines, at, depth);
  if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) return table(lines, at);
  return paragraph(lines, at);
}

function fenced(lines, at) {
  const [, fence, language] = FENCE.exec(lines[at]);
  const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const code = el("code", {}, lines.slice(at + 1, end).join("\n"));
  const copy = el("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    copy.textContent = "Copied";
  });
  return [el("figure", { class: "code" }, el("figcaption", {}, language || "code", copy), el("pre", { tabindex: 0 }, code)), end + 1];
}

function quote(lines, at, depth) {
  const inside = [];
  let match;
  while (at < lines.length && (match = QUOTE.exec(lines[at]))) inside.push(match[1]), (at += 1);
  return [el("blockquote", {}, ...blocks(inside, depth + 1)), at];
}

function list(lines, at, depth) {
  const [, , number] = BULLET.exec(lines[at]);
  const indent = BULLET.exec(lines[at])[1].length;
  const node = number ? el("ol", { start: number }) : el("ul");
  while (at < lines.length) {
    const match = BULLET.exec(lines[at]);
    if (!match || match[1].length !== indent || Boolean(match[2]) !== Boolean(number)) break;
    const inside = [match[3]];
    for (at += 1; at < lines.length && belongs(lines, at, indent); at += 1) {
      inside.push(lines[at].slice(Math.min(indent + 2, lines[at].search(/\S|$/))));
    }
    node.append(el("li", {}, ...loose(blocks(inside, depth + 1))));
  }
  return [node, at];
}

/** Whether a line still belongs to an item: it is indented deeper, or blank before such a line. */
function belongs(lines, at, indent) {
  const depth = (line) => line.search(/\S|$/);
  if (lines[at].trim()) return depth(lines[at]) > indent;
  const next = lines[at + 1] ?? "";
  return Boolean(next.trim()) && depth(next) > indent;
}

/** An item of one paragraph needs no paragraph. */
function loose(nodes) {
  const [first, ...others] = nodes;
  return first?.tagName === "P" ? [...first.childNodes, ...others] : nodes;
}

function table(lines, at) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());
  const head = cells(lines[at]);
  const body = el("tbody");
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); end += 1) {
    const row = cells(lines[end]).slice(0, head.length);
    body.append(el("tr", {}, ...row.map((c) => el("td", {}, ...inline(c)))));
  }
  const top = el("thead", {}, el("tr", {}, ...head.map((c) => el("th", { scope: "col" }, ...inline(c)))));
  return [el("div", { class: "wide" }, el("table", {}, top, body)), end];
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !starts(lines, end)) end += 1;
  return [el("p", {}, ...inline(lines.slice(at, end).join("\n"))), end];
}

const starts = (lines, at) =>
  [FENCE, HEADING, QUOTE, BULLET, RULE].some((pattern) => pattern.test(lines[at]));

function inline(text, depth = 0) {
  const nodes = [];
  let match;
  while (depth < DEEPEST && (match = INLINE.exec(text))) {
    if (match.index) nodes.push(text.slice(0, match.index));
    nodes.push(marked(match, depth + 1));
    text = text.slice(match.index + match[0].length);
  }
  if (text) nodes.push(text);
  return nodes;
}

function marked([whole, , code, strong, weak, struck, label, target, bare], depth) {
  if (code !== undefined) return el("code", {}, code.trim());
  if (strong !== undefined) return el("strong", {}, ...inline(strong, depth));
  if (weak !== undefined) return el("em", {}, ...inline(weak, depth));
  if (struck !== undefined) return el("s", {}, ...inline(struck, depth));
  if (bare !== undefined) return link(bare, [bare]) ?? whole;
  return link(target, inline(label, depth)) ?? whole;
}

/** A link to another site; null for any address that is not one, such as javascript:. */
function link(target, label) {
  let address;
  try {
    address = new URL(target);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(address.protocol)) return null;
  return el("a", { href: address.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...label);
}
