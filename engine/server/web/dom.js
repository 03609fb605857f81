// Building elements. Text only ever becomes text: nothing in these pages parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element; `children` are nodes or text, `attributes` starting with "on" are listeners. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for a drawing. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** The element of that id. */
export const by = (id) => document.getElementById(id);

/** `1 token`, `2 tokens`. */
export const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
