// Requests to the server that this page came from; every failure is an Error with one sentence.

const KEY = "flywheel.key";

/** The API key of this tab, if the server wants one. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

function headers() {
  const given = key.get();
  return given ? { Authorization: `Bearer ${given}` } : {};
}

/** What the server said instead of an answer. */
export class Refusal extends Error {
  constructor(message, status, retryS) {
    super(message);
    this.status = status;
    this.retryS = retryS;
  }
}

async function send(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached; it may be down or restarting.");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  let said;
  try {
    said = (await answer.json()).error?.message;
  } catch {
    said = null;
  }
  if (answer.status === 401) said = "The server wants an API key: put it in the settings.";
  const retryS = Number(answer.headers.get("Retry-After")) || null;
  return new Refusal(said || `The server answered with status ${answer.status}.`, answer.status, retryS);
}

/** The JSON, or the text, of a GET. */
export const getJson = async (path) => (await send(path)).json();
export const getText = async (path) => (await send(path)).text();

/** /health also while the server is loading. */
export async function health() {
  try {
    return await (await fetch("/health", { headers: headers() })).json();
  } catch {
    throw new Error("The server cannot be reached; it may be down or restarting.");
  }
}

/** The chunks of a chat completion as they come; aborting `signal` makes the server stop too. */
export async function* chat(body, signal) {
  const answer = await send("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: { include_usage: true },
      timings_per_token: true,
    }),
  });
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
  throw new Error("The answer broke off: the server closed the connection before its end.");
}

/** The data of server-sent events, however the bytes were cut. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (held + value).split("\n\n");
      held = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The answer broke off: the connection to the server was lost.");
  }
}
