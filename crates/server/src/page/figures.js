// What rounds bring and cost: counted as they come, and shown a few times a second.

import { acceptancePlot, costPlot, roundsPlot } from "./plots.js";

const SHOWN_ROUNDS = 6;
const PLOTTED_ROUNDS = 48;
/** Milliseconds between two drawings: figures that change faster cannot be read. */
const PAUSE = 200;

const PLAIN = {
  nothing_proposed: "nobody had a draft to propose",
  not_worth_it: "what was proposed would have cost more than it was likely to save",
  loss_budget: "earlier drafts lost as much as they may",
  refresh: "to measure again what a plain token takes",
};

const fixed = (value, digits = 1) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

/** One answer's counts. */
class Counts {
  tokens = 0;
  rounds = 0;
  decided = 0;
  drafted = 0;
  accepted = 0;
  #first = null;
  #last = null;
  /** Tokens that plain decoding would have had in the time of the rounds that had a forecast, and theirs. */
  #plain = 0;
  #forecast = 0;

  add(round, tokens, now) {
    this.tokens = tokens;
    this.#first ??= { tokens, now };
    this.#last = { tokens, now };
    if (!round) return;
    this.rounds += 1;
    this.decided += round.tokens;
    this.drafted += round.rows - 1;
    this.accepted += round.accepted;
    if (round.plain_tps) {
      this.#plain += round.plain_tps * (round.draft_s + round.pass_s);
      this.#forecast += round.tokens;
    }
  }

  /** Tokens per second after the first one. */
  get rate() {
    const seconds = this.#first && (this.#last.now - this.#first.now) / 1000;
    return seconds ? (this.#last.tokens - this.#first.tokens) / seconds : NaN;
  }
  get gain() {
    return this.#forecast / this.#plain;
  }
  get perRound() {
    return this.decided / this.rounds;
  }
  get acceptance() {
    return this.accepted / this.drafted;
  }

  /** In a few words. */
  toString() {
    const parts = [count(this.tokens, "token")];
    if (Number.isFinite(this.rate)) parts.push(`${fixed(this.rate)} tokens/s`);
    if (this.rounds) parts.push(`${fixed(this.perRound)} tokens per round`);
    if (this.drafted) parts.push(`${this.accepted} of ${count(this.drafted, "draft")} accepted`);
    if (this.drafted && Number.isFinite(this.gain)) parts.push(`${fixed(this.gain, 2)} times plain decoding`);
    return parts.join(" · ");
  }
}

export class Figures {
  #document;
  #counts = new Counts();
  #latest = [];
  /** Over the whole conversation: rounds with a draft, and how many of them accepted a token at depth 1, 2, … */
  #drafts = 0;
  #perPosition = [];
  /** Of rounds by rows: how many, and what their passes took, in plain tokens. */
  #passes = new Map();
  #cost = [];
  #timer = null;

  constructor(document) {
    this.#document = document;
    this.#draw();
  }

  /** Pairs of rows and seconds, as measured when the server started. */
  set cost(points) {
    this.#cost = points;
    this.#draw();
  }

  /** A new conversation. */
  clear() {
    this.#latest = [];
    this.#drafts = 0;
    this.#perPosition = [];
    this.#passes.clear();
    this.begin();
    this.#draw();
  }

  /** A new answer. */
  begin() {
    this.#counts = new Counts();
    this.#latest = [];
    this.#soon();
  }

  /** A round, or the end of a prompt (`null`), after which the answer has so many tokens. */
  add(round, tokens) {
    this.#counts.add(round, tokens, performance.now());
    if (round) {
      this.#latest.push({ ...round, number: this.#counts.rounds });
      if (this.#latest.length > PLOTTED_ROUNDS) this.#latest.shift();
      this.#drafts += round.rows > 1;
      for (let at = 0; at < round.accepted; at++) this.#perPosition[at] = (this.#perPosition[at] ?? 0) + 1;
      if (round.plain_tps) {
        const [passes, sum] = this.#passes.get(round.rows) ?? [0, 0];
        this.#passes.set(round.rows, [passes + 1, sum + round.plain_tps * round.pass_s]);
      }
    }
    this.#soon();
  }

  /** The answer is over: what to say of it. */
  end() {
    this.#draw();
    return this.#counts.toString();
  }

  #soon() {
    this.#timer ??= setTimeout(() => this.#draw(), PAUSE);
  }

  #draw() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const counts = this.#counts;
    const set = (id, text) => (this.#document.getElementById(id).textContent = text);
    set("rate", fixed(counts.rate));
    set("gain", counts.drafted ? fixed(counts.gain, 2) : "–");
    set("per-round", fixed(counts.perRound, 2));
    set("accepted", counts.drafted ? `${counts.accepted} of ${counts.drafted}` : "–");
    set("strip", counts.rounds ? counts.toString() : "");
    this.#document.getElementById("no-rounds").hidden = this.#latest.length > 0;
    const rounds = this.#document.getElementById("rounds");
    rounds.replaceChildren(...this.#latest.slice(-SHOWN_ROUNDS).reverse().map((round) => this.#item(round)));
    const plot = (id, children) => this.#document.getElementById(id).replaceChildren(...children);
    plot("rounds-plot", roundsPlot(this.#latest, PLOTTED_ROUNDS));
    const seen = [...this.#passes].map(([rows, [passes, sum]]) => ({ rows, passes, cost: sum / passes }));
    plot("cost-plot", costPlot(this.#cost, seen));
    plot("acceptance-plot", acceptancePlot(this.#perPosition, this.#drafts));
  }

  #item(round) {
    const item = this.#document.createElement("li");
    item.value = round.number;
    const line = (name, text) => {
      const made = this.#document.createElement(name);
      made.textContent = text;
      item.append(made);
    };
    const drafters = Object.entries(round.drafted).map(([name, n]) => `${name} ${n}`);
    const drafted = round.rows - 1;
    line("b", drafted ? `${drafters.join(", ")}: ${round.accepted} accepted` : "plain");
    line("span", drafted ? expected(round) : PLAIN[round.plain] ?? "nothing was drafted");
    return item;
  }
}

/** Why there was a draft. */
function expected(round) {
  if (!round.plain_tps) return "drafts are made in every round";
  const price = round.predicted_s * round.plain_tps;
  return `expected ${fixed(round.predicted_tokens)} tokens in the time of ${fixed(price)}; took that of ` +
    fixed((round.draft_s + round.pass_s) * round.plain_tps);
}
