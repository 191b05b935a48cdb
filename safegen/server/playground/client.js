// Requests to this server, under the key that was typed in, which is kept here and nowhere else.

class ServerError extends Error {
  /** told: the error of the body, as the server has it. */
  constructor(status, told, requestId, retryAfter) {
    super((told && told.message) || `the server answered ${status}`);
    this.status = status;
    this.told = told || {};
    this.requestId = requestId;
    this.retryAfter = retryAfter;
  }
}

class Client {
  constructor() {
    this.key = "";
  }
  headers() {
    const headers = { "content-type": "application/json" };
    if (this.key !== "") headers.authorization = `Bearer ${this.key}`;
    return headers;
  }
  async send(path, body, signal) {
    const method = body === undefined ? "GET" : "POST";
    const answer = await fetch(path, { method, body, signal, headers: this.headers(), cache: "no-store", credentials: "omit" });
    if (answer.ok) return answer;
    let told = null;
    try {
      told = (await answer.json()).error;
    } catch (error) {
      told = null;
    }
    throw new ServerError(answer.status, told, answer.headers.get("x-request-id"), answer.headers.get("retry-after"));
  }
  async models() {
    const listed = await (await this.send("v1/models")).json();
    return listed.data.map((model) => model.id);
  }
  async explain(body, signal) {
    return (await this.send("playground/explain", body, signal)).json();
  }
  /** Calls onEvent for each event of a run. Raises ServerError, also for an error after the first byte. */
  async run(body, signal, onEvent) {
    const answer = await this.send("playground/run", body, signal);
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let received = "";
    let isDone = false;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      received += decoder.decode(value, { stream: true });
      const events = received.split("\n\n");
      received = events.pop();
      for (const event of events) {
        const text = event.replace(/^data: /, "");
        if (text === "[DONE]") {
          isDone = true;
          continue;
        }
        const parsed = JSON.parse(text);
        if (parsed.error && !parsed.type) throw new ServerError(200, parsed.error, answer.headers.get("x-request-id"), null);
        onEvent(parsed);
      }
    }
    if (!isDone) throw new ServerError(0, { message: "the connection ended before the answer did" }, null, null);
  }
}
