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

const $ = (id) => document.getElementById(id);
const fixed = (value, digits = 1) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

/** One answer's counts. */
class Counts {
  tokens = 0;
  rounds = 0;
  decided = 0;
  drafted = 0;
  accepted = 0;
  /** Of all rounds. */
  seconds = 0;
  #first = null;
  #last = null;

  add(round, tokens, now) {
    this.tokens = tokens;
    this.#first ??= { tokens, now };
    this.#last = { tokens, now };
    if (!round) return;
    this.rounds += 1;
    this.decided += round.tokens;
    this.drafted += round.rows - 1;
    this.accepted += round.accepted;
    this.seconds += round.draft_s + round.pass_s;
  }

  /** Tokens per second after the first one. */
  get rate() {
    const seconds = this.#first && (this.#last.now - this.#first.now) / 1000;
    return seconds ? (this.#last.tokens - this.#first.tokens) / seconds : NaN;
  }

  /** How many times as fast as tokens that take so long each. */
  gain(plainSeconds) {
    return this.drafted ? (this.decided * plainSeconds) / this.seconds : NaN;
  }

  get perRound() {
    return this.decided / this.rounds;
  }

  /** In a few words. */
  words(plainSeconds) {
    const parts = [count(this.tokens, "token")];
    if (Number.isFinite(this.rate)) parts.push(`${fixed(this.rate)} tokens/s`);
    if (this.rounds) parts.push(`${fixed(this.perRound)} tokens per round`);
    if (this.drafted) parts.push(`${this.accepted} of ${count(this.drafted, "draft")} accepted`);
    const gain = this.gain(plainSeconds);
    if (Number.isFinite(gain)) parts.push(`${fixed(gain, 2)} times plain decoding`);
    return parts.join(" · ");
  }
}

export class Figures {
  #counts = new Counts();
  #latest = [];
  /** Over the whole conversation: rounds with a draft, and how many of them accepted a token at depth 1, 2, … */
  #drafts = 0;
  #perPosition = [];
  /** Of rounds by rows: how many, and the seconds of their passes. */
  #passes = new Map();
  /** Tokens per second of plain decoding, as the controller saw it last. */
  #plainRate = NaN;
  #cost = [];
  #timer = null;
  #running = false;

  constructor() {
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
    this.#counts = new Counts();
    this.#draw();
  }

  /** A new answer. */
  begin() {
    this.#counts = new Counts();
    this.#latest = [];
    this.#running = true;
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
      const [passes, sum] = this.#passes.get(round.rows) ?? [0, 0];
      this.#passes.set(round.rows, [passes + 1, sum + round.pass_s]);
      this.#plainRate = round.plain_tps ?? this.#plainRate;
    }
    this.#soon();
  }

  /** The answer is over: what to say of it. */
  end() {
    this.#running = false;
    this.#draw();
    return this.#counts.words(this.#plainSeconds);
  }

  /** Seconds of a token without drafts: as rounds without one took, or as the controller has it. */
  get #plainSeconds() {
    const [passes, sum] = this.#passes.get(1) ?? [0, 0];
    return passes ? sum / passes : 1 / this.#plainRate;
  }

  #soon() {
    this.#timer ??= setTimeout(() => this.#draw(), PAUSE);
  }

  #draw() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const counts = this.#counts;
    const plain = this.#plainSeconds;
    const set = (id, text) => ($(id).textContent = text);
    set("rate", fixed(counts.rate));
    set("gain", fixed(counts.gain(plain), 2));
    set("per-round", fixed(counts.perRound, 2));
    set("accepted", counts.drafted ? `${counts.accepted} of ${counts.drafted}` : "–");
    set("strip", this.#running && counts.rounds ? counts.words(plain) : "");
    const groups = grouped(this.#latest).slice(-SHOWN_ROUNDS).reverse();
    $("rounds").replaceChildren(...groups.map((group) => this.#item(...group)));
    roundsPlot($("rounds-plot"), this.#latest, PLOTTED_ROUNDS);
    const seen = [...this.#passes].map(([rows, [passes, sum]]) => ({ rows, passes, cost: sum / passes / plain }));
    costPlot($("cost-plot"), this.#cost, seen.filter((of) => of.cost > 0));
    acceptancePlot($("acceptance-plot"), this.#perPosition, this.#drafts);
  }

  #item(round, times) {
    const item = document.createElement("li");
    item.value = round.number;
    const line = (name, text) => {
      const made = document.createElement(name);
      made.textContent = text;
      item.append(made);
    };
    const drafters = Object.entries(round.drafted).map(([name, n]) => `${name} ${n}`);
    const drafted = round.rows - 1;
    line("b", drafted ? `${drafters.join(", ")}: ${round.accepted} accepted` : count(times, "plain round"));
    line("span", drafted ? expected(round) : PLAIN[round.plain] ?? "nothing was drafted");
    return item;
  }
}

/** Rounds, plain ones for the same reason together: the last of each group, and how many they are. */
function grouped(rounds) {
  const groups = [];
  for (const round of rounds) {
    const last = groups.at(-1);
    if (last && round.rows === 1 && last[0].rows === 1 && last[0].plain === round.plain) groups.splice(-1, 1, [round, last[1] + 1]);
    else groups.push([round, 1]);
  }
  return groups;
}

/** Why there was a draft. */
function expected(round) {
  if (!round.plain_tps) return "drafts are made in every round";
  const price = round.predicted_s * round.plain_tps;
  return `expected ${fixed(round.predicted_tokens)} tokens in the time of ${fixed(price)} plain ones; took that of ` +
    fixed((round.draft_s + round.pass_s) * round.plain_tps);
}
