// A passage of the conversation: its text as it is, in lines, each piece marked with where it came from.
//
// All text goes in as text nodes. The one thing that is read in it is a line of ``` that begins or ends code.

const FENCE = /^ {0,3}```/;

function element(name, className) {
  const made = document.createElement(name);
  made.className = className;
  return made;
}

/** What was rejected, on one line. */
function onOneLine(text) {
  const shown = text.replace(/\r?\n/g, "↵").replace(/\t/g, "⇥");
  // Spaces that are struck through look like a dash.
  return shown.trim().replace(/ {2,}/g, " ") || "␣".repeat(shown.length);
}

export class Passage {
  /** All pieces but the rejected ones. */
  text = "";
  #root;
  #block;
  #line;
  #lineText = "";
  #inCode = false;

  constructor(root) {
    this.#root = root;
    this.#beginBlock("prose");
  }

  /** Adds what a round brought: `text` with its sources, and the text that was `rejected`. */
  add({ text, rejected }) {
    // Rejected tokens stood where the model's own last token stands now: before it.
    const own = text.length > 0 && text.at(-1).source === null ? text.at(-1) : null;
    for (const piece of own ? text.slice(0, -1) : text) this.#write(piece.text, piece.source);
    if (rejected) this.#reject(rejected);
    if (own) this.#write(own.text, null);
  }

  #write(text, source) {
    this.text += text;
    const [first, ...others] = text.split("\n");
    this.#append(first, source);
    for (const line of others) {
      this.#endLine();
      this.#append(line, source);
    }
  }

  #append(text, source) {
    if (!text) return;
    this.#lineText += text;
    const last = this.#line.lastChild;
    if (source === null) {
      if (last?.nodeType === Node.TEXT_NODE) last.appendData(text);
      else this.#line.append(text);
    } else if (last?.dataset?.source === source) {
      last.firstChild.appendData(text);
    } else {
      const mark = element("span", "accepted");
      mark.dataset.source = source;
      mark.title = `drafted by ${source}, accepted`;
      mark.append(text);
      this.#line.append(mark);
    }
    if (!this.#line.classList.contains("fence") && FENCE.test(this.#lineText)) this.#fence();
  }

  #reject(text) {
    // Isolated, so that it has no say in the direction of the line; no part of what is read aloud.
    const mark = element("bdi", "rejected");
    mark.setAttribute("aria-hidden", "true");
    mark.title = "drafted, rejected";
    mark.append(onOneLine(text));
    this.#line.append(mark);
  }

  /** The line turned out to begin or end code. */
  #fence() {
    const line = this.#line;
    line.classList.add("fence");
    if (this.#inCode) return;
    const before = this.#block;
    this.#block = element("div", "code");
    this.#block.append(line);
    this.#root.append(this.#block);
    if (!before.hasChildNodes()) before.remove();
  }

  #endLine() {
    if (this.#line.classList.contains("fence")) {
      this.#inCode = !this.#inCode;
      if (!this.#inCode) return this.#beginBlock("prose");
    }
    this.#beginLine();
  }

  #beginBlock(kind) {
    this.#block = element("div", kind);
    this.#root.append(this.#block);
    this.#beginLine();
  }

  #beginLine() {
    this.#lineText = "";
    this.#line = element("div", "line");
    this.#line.dir = this.#inCode ? "ltr" : "auto";
    this.#block.append(this.#line);
  }
}
