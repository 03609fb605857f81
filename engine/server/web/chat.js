// The chat page: what is asked, what comes back, and the controls around it.

import { chat, health, key } from "./api.js";
import { by, count, el } from "./dom.js";
import { Message } from "./message.js";
import * as store from "./store.js";

const PAINT_MS = 60; // a reply is drawn anew at most so often
const LOADING_MS = 1500;
const phone = matchMedia("(max-width: 48rem)");

let current = store.all()[0] ?? store.fresh();
let running = null; // the AbortController of the answer that is being written

// ---------------------------------------------------------------- conversations

function open(one) {
  if (running) stop();
  current = one;
  by("title").textContent = store.title(one);
  by("think").checked = Boolean(one.settings.thinking);
  by("log").replaceChildren(...one.messages.map((message) => shown(message).node));
  if (!one.messages.length) by("log").append(el("p", { class: "empty note" }, "Nothing said yet."));
  say("");
  listAll();
  drawer(false);
  scroll(true);
}

function listAll() {
  const items = store.all().map((one) => {
    const attributes = { type: "button", "aria-current": one.id === current.id && "true" };
    const button = el("button", attributes, store.title(one));
    button.addEventListener("click", () => (open(one), by("ask").focus()));
    return el("li", {}, button);
  });
  by("list").replaceChildren(...items);
}

function keep() {
  try {
    store.keep(current);
  } catch (error) {
    say(error.message, true);
  }
  by("title").textContent = store.title(current);
  listAll();
}

/** A message on the page; a tool call in it can be answered by hand. */
function shown(message) {
  return new Message(message, (call, result) => {
    current.messages.push({ role: "tool", tool_call_id: call.id, content: result });
    by("log").append(shown(current.messages.at(-1)).node);
    keep();
    const asked = new Set(message.tool_calls.map((one) => one.id));
    for (const one of current.messages) asked.delete(one.tool_call_id);
    if (!asked.size) answer();
  });
}

// ---------------------------------------------------------------- asking and answering

function ask() {
  const text = by("ask").value.trim();
  if (!text || running) return;
  by("ask").value = "";
  grow();
  by("log").querySelector(".empty")?.remove();
  current.messages.push({ role: "user", content: text });
  by("log").append(shown(current.messages.at(-1)).node);
  keep();
  answer();
}

async function answer() {
  const conversation = current;
  const message = { role: "assistant", content: "", reasoning: "" };
  const body = request(conversation);
  conversation.messages.push(message);
  const place = shown(message);
  by("log").append(place.node);
  scroll(true);
  running = new AbortController();
  busy(true);
  let painted = 0;
  try {
    for await (const chunk of chat(body, running.signal)) {
      place.hear(chunk);
      if (performance.now() - painted < PAINT_MS) continue;
      painted = performance.now();
      draw(place);
    }
    say("");
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else message.error = error.message;
  }
  running = null;
  place.end(() => again(conversation));
  draw(place);
  busy(false);
  if (conversation === current) keep();
  else store.keep(conversation);
  announce(message);
}

function draw(place) {
  const low = atEnd();
  place.draw();
  if (low) scroll(true);
}

/** Ask once more for an answer that failed. */
function again(conversation) {
  if (running || conversation !== current) return;
  conversation.messages.pop();
  by("log").lastElementChild.remove();
  answer();
}

function request({ messages, settings }) {
  const body = { messages: messages.filter(worth).map(spoken) };
  if (settings.system) body.messages.unshift({ role: "system", content: settings.system });
  body.thinking = { type: settings.thinking ? "enabled" : "disabled" };
  if (settings.thinking && settings.effort) body.reasoning_effort = settings.effort;
  if (settings.temperature !== undefined) body.temperature = settings.temperature;
  if (settings.limit) body.max_tokens = settings.limit;
  if (settings.tools?.length) body.tools = settings.tools;
  return body;
}

/** An answer of which nothing came is no part of what was said. */
const worth = (message) =>
  message.role !== "assistant" || message.content || message.reasoning || message.tool_calls;

function spoken(message) {
  const { role, content, reasoning, tool_calls: calls, tool_call_id: id } = message;
  if (role === "tool") return { role, tool_call_id: id, content };
  if (role !== "assistant") return { role, content };
  const said = { role, content: content || (calls ? null : "") };
  if (reasoning) said.reasoning_content = reasoning;
  if (calls) said.tool_calls = calls;
  return said;
}

