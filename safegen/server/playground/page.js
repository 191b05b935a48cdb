// The page: its state is what the fields hold, one client, and the run that is going on, if any.

(() => {
  const byId = (id) => document.getElementById(id);
  const client = new Client();
  const view = new TokenView(byId("output"), byId("legend"));
  const drafts = {}; // what was typed for each kind
  let kind = "json_schema";
  let running = null; // AbortController
  let compileMs = 0;

  // --- the output type ---

  function buildKinds() {
    for (const [name, about] of Object.entries(KINDS)) {
      const radio = element("input", "");
      radio.type = "radio";
      radio.name = "kind";
      radio.value = name;
      radio.checked = name === kind;
      radio.addEventListener("change", () => chooseKind(name));
      byId("kinds").append(element("label", "", radio, about.label));
    }
    const groups = {};
    PRESETS.forEach((preset, number) => {
      if (!groups[preset.kind]) {
        groups[preset.kind] = document.createElement("optgroup");
        groups[preset.kind].label = KINDS[preset.kind].label;
        byId("preset").append(groups[preset.kind]);
      }
      groups[preset.kind].append(new Option(preset.name, String(number)));
    });
    byId("preset").append(new Option("(your own)", "own"));
  }

  function showKind(name) {
    kind = name;
    const source = byId("source");
    byId("source-label").textContent = KINDS[name].label;
    byId("source-help").textContent = KINDS[name].help;
    source.hidden = name === "text";
    byId("must-call").hidden = name !== "tools";
    source.wrap = name === "regex" ? "soft" : "off";
    source.rows = { json_schema: 15, tools: 15, grammar: 11, choice: 5, regex: 3, text: 1 }[name];
    for (const radio of document.querySelectorAll("#kinds input")) radio.checked = radio.value === name;
    showSourceError(null);
    byId("why").replaceChildren();
  }

  function chooseKind(name) {
    drafts[kind] = { source: byId("source").value, preset: byId("preset").value };
    const first = PRESETS.findIndex((preset) => preset.kind === name);
    if (drafts[name]) {
      byId("source").value = drafts[name].source;
      byId("preset").value = drafts[name].preset;
      showKind(name);
    } else choosePreset(first);
  }

  function choosePreset(number) {
    const preset = PRESETS[number];
    byId("preset").value = String(number);
    byId("source").value = preset.source;
    byId("source").setSelectionRange(0, 0);
    byId("source").scrollTop = 0;
    const prompt = byId("prompt");
    const text = byId("text");
    if (prompt.value === "" || PRESETS.some((each) => each.prompt === prompt.value)) prompt.value = preset.prompt;
    if (text.value === "" || PRESETS.some((each) => each.wrong === text.value)) text.value = preset.wrong;
    showKind(preset.kind);
  }

  function showSourceError(error) {
    const source = byId("source");
    byId("source-error").hidden = error === null;
    byId("source-error").textContent = error === null ? "" : error.message;
    source.toggleAttribute("aria-invalid", error !== null);
    if (error !== null) select(error.range);
  }

  function select(range) {
    const source = byId("source");
    if (!range || source.hidden) return;
    source.focus();
    source.setSelectionRange(range[0], range[1]);
    const lines = source.value.slice(0, range[0]).split("\n").length - 1;
    const lineHeight = parseFloat(getComputedStyle(source).lineHeight);
    source.scrollTop = Math.max(0, (lines - 3) * lineHeight);
  }

  function showPlace(place) {
    const text = byId("source").value;
    if (place.line) {
      const start = offsetOf(text, place.line, place.column);
      const end = place.column ? start + 1 : text.indexOf("\n", start);
      select([start, end < 0 ? text.length : end]);
    } else select(locate(kind, text, place.pointer, place.keyword));
  }

  // --- requests ---

  function commonFields() {
    const messages = [{ role: "user", content: byId("prompt").value }];
    if (byId("system").value !== "") messages.unshift({ role: "system", content: byId("system").value });
    const common = { model: byId("model").value, messages };
    for (const [id, name] of [["temperature", "temperature"], ["max-tokens", "max_completion_tokens"], ["seed", "seed"]]) {
      const field = byId(id);
      if (!field.validity.valid) {
        throw new SourceError(`${field.parentElement.textContent.trim()}: ${field.validationMessage}`, null, field);
      }
      if (field.value !== "") common[name] = Number(field.value);
    }
    return common;
  }

  function bodyWith(extra) {
    const choice = kind === "tools" && byId("required").checked ? { tool_choice: "required" } : {};
    return requestBody(kind, byId("source").value, { ...commonFields(), ...choice, ...extra });
  }

  function told(error) {
    if (error instanceof SourceError) {
      notSent(error);
      setStatus("bad", "Not sent");
      return;
    }
    if (error instanceof ServerError && error.status === 401) askForKey();
    byId("failure").replaceChildren(...failureContent(error, showPlace));
    byId("failure").hidden = false;
    setStatus("bad", error instanceof ServerError ? "Refused" : "Not reached");
  }

  function notSent(error) {
    if (error.field === null) {
      showSourceError(error);
      return;
    }
    error.field.closest("details").open = true;
    error.field.focus();
    byId("failure").replaceChildren(element("b", "", "Not sent"), element("p", "", error.message));
    byId("failure").hidden = false;
  }

  function setStatus(state, text) {
    byId("status").dataset.state = state;
    byId("status").textContent = text;
  }

  // --- a run ---

  async function run() {
    if (running) return;
    let body;
    showSourceError(null);
    byId("failure").hidden = true;
    try {
      body = bodyWith({});
    } catch (error) {
      told(error);
      return;
    }
    begin();
    const controller = running;
    try {
      await client.run(body, controller.signal, take);
    } catch (error) {
      if (controller.signal.aborted) setStatus("open", `Cancelled after ${count(view.spans.length, "token")}`);
      else told(error);
    } finally {
      controller.abort();
      end();
    }
  }

  function begin() {
    running = new AbortController();
    for (const id of ["facts", "guards", "findings", "calls"]) byId(id).hidden = true;
    byId("guard-list").replaceChildren();
    view.clear(kind === "json_schema");
    byId("format-choice").hidden = kind !== "json_schema";
    byId("output").setAttribute("aria-busy", "true");
    byId("output").dataset.empty = "";
    byId("run").setAttribute("aria-disabled", "true");
    byId("cancel").hidden = false;
    byId("use-answer").disabled = true;
    setStatus("busy", "Running");
    const top = byId("result").getBoundingClientRect().top;
    if (top > window.innerHeight - 160) byId("result").scrollIntoView({ block: "start" });
  }

  function end() {
    running = null;
    view.flush();
    byId("output").setAttribute("aria-busy", "false");
    byId("output").dataset.empty = "No text";
    byId("run").removeAttribute("aria-disabled");
    if (document.activeElement === byId("cancel")) byId("run").focus();
    byId("cancel").hidden = true;
    byId("use-answer").disabled = view.spans.length === 0;
  }

  function take(event) {
    if (event.type === "delta") view.add(event);
    else if (event.type === "type") takeType(event);
    else if (event.type === "guard") {
      byId("guards").hidden = false;
      byId("guard-list").append(guardRecord(event));
    } else if (event.type === "final") takeFinal(event);
  }

  function takeType(event) {
    compileMs = event.compile_ms;
    if (!event.findings.length) return;
    byId("findings").hidden = false;
    byId("findings-told").textContent = findingsText(event.findings);
    byId("finding-list").replaceChildren(...findingRecords(event.findings, showPlace));
  }

  function takeFinal(event) {
    const seconds = (event.timings.total_ms / 1000).toFixed(2);
    const tokens = count(event.usage.completion_tokens, "token");
    const words = {
      ok: kind === "text" ? "Complete" : "Valid",
      truncated: "Cut at the token limit",
      blocked: "Stopped by a guard",
      invalid: "No valid answer",
      cancelled: "Cancelled by the server",
      error: "Failed",
      refused: "Refused",
    };
    const state = event.status === "ok" ? "good" : "bad";
    setStatus(state, event.status === "blocked" ? words.blocked : `${words[event.status]} · ${tokens} · ${seconds} s`);
    byId("timings").replaceChildren(...timingTiles(event, compileMs));
    byId("usage").textContent = usageText(event.usage);
    byId("facts").hidden = event.usage.completion_tokens === 0;
    if (event.error && event.status !== "ok") {
      byId("failure").replaceChildren(element("b", "", words[event.status]), element("p", "", event.error));
      byId("failure").hidden = false;
    }
    if (event.message.tool_calls) {
      byId("calls").replaceChildren(...callCards(event.message.tool_calls));
      byId("calls").hidden = false;
    }
  }

  function count(number, noun) {
    return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  }

  function cancel() {
    if (running) running.abort();
  }

  // --- why a text is rejected ---

  async function explainText() {
    const text = byId("text").value;
    const why = byId("why");
    showSourceError(null);
    why.replaceChildren(element("p", "help", "Asking…"));
    try {
      const body = bodyWith({ text });
      why.replaceChildren(...explanationContent(await client.explain(body), text, showPlace));
    } catch (error) {
      if (error instanceof SourceError) {
        why.replaceChildren();
        notSent(error);
        return;
      }
      if (error instanceof ServerError && error.status === 401) askForKey();
      why.replaceChildren(element("div", "failure", ...failureContent(error, showPlace)));
    }
  }

  // --- the server ---

  function askForKey() {
    byId("key-row").hidden = false;
    byId("key-toggle").setAttribute("aria-expanded", "true");
    byId("key").focus();
  }

  function setConnection(state, text) {
    byId("connection").dataset.state = state;
    byId("connection").textContent = text;
  }

  async function connect() {
    try {
      const models = await client.models();
      byId("model").replaceChildren(...models.map((name) => new Option(name, name)));
      byId("model").disabled = models.length < 2;
      setConnection("good", "ready");
      return true;
    } catch (error) {
      const needsKey = error instanceof ServerError && error.status === 401;
      setConnection("bad", needsKey ? (client.key ? "the key is not valid" : "asks for an API key") : "not reached");
      if (needsKey) askForKey();
      return false;
    }
  }

  async function useKey() {
    client.key = byId("key").value.trim();
    if (!(await connect())) return;
    byId("key-row").hidden = client.key !== "";
    byId("key-toggle").setAttribute("aria-expanded", String(client.key === ""));
    byId("source").focus();
  }

  // --- wiring ---

  function onKey(event) {
    if (event.key === "Escape" && running) {
      event.preventDefault();
      cancel();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (event.target === byId("text")) explainText();
      else run();
    }
  }

  async function copy() {
    const button = byId("copy");
    try {
      await navigator.clipboard.writeText(view.text);
      button.textContent = "Copied";
    } catch (error) {
      getSelection().selectAllChildren(byId("output"));
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }

  buildKinds();
  choosePreset(0);
  view.redraw(true);
  byId("output").dataset.empty = "The answer appears here as it is decoded, each token coloured by where it came from.";
  if (/Mac|iPhone|iPad/.test(navigator.platform)) byId("run-keys").textContent = "⌘";
  byId("preset").addEventListener("change", (event) => event.target.value !== "own" && choosePreset(Number(event.target.value)));
  byId("source").addEventListener("input", () => {
    byId("preset").value = "own";
    byId("why").replaceChildren();
    if (!byId("source-error").hidden) showSourceError(null);
  });
  byId("text").addEventListener("input", () => byId("why").replaceChildren());
  byId("run").addEventListener("click", run);
  byId("cancel").addEventListener("click", cancel);
  byId("explain").addEventListener("click", explainText);
  byId("copy").addEventListener("click", copy);
  byId("format").addEventListener("change", (event) => view.redraw(event.target.checked));
  byId("use-answer").addEventListener("click", () => {
    byId("text").value = view.text;
    byId("text").focus();
  });
  byId("key-toggle").addEventListener("click", () => {
    const isHidden = !byId("key-row").hidden;
    byId("key-row").hidden = isHidden;
    byId("key-toggle").setAttribute("aria-expanded", String(!isHidden));
    if (!isHidden) byId("key").focus();
  });
  byId("key-use").addEventListener("click", useKey);
  byId("key").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) useKey();
  });
  document.addEventListener("keydown", onKey);
  connect();
})();
