// The text of an output type: where something stands in it, and the request that it makes.
//
// JSON is passed on as it was typed, character for character, since reading and writing it again would change numbers.

class SourceError extends Error {
  /** range: what is wrong in the output type's text. field: another field that is wrong. */
  constructor(message, range = null, field = null) {
    super(message);
    this.range = range;
    this.field = field;
  }
}

/** Checks that text is JSON; raises SourceError with the place. */
function checkJson(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    const at = jsonErrorOffset(text);
    const { line, column } = lineOf(text, at);
    throw new SourceError(`${what} is not JSON: line ${line}, column ${column}`, [at, Math.min(text.length, at + 1)]);
  }
}

function lineOf(text, offset) {
  const before = text.slice(0, offset).split("\n");
  return { line: before.length, column: before[before.length - 1].length + 1 };
}

function offsetOf(text, line, column) {
  const lines = text.split("\n");
  const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  return Math.min(text.length, start + (column || 1) - 1);
}

/** Reads JSON far enough to say where values are. visit(path, start, end) is called for each value when it ends. */
class JsonScanner {
  constructor(text, visit) {
    this.text = text;
    this.visit = visit;
    this.at = 0;
  }
  scan() {
    this.value([]);
    this.space();
    if (this.at < this.text.length) this.fail();
  }
  fail() {
    throw new RangeError("no JSON from here on");
  }
  space() {
    while (" \t\n\r".includes(this.text[this.at] || "x")) this.at += 1;
  }
  take(expression) {
    expression.lastIndex = this.at;
    const found = expression.exec(this.text);
    if (!found) this.fail();
    this.at += found[0].length;
    return found[0];
  }
  string() {
    return JSON.parse(this.take(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y));
  }
  value(path) {
    this.space();
    const start = this.at;
    const first = this.text[start];
    if (first === "{") this.members(path, "}", () => {
      const keyStart = this.at;
      const key = this.string();
      const keyEnd = this.at;
      this.space();
      this.take(/:/y);
      this.value([...path, key]);
      this.visit([...path, key], keyStart, keyEnd, true);
    });
    else if (first === "[") {
      let index = 0;
      this.members(path, "]", () => this.value([...path, String(index++)]));
    } else if (first === '"') this.string();
    else this.take(/true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y);
    this.visit(path, start, this.at, false);
  }
  members(path, close, member) {
    this.at += 1;
    this.space();
    if (this.text[this.at] === close) {
      this.at += 1;
      return;
    }
    for (;;) {
      this.space();
      member();
      this.space();
      if (this.text[this.at] === close) break;
      this.take(/,/y);
    }
    this.at += 1;
  }
}

function jsonErrorOffset(text) {
  const scanner = new JsonScanner(text, () => {});
  try {
    scanner.scan();
  } catch (error) {
    return scanner.at;
  }
  return text.length;
}

/** [start, end] of the value at a JSON Pointer, or of the keyword in it; of what is nearest above where there is none. */
function locatePointer(text, pointer, keyword = "") {
  const path = pointer.split("/").slice(1).map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
  const wanted = keyword ? [...path, keyword] : path;
  let best = null;
  let bestLength = -1;
  const visit = (at, start, end, isKey) => {
    const matches = at.length <= wanted.length && at.every((step, place) => step === wanted[place]);
    const isBetter = at.length > bestLength || (at.length === bestLength && isKey && keyword);
    if (matches && isBetter) {
      best = [start, end];
      bestLength = at.length;
    }
  };
  try {
    new JsonScanner(text, visit).scan();
  } catch (error) {
    return null;
  }
  return best;
}

/** Where in the editor's text a pointer of the server leads: for tools it begins with the name of one. */
function locate(kind, text, pointer, keyword) {
  if (kind !== "tools") return locatePointer(text, pointer, keyword);
  const [name, ...rest] = pointer.split("/").slice(1);
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    return null;
  }
  const index = Array.isArray(tools) ? tools.findIndex((tool) => tool && tool.function && tool.function.name === name) : -1;
  if (index < 0) return null;
  const inside = ["", String(index), "function", "parameters", ...rest].join("/");
  return locatePointer(text, inside, keyword);
}

/** The body of a request: common fields, and the output type as it was typed. Raises SourceError. */
function requestBody(kind, source, common) {
  const withPart = (part) => `${JSON.stringify(common).slice(0, -1)},${part}}`;
  if (kind === "json_schema") {
    checkJson(source, "The schema");
    return withPart(`"response_format":{"type":"json_schema","json_schema":{"name":"playground","schema":${source}}}`);
  }
  if (kind === "tools") {
    checkJson(source, "The list of tools");
    return withPart(`"tools":${source}`);
  }
  const format = {
    regex: { type: "regex", pattern: source },
    choice: { type: "choice", choices: source.split("\n").filter((line) => line !== "") },
    grammar: { type: "grammar", grammar: source, start: "start" },
    text: { type: "text" },
  }[kind];
  return JSON.stringify({ ...common, response_format: format });
}