function stop() {
  running?.abort();
}

// ---------------------------------------------------------------- the page around it

function say(text, bad = false) {
  by("status").textContent = text;
  by("status").classList.toggle("bad", bad);
}

function announce({ error, stopped, stats }) {
  if (error) return say(error, true);
  const tokens = stats?.predicted_n ? `, ${count(stats.predicted_n, "token")}` : "";
  return say(stopped ? `Stopped${tokens}.` : `Answered${tokens}.`);
}

function busy(on) {
  by("send").hidden = on;
  by("stop").hidden = !on;
  by("log").setAttribute("aria-busy", String(on));
  if (on) say("Answering …");
  else if (document.activeElement === document.body) by("ask").focus();
}

const atEnd = () => {
  const log = by("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
};

function scroll(down) {
  if (down) by("log").scrollTop = by("log").scrollHeight;
}

function grow() {
  const field = by("ask");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

function drawer(open) {
  document.body.classList.toggle("drawn", open);
  by("shade").hidden = !open;
  by("menu").setAttribute("aria-expanded", String(open));
  by("side").inert = phone.matches && !open;
}

async function introduce() {
  try {
    const told = await health();
    if (told.status === "ok") {
      const decision = told.decision === null ? "" : ` · decision D${String(told.decision).replace(/^D/, "")}`;
      by("served").textContent = `${told.model}${decision} · context ${told.context_length}`;
      return;
    }
    by("served").textContent = told.message ?? `The model is ${told.status ?? "not ready"} …`;
  } catch (error) {
    by("served").textContent = error.message;
  }
  setTimeout(introduce, LOADING_MS);
}

// ---------------------------------------------------------------- settings

function adjust() {
  const { system, effort, temperature, limit, tools } = current.settings;
  by("system").value = system ?? "";
  by("effort").value = effort ?? "";
  by("temperature").value = temperature ?? "";
  by("limit").value = limit ?? "";
  by("tools").value = tools?.length ? JSON.stringify(tools, null, 1) : "";
  by("key").value = key.get();
  by("settings-error").textContent = "";
  by("settings").showModal();
}

/** Take the form's values; false, with a sentence beside them, where one makes no sense. */
function adjusted() {
  let tools = [];
  try {
    tools = JSON.parse(by("tools").value.trim() || "[]");
    if (!Array.isArray(tools)) throw new Error();
  } catch {
    by("settings-error").textContent = "The tools must be a JSON list.";
    by("tools").focus();
    return false;
  }
  const number = (id) => (by(id).value === "" ? undefined : Number(by(id).value));
  Object.assign(current.settings, {
    system: by("system").value.trim(), effort: by("effort").value, tools,
    temperature: number("temperature"), limit: number("limit"),
  });
  key.set(by("key").value.trim());
  if (current.messages.length) keep();
  return true;
}

function remove() {
  if (!confirm("Delete this conversation? It is kept nowhere else.")) return;
  store.drop(current);
  by("settings").close();
  open(store.fresh());
}

// ---------------------------------------------------------------- wiring

by("composer").addEventListener("submit", (event) => (event.preventDefault(), ask()));
by("ask").addEventListener("input", grow);
by("ask").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
by("stop").addEventListener("click", stop);
by("new").addEventListener("click", () => (open(store.fresh()), by("ask").focus()));
by("menu").addEventListener("click", () => {
  drawer(!document.body.classList.contains("drawn"));
  if (document.body.classList.contains("drawn")) by("new").focus();
});
by("shade").addEventListener("click", () => drawer(false));
by("adjust").addEventListener("click", adjust);
by("settings-form").addEventListener("submit", (event) => adjusted() || event.preventDefault());
by("remove").addEventListener("click", remove);
by("think").addEventListener("change", () => {
  current.settings.thinking = by("think").checked;
  if (current.messages.length) keep();
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || by("settings").open) return;
  if (document.body.classList.contains("drawn")) {
    drawer(false);
    by("menu").focus();
  } else stop();
});
phone.addEventListener("change", () => drawer(false));
store.watch(listAll);

open(current);
by("ask").focus();
introduce();
