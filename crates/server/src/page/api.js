// What the page asks of the server: the same API as everybody.

/** A request that was not served; `message` is the server's own where it gave one. */
export class ApiError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const UNREACHABLE = "The server cannot be reached.";
const BROKEN = "The connection broke off before the answer was complete.";

async function ask(path, key, options) {
  const headers = { ...options.headers };
  if (key) headers.authorization = "Bearer " + key;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    // Also a key with characters that no header may have.
    throw error.name === "AbortError" ? error : new ApiError(key && !/^[\x20-\x7e]*$/.test(key)
      ? "The API key has characters that cannot be sent." : UNREACHABLE);
  }
  if (!response.ok) throw refusal(response.status, await response.json().catch(() => null));
  return response;
}

function refusal(status, body) {
  const error = body?.error ?? {};
  return new ApiError(error.message ?? `The server answered ${status}.`, status, error.code ?? null);
}

/** The model that is served. */
export async function model(key) {
  const response = await ask("v1/models", key, {});
  return (await response.json()).data[0];
}

/** The chunks of an answer as they come. */
export async function* chat(body, key, signal) {
  const response = await ask("v1/chat/completions", key, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw refusal(0, chunk);
    yield chunk;
  }
  throw new ApiError(BROKEN);
}

/** The data of server-sent events, each of which is on one line. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
    }
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError(BROKEN);
  } finally {
    reader.cancel().catch(() => {});
  }
}
