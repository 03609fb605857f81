// Conversations, kept by the browser alone: one entry each, so that two tabs do not overwrite
// each other's.

const PREFIX = "flywheel.chat.";
const TITLE_LENGTH = 60;

/** A conversation without a word in it. */
export function fresh() {
  const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
  return { id, changed: Date.now(), messages: [], settings: {} };
}

/** Every conversation that was kept, the newest first. */
export function all() {
  const found = Object.keys(localStorage)
    .filter((name) => name.startsWith(PREFIX))
    .map((name) => read(name))
    .filter((one) => one !== null);
  return found.sort((a, b) => b.changed - a.changed);
}

function read(name) {
  try {
    const one = JSON.parse(localStorage.getItem(name));
    const whole = one && typeof one.id === "string" && Array.isArray(one.messages);
    return whole ? { changed: 0, settings: {}, ...one } : null;
  } catch {
    return null;
  }
}

/** Keep a conversation; throws an Error with a sentence when the browser has no room. */
export function keep(one) {
  one.changed = Date.now();
  try {
    localStorage.setItem(PREFIX + one.id, JSON.stringify(one));
  } catch {
    throw new Error("The browser has no room for this conversation; delete older ones.");
  }
}

/** Forget a conversation. */
export const drop = (one) => localStorage.removeItem(PREFIX + one.id);

/** Call `heard` when another tab changed something. */
export function watch(heard) {
  addEventListener("storage", (event) => {
    if (event.key === null || event.key.startsWith(PREFIX)) heard();
  });
}

/** What a conversation is called: its first words. */
export function title(one) {
  const first = one.messages.find((message) => message.role === "user")?.content ?? "";
  const line = first.trim().split("\n")[0];
  if (!line) return "New conversation";
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH)}…` : line;
}
