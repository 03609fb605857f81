// What is served and why: the loop's account of it, beside what the server itself says and does.

import { getJson, getText, health } from "./api.js";
import { by, count, el, svg } from "./dom.js";

const LOOK_MS = 2000;
const STORY_MS = 30000;
const KEPT = 60;
const ENDINGS = ["promoted", "rejected", "inconclusive", "incorrect", "void"];
const speeds = [];
let before = null;
let proof = "none: no loop stands behind this server";

// ---------------------------------------------------------------- the ledger's account

async function story() {
  const told = await getJson("/about.json");
  by("made").textContent = told.made_utc ? `as of ${told.made_utc}` : "no ledger stands behind this server";
  if (!told.made_utc) return;
  proof = told.proof;
  by("title").textContent = `Serving ${told.headline}`;
  by("canary").hidden = false;
  by("canary").classList.toggle("alarm", Boolean(told.canaries.value));
  by("canary").replaceChildren(el("b", {}, "canaries "), told.canaries.text);
  by("incumbent").textContent = told.incumbent.text;
  by("gain").textContent = told.gain.text;
  by("gain-plot").replaceChildren(...[band(told.gain)].filter(Boolean));
  promotions(told.promotions);
  night(told.night);
  faults(told.faults ?? []);
  fields(told.first_config, told.config);
}

function promotions(rows) {
  by("made-by").hidden = !rows.length;
  by("promotions").replaceChildren(...rows.map((row) => item(row)));
}

function item({ decision, label, ending, said, date }) {
  const word = ENDINGS.includes(ending) ? ending : "void";
  const head = [el("b", {}, `D${decision}`), " ", el("span", { class: word }, ending), ` · ${label}`];
  return el("li", {}, ...head, el("span", { class: "note" }, ` ${said} (${date})`));
}

function night(told) {
  by("night").hidden = !told;
  if (!told) return;
  by("night-title").textContent = `Last night: ${count(told.decisions.length, "decision")}`;
  by("night-note").textContent = told.text;
  by("decisions").replaceChildren(...told.decisions.map((row) => item(row)));
}

function faults(rows) {
  by("faults").hidden = !rows.length;
  by("fault-list").replaceChildren(
    ...rows.map(({ said, at_utc }) => el("li", {}, said, el("span", { class: "note" }, ` (${at_utc})`))),
  );
}

function fields(first, served) {
  const names = [...new Set([...Object.keys(first), ...Object.keys(served)])].sort();
  by("config").hidden = !names.length;
  const cell = (value) => (value === undefined ? "the engine's default" : el("code", {}, String(value)));
  by("fields").replaceChildren(
    ...names.map((name) =>
      el("tr", {}, el("th", { scope: "row" }, el("code", {}, name)), el("td", {}, cell(first[name])), el("td", {}, cell(served[name]))),
    ),
  );
}

/** A gain in per cent with its band, beside zero. */
function band({ value, low, high }) {
  if (value === null || low === null || high === null || (low === 0 && high === 0)) return null;
  const [from, to] = [Math.min(0, low), Math.max(0, high)].map((x) => 100 * x);
  const x = (share) => 10 + (280 * (100 * share - from)) / (to - from);
  const label = (share, anchor, y) =>
    svg("text", { x: x(share), y, "text-anchor": anchor }, share === 0 ? "0" : `${(100 * share).toFixed(1)} %`);
  return svg(
    "svg", { viewBox: "0 0 300 46", role: "img", class: "band-plot" },
    svg("title", {}, `Gain ${(100 * value).toFixed(1)} per cent, from ${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)}`),
    svg("line", { class: "grid", x1: 10, x2: 290, y1: 22, y2: 22 }),
    svg("line", { class: "zero", x1: x(0), x2: x(0), y1: 12, y2: 32 }),
    svg("line", { class: "band", x1: x(low), x2: x(high), y1: 22, y2: 22 }),
    svg("circle", { class: "load", cx: x(value), cy: 22, r: 4 }),
    label(0, from < 0 ? "middle" : "start", 44), label(value, "middle", 9),
  );
}

