// The answer, token by token, coloured by where the tokens came from; JSON may be shown with indentation, which is not
// part of it. All text of the model's becomes text nodes.

const ORIGINS = {
  forced: "The output type left no other text",
  drafted: "Guessed ahead, and accepted by the model",
  sampled: "Drawn by the model",
  untold: "Not told apart: a guard has edited the text",
};

/** Where line breaks and spaces go between the characters of compact JSON. */
class Indenter {
  constructor() {
    this.depth = 0;
    this.inString = false;
    this.isEscaped = false;
    this.opened = false; // a bracket that may yet close at once
  }
  /** What to show before the character. */
  before(character) {
    if (this.inString) {
      if (this.isEscaped) this.isEscaped = false;
      else if (character === "\\") this.isEscaped = true;
      else if (character === '"') this.inString = false;
      return "";
    }
    const closes = character === "}" || character === "]";
    let pad = "";
    if (this.opened && !closes) pad = this.line();
    else if (closes) {
      this.depth -= 1;
      if (!this.opened) pad = this.line();
    } else if (this.last === ",") pad = this.line();
    else if (this.last === ":") pad = " ";
    this.opened = character === "{" || character === "[";
    if (this.opened) this.depth += 1;
    if (character === '"') this.inString = true;
    this.last = character;
    return pad;
  }
  line() {
    return `\n${"  ".repeat(Math.max(0, this.depth))}`;
  }
}

class TokenView {
  constructor(box, legend) {
    this.box = box;
    this.legend = legend;
    this.isIndented = false;
    this.clear(false);
  }
  clear(isJson) {
    this.box.replaceChildren();
    this.isJson = isJson;
    this.spans = []; // [text, origin, isRest]
    this.waiting = [];
    this.counts = { forced: 0, drafted: 0, sampled: 0, untold: 0 };
    this.indenter = new Indenter();
    this.tell();
  }
  get text() {
    return this.spans.map((span) => span[0]).join("");
  }
  /** A delta of the server's: its spans count characters as the server does, by code points. */
  add(delta) {
    const characters = Array.from(delta.text);
    let place = 0;
    for (const [count, origin, isRest] of delta.spans) {
      const text = characters.slice(place, place + count).join("");
      place += count;
      if (text === "") continue;
      const span = [text, origin || "untold", isRest];
      this.spans.push(span);
      this.waiting.push(span);
      if (!isRest) this.counts[span[1]] += 1;
    }
    if (this.waiting.length && !this.frame) this.frame = requestAnimationFrame(() => this.flush());
  }
  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const isAtEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
    const made = document.createDocumentFragment();
    for (const span of this.waiting) this.draw(span, made);
    this.waiting = [];
    this.box.append(made);
    if (isAtEnd) this.box.scrollTop = this.box.scrollHeight;
    this.tell();
  }
  redraw(isIndented) {
    this.isIndented = isIndented;
    this.flush();
    this.indenter = new Indenter();
    this.box.replaceChildren();
    const made = document.createDocumentFragment();
    for (const span of this.spans) this.draw(span, made);
    this.box.append(made);
  }
  draw([text, origin, isRest], parent) {
    let part = "";
    let isFirst = !isRest;
    const close = () => {
      if (part === "") return;
      const token = document.createElement("span");
      token.className = `t ${origin}${isFirst ? "" : " rest"}`;
      token.title = `${origin === "untold" ? "" : `${origin}: `}${ORIGINS[origin]}`;
      token.textContent = part;
      parent.append(token);
      part = "";
      isFirst = false;
    };
    if (!(this.isJson && this.isIndented)) {
      part = text;
      close();
      return;
    }
    for (const character of text) {
      const pad = this.indenter.before(character);
      if (pad !== "") {
        close();
        parent.append(pad);
      }
      part += character;
    }
    close();
  }
  tell() {
    const total = Object.values(this.counts).reduce((sum, count) => sum + count, 0);
    const items = Object.keys(ORIGINS).filter((origin) => origin !== "untold" || this.counts.untold).map((origin) => {
      const item = document.createElement("li");
      const swatch = document.createElement("span");
      swatch.className = `t ${origin}`;
      swatch.textContent = origin === "untold" ? "edited" : origin;
      item.title = ORIGINS[origin];
      item.append(swatch);
      if (total && origin !== "untold") {
        const count = document.createElement("b");
        count.textContent = String(this.counts[origin]);
        item.append(count, ` ${Math.round((100 * this.counts[origin]) / total)} %`);
      }
      return item;
    });
    this.legend.replaceChildren(...items);
  }
}

/** JSON text with indentation, for what is shown whole; numbers stay as they are written. */
function indented(text) {
  const indenter = new Indenter();
  return Array.from(text, (character) => indenter.before(character) + character).join("");
}
