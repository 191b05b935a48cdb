// What is shown beside the answer: failures, timings, guards, findings, tool calls, explanations. Text nodes only.

function element(name, className, ...content) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

function milliseconds(value) {
  if (value >= 10000) return [(value / 1000).toFixed(1), " s"];
  if (value >= 1000) return [(value / 1000).toFixed(2), " s"];
  return [value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2), " ms"];
}

function tile(label, value, unit = "") {
  const shown = element("dd", "", value);
  if (unit) shown.append(element("small", "", unit));
  return element("div", "", element("dt", "", label), shown);
}

function timingTiles(final, compileMs) {
  const { timings, usage } = final;
  const tiles = [tile("First token", ...milliseconds(timings.first_token_ms)), tile("Whole answer", ...milliseconds(timings.total_ms))];
  const decodeMs = timings.total_ms - timings.first_token_ms;
  if (usage.completion_tokens > 1 && decodeMs > 0) {
    tiles.push(tile("Speed", ((1000 * (usage.completion_tokens - 1)) / decodeMs).toFixed(0), " tokens/s"));
  }
  if (usage.forwards > 0) tiles.push(tile("Tokens/forward", (usage.completion_tokens / usage.forwards).toFixed(2)));
  tiles.push(tile("Masks", ...milliseconds(timings.mask_ms)));
  if (compileMs > 0) tiles.push(tile("Compiling", ...milliseconds(compileMs)));
  return tiles;
}

function usageText(usage) {
  const cached = usage.cached_tokens ? `, ${usage.cached_tokens} of them from the prefix cache` : "";
  const drafters = Object.entries(usage.by_drafter).map(([name, counts]) => `${name} ${counts.accepted} of ${counts.drafted}`);
  const drafted = drafters.length ? ` Drafts accepted: ${drafters.join(", ")}.` : "";
  return `${usage.prompt_tokens} prompt tokens${cached}; ${usage.completion_tokens} tokens of answer in ${usage.forwards} forwards.${drafted}`;
}

const GUARD_LOOKS = { allow: "good", redact: "edit", restore: "edit", block: "bad", retry: "bad", error: "bad", timeout: "bad" };

function guardRecord(event) {
  const where = event.stage === "input" ? "in the prompt" : event.stage === "decoding" ? "while decoding" : "in the answer";
  const rule = event.rule ? [" found ", element("code", "", event.rule)] : [""];
  const path = event.path === "$" || event.stage === "input" ? "" : ` at ${event.path}`;
  const [value, unit] = milliseconds(event.milliseconds);
  return element(
    "li", "",
    element("span", `badge ${GUARD_LOOKS[event.action] || ""}`, event.action),
    element("span", "", element("b", "", event.guard), ...rule, ` ${where}${path}`, element("span", "help", `${value}${unit}`)),
  );
}

/** Where in the type the blame lies, as a button that shows it there. */
function placeButton(place, onShow) {
  const text = `${place.pointer === "" || place.pointer.startsWith("/") ? "#" : ""}${place.pointer}`;
  const button = element("button", "link", element("code", "", text));
  button.type = "button";
  button.title = "Show it in the output type";
  button.addEventListener("click", () => onShow(place));
  return place.keyword ? element("span", "", button, " (", element("code", "", place.keyword), ")") : button;
}

const TITLES = {
  invalid_json_schema: "This schema cannot be served",
  invalid_grammar: "This type cannot be served",
  invalid_api_key: "This server asks for an API key",
  content_filter: "A guard stopped the prompt",
  context_length_exceeded: "The prompt is too long",
  model_not_found: "There is no such model",
  rate_limit_exceeded: "Too many requests",
  concurrency_limit_exceeded: "Too many requests at once",
  server_overloaded: "The server is busy",
  shutting_down: "The server is shutting down",
  deadline_exceeded: "The answer took too long",
  invalid_output: "No valid answer was found",
};

const MESSAGES = { invalid_api_key: "Type it into the field above; it stays in this page’s memory." };

function failureContent(error, onShow) {
  const told = error.told || {};
  const place = told.place || null;
  const title = TITLES[told.code] || (error instanceof ServerError ? "The request was refused" : "The server cannot be reached");
  const shown = [element("b", "", title), element("p", "", MESSAGES[told.code] || (place && place.reason) || error.message)];
  if (place && place.pointer !== undefined) shown.push(element("p", "", "At ", placeButton(place, onShow)));
  else if (place && place.line) {
    const button = element("button", "link", `line ${place.line}${place.column ? `, column ${place.column}` : ""}`);
    button.type = "button";
    button.addEventListener("click", () => onShow(place));
    shown.push(element("p", "", "At ", button));
  }
  if (place && place.hint) shown.push(element("p", "", place.hint));
  const small = [];
  if (error.retryAfter) small.push(`Try again in ${error.retryAfter} s.`);
  if (told.param && !place) small.push(`Parameter: ${told.param}.`);
  if (error.requestId) small.push(`Request ${error.requestId}.`);
  if (small.length) shown.push(element("p", "help", small.join(" ")));
  return shown;
}

function callCards(calls) {
  return calls.map((call) =>
    element("div", "call", element("b", "", call.function.name), element("pre", "code", indented(call.function.arguments))),
  );
}

function findingRecords(findings, onShow) {
  return findings.filter((each) => each.handling !== "enforced" || each.note).map((each) =>
    element(
      "li", "",
      element("span", `badge ${each.handling === "enforced" ? "good" : ""}`, each.handling),
      element("span", "", placeButton(each, onShow), element("span", "help", each.note)),
    ),
  );
}

function findingsText(findings) {
  const counts = {};
  for (const each of findings) counts[each.handling] = (counts[each.handling] || 0) + 1;
  const parts = [];
  if (counts.enforced) parts.push(`${counts.enforced} keywords are enforced in the mask`);
  if (counts.verified) parts.push(`${counts.verified} verified when their part closes`);
  for (const [handling, count] of Object.entries(counts)) {
    if (handling !== "enforced" && handling !== "verified") parts.push(`${count} ${handling}`);
  }
  return `${parts.join(", ")}.`;
}

function explanationContent(found, text, onShow) {
  if (found.accepted) return [element("p", "verdict good", "Accepted: the decoder could write exactly this text.")];
  const shown = [element("p", "verdict bad", `Rejected at byte ${found.byte}: ${found.reason}.`)];
  const rest = text.slice(found.character);
  const culprit = Array.from(rest)[0] || "";
  shown.push(element("pre", "code", text.slice(0, found.character), element("mark", "", culprit), rest.slice(culprit.length)));
  if (found.places.length) {
    const places = found.places.flatMap((place, number) => (number ? [", ", placeButton(place, onShow)] : [placeButton(place, onShow)]));
    shown.push(element("p", "", "To blame: ", ...places));
  }
  if (found.expected.length) {
    const more = found.num_more_expected ? [` and ${found.num_more_expected} more`] : [];
    shown.push(element("p", "chips", "Expected here:", ...found.expected.map((each) => element("code", "", each)), ...more));
  }
  return shown;
}