// ---------------------------------------------------------------- the server's own word

async function served() {
  const told = await health();
  const pairs = [["state", told.message ?? told.status]];
  if (told.status === "ok") {
    pairs.push(
      ["model", told.model], ["decision", told.decision === null ? "the first configuration" : `D${String(told.decision).replace(/^D/, "")}`],
      ["live proof", proof], ["configuration", told.fingerprint], ["checkpoint", told.checkpoint.sha256],
      ["draft head", told.head ? `${told.head.path} ${told.head.sha256}` : "the checkpoint's own"],
      ["context", count(told.context_length, "token")], ["at work", `${told.running} running, ${told.waiting} waiting`],
      ["faults", told.faults ? `${count(told.faults, "engine fault")} since its start, each healed by a new load` : "none since its start"],
    );
  }
  by("served").replaceChildren(...pairs.flatMap(([word, text]) => [el("dt", {}, word), el("dd", {}, text)]));
}

/** The counters of /metrics that speed is made from. */
async function counters() {
  const lines = (await getText("/metrics")).split("\n");
  const of = (name) => Number(lines.find((line) => line.startsWith(`flywheel_${name} `))?.split(" ")[1] ?? 0);
  return {
    at: performance.now(), tokens: of("completion_tokens_total"), rounds: of("verifies_total"),
    committed: of("round_tokens_total"), offered: of("draft_tokens_total"),
    accepted: of("accepted_draft_tokens_total"), seconds: of("decode_seconds_total"),
  };
}

async function speed() {
  const now = await counters();
  if (before) speeds.push(Math.max(0, (1000 * (now.tokens - before.tokens)) / (now.at - before.at)));
  if (speeds.length > KEPT) speeds.shift();
  const latest = speeds.at(-1) ?? 0;
  const since = before && now.rounds > before.rounds ? before : { rounds: 0, committed: 0, offered: 0, accepted: 0, seconds: 0 };
  by("speed").textContent = latest ? `${latest.toFixed(1)} tok/s` : "idle";
  by("speed-note").textContent = drafts(now, since, latest ? "now" : "since its start");
  by("spark").replaceChildren(spark());
  before = now;
}

function drafts(now, since, when) {
  const rounds = now.rounds - since.rounds;
  if (!rounds) return "no round yet";
  const words = [`${((now.committed - since.committed) / rounds).toFixed(2)} tokens a round`];
  const offered = now.offered - since.offered;
  if (offered) words.push(`${Math.round((100 * (now.accepted - since.accepted)) / offered)} % of drafts accepted`);
  const seconds = now.seconds - since.seconds;
  if (seconds > 0) words.push(`${((1000 * seconds) / (now.committed - since.committed)).toFixed(2)} ms a token in rounds`);
  return `${words.join(" · ")} ${when}`;
}

function spark() {
  const top = Math.max(1, ...speeds);
  const points = speeds.map((y, i) => `${((300 * (i + KEPT - speeds.length)) / (KEPT - 1)).toFixed(1)},${(38 - (34 * y) / top).toFixed(1)}`);
  return svg(
    "svg", { viewBox: "0 0 300 40", role: "img", class: "spark", preserveAspectRatio: "none" },
    svg("title", {}, "Tokens per second over the last two minutes"),
    svg("line", { class: "grid", x1: 0, x2: 300, y1: 38, y2: 38 }),
    svg("polyline", { class: "between", points: points.join(" ") }),
  );
}

// ---------------------------------------------------------------- again and again

async function every(ms, look) {
  try {
    await look();
    by("trouble").textContent = "";
  } catch (error) {
    by("trouble").textContent = error.message;
  }
  setTimeout(() => every(ms, look), ms);
}

await every(STORY_MS, story);
every(LOOK_MS, async () => {
  await served();
  await speed();
});
