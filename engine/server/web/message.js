// One message on the page: what was said, what was thought, what was called, and how fast.

import { count, el, svg } from "./dom.js";
import { render } from "./markdown.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Tool result" };

export class Message {
  /** `answered(call, result)` is called when a person gives a tool call's result. */
  constructor(message, answered) {
    this.message = message;
    this._answered = answered;
    this._live = false;
    this._body = el("div", { class: "body" });
    this._thought = el("div", { class: "thought" });
    this._summary = el("summary", {}, "Thinking");
    this._thinking = el("details", { class: "thinking", hidden: true }, this._summary, this._thought);
    this._calls = el("div", { class: "calls" });
    this._end = el("div", { class: "ending" });
    this._meter = el("p", { class: "meter note" });
    this.node = el(
      "article", { class: message.role }, el("h2", { class: "who" }, NAMES[message.role] ?? message.role),
      this._thinking, this._body, this._calls, this._meter, this._end,
    );
    this.draw();
    if (message.role === "assistant" && (message.content || message.tool_calls || message.error)) this.end();
  }

  /** Add what a chunk of the stream brings. */
  hear(chunk) {
    this._live = true;
    const message = this.message;
    const choice = chunk.choices?.[0];
    if (chunk.timings) message.stats = { ...message.stats, ...chunk.timings };
    if (chunk.usage) message.usage = chunk.usage;
    if (!choice) return;
    message.content += choice.delta.content ?? "";
    message.reasoning += choice.delta.reasoning_content ?? "";
    for (const part of choice.delta.tool_calls ?? []) this._call(part);
    if (choice.finish_reason) message.finish = choice.finish_reason;
  }

  _call({ index, id, function: { name, arguments: text } }) {
    const calls = (this.message.tool_calls ??= []);
    calls[index] ??= { id, type: "function", function: { name, arguments: "" } };
    calls[index].function.arguments += text ?? "";
  }

  /** Show everything that came so far. */
  draw() {
    const { role, content, reasoning } = this.message;
    const nodes = role === "assistant" ? render(content) : [el("p", { class: "as-typed" }, content)];
    this._body.replaceChildren(...nodes);
    this._body.classList.toggle("waiting", this._live && !content && !reasoning);
    if (reasoning) {
      this._thinking.hidden = false;
      this._summary.textContent = content || !this._live ? "Thought" : "Thinking …";
      this._thought.replaceChildren(...render(reasoning));
    }
    this._meter.replaceChildren(...meter(this.message));
  }

  /** Nothing more will come; `again` asks anew where that makes sense. */
  end(again = null) {
    this._live = false;
    const { message } = this;
    const { error, stopped, finish } = message;
    const notes = [];
    if (error) notes.push(el("p", { class: "bad", role: "alert" }, error));
    if (error && again) notes.push(el("button", { type: "button", onclick: again }, "Try again"));
    if (stopped) notes.push(el("p", { class: "note" }, "Stopped."));
    if (finish === "length") notes.push(el("p", { class: "note" }, "Cut off at the most tokens allowed."));
    this._calls.replaceChildren(...(message.tool_calls ?? []).map((call) => this._called(call)));
    this._end.replaceChildren(...notes);
    this.draw();
  }

  _called(call) {
    const field = el("textarea", { rows: 2, "aria-label": `Result of ${call.function.name}` });
    const give = el("button", { type: "button" }, "Give the result");
    const form = el("div", { class: "result" }, field, give);
    give.addEventListener("click", () => {
      form.remove();
      this._answered(call, field.value);
    });
    return el(
      "div", { class: "call" }, el("p", {}, "Calls ", el("code", {}, call.function.name)),
      el("pre", { tabindex: 0 }, el("code", {}, pretty(call.function.arguments))), form,
    );
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

/** Speed, drafts and memory of one answer, as far as the server has told. */
function meter({ stats, usage }) {
  if (!stats?.predicted_n) return [];
  const words = [count(stats.predicted_n, "token")];
  if (stats.predicted_per_second) words.unshift(`${stats.predicted_per_second.toFixed(1)} tok/s`);
  if (stats.rounds) words.push(`${((stats.predicted_n - 1) / stats.rounds).toFixed(2)} a round`);
  if (stats.draft_n) {
    const share = Math.round((100 * stats.draft_n_accepted) / stats.draft_n);
    words.push(`${stats.draft_n_accepted} of ${stats.draft_n} drafts accepted (${share} %)`);
  }
  if (usage) words.push(`${stats.cache_n} of ${count(usage.prompt_tokens, "prompt token")} remembered`);
  return [words.join(" · "), positions(stats)].filter(Boolean);
}

/** A bar for each draft position: how often a draft there was accepted. */
function positions({ offered_by_position: offered, accepted_by_position: accepted }) {
  if (!offered?.length) return null;
  const told = offered.map((n, i) => `${i + 1}: ${Math.round((100 * accepted[i]) / n)} %`);
  const bars = offered.map((n, i) => {
    const height = (10 * accepted[i]) / n;
    return svg("rect", { x: i * 6, y: 11 - height, width: 4, height: Math.max(height, 0.5) });
  });
  return svg(
    "svg", { class: "positions", role: "img", viewBox: `0 0 ${offered.length * 6} 12`, width: offered.length * 6, height: 12 },
    svg("title", {}, `Drafts accepted by position: ${told.join(", ")}`), ...bars,
  );
}
