// Pictures of measurements, and the same as tables.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320;

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function html(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function label(x, y, text, anchor = "middle", kind = "label") {
  return svg("text", { x, y, "text-anchor": anchor, class: kind }, text);
}

/** A picture that says of itself what it shows. */
function picture(height, title, children) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": title }, ...children);
}

const cells = (kind, values) => html("tr", ...values.map((value) => html(kind, String(value))));

/** Shows a picture, what it is, and the same as a table that is folded away. What can have the focus stays when it is drawn anew. */
function show(figure, picture, caption, heads, rows) {
  if (!figure.querySelector("svg")) {
    const table = html("table", html("thead", cells("th", heads)), html("tbody"));
    figure.replaceChildren(svg("svg"), html("figcaption"), html("details", html("summary", "As a table"), table));
  }
  figure.querySelector("svg").replaceWith(picture);
  figure.querySelector("figcaption").textContent = caption;
  figure.querySelector("tbody").replaceChildren(...rows.map((row) => cells("td", row)));
}

/** Says why there is no picture. */
function say(figure, text) {
  const made = html("p", text);
  made.className = "note";
  figure.replaceChildren(made);
}

/** The latest rounds, one bar each: the model's own token, accepted drafts upon it, rejected ones above, hollow. There is room for so many. */
export function roundsPlot(figure, rounds, room) {
  if (!rounds.length) return say(figure, "What the controller chose for each round, and why, appears here.");
  const height = 64;
  const most = Math.max(4, ...rounds.map((round) => round.rows));
  const unit = (height - 4) / most;
  const step = WIDTH / room;
  const bars = rounds.flatMap((round, at) => {
    const x = at * step + 0.75;
    const bar = (from, tokens, kind) => svg("rect",
      { x, y: height - 1 - (from + tokens) * unit, width: step - 1.5, height: Math.max(0, tokens * unit - 0.5), class: kind });
    const own = round.tokens - round.accepted;
    const rejected = round.rows - 1 - round.accepted;
    return [
      own > 0 && bar(0, own, "own"),
      round.accepted > 0 && bar(own, round.accepted, "took"),
      rejected > 0 && bar(round.tokens, rejected, "lost"),
    ].filter(Boolean);
  });
  const drafted = rounds.filter((round) => round.rows > 1).length;
  const tokens = rounds.reduce((sum, round) => sum + round.tokens, 0);
  const title = `The last ${rounds.length} rounds: ${drafted} with a draft, ${tokens} tokens`;
  figure.replaceChildren(picture(height, title, bars),
    html("figcaption", `${title}. Solid: accepted; grey: the model’s own; hollow: rejected.`));
}

/** What a pass over n rows costs, in passes over one: as measured at start (`points`, in seconds), and in rounds (`seen`). */
export function costPlot(figure, points, seen) {
  if (points.length < 2) return say(figure, "What passes cost is not known.");
  const one = points[0][1];
  const measured = points.map(([rows, seconds]) => ({ rows, cost: seconds / one }));
  const seenCost = new Map(seen.map((of) => [of.rows, of]));
  const most = measured.at(-1).rows;
  const shown = seen.filter((of) => of.rows <= most);
  const highest = Math.max(2, ...measured.map((p) => p.cost), ...shown.map((of) => Math.min(of.cost, 8))) * 1.05;
  const [left, right, top, bottom] = [24, WIDTH - 10, 8, 128];
  const x = (rows) => left + ((rows - 1) / (most - 1)) * (right - left);
  const y = (cost) => bottom - (Math.min(cost, highest) / highest) * (bottom - top);
  const every = Math.max(1, Math.ceil(highest / 5));
  const ticks = Array.from({ length: Math.floor(highest / every) }, (_, at) => (at + 1) * every);
  const edge = Math.min(most, highest);
  const path = measured.map((p, at) => `${at ? "L" : "M"}${x(p.rows)} ${y(p.cost)}`).join("");
  const four = measured.find((p) => p.rows === 4);
  const title = "What a pass over n rows costs, in passes over one";
  const children = [
    ...ticks.flatMap((tick) => [
      svg("path", { d: `M${left} ${y(tick)}H${right}`, class: "grid" }),
      label(left - 5, y(tick) + 3.5, tick, "end"),
    ]),
    svg("path", { d: `M${left} ${bottom}H${right}`, class: "axis" }),
    ...[1, 2, 4, 8, 12, 16].filter((n) => n <= most).map((n) => label(x(n), bottom + 14, n)),
    svg("path", { d: `M${x(1)} ${y(1)}L${x(edge)} ${y(edge)}`, class: "proportional" }),
    svg("path", { d: path, class: "curve" }),
    ...measured.map((p) => svg("circle", { cx: x(p.rows), cy: y(p.cost), r: 2.6, class: "point" })),
    ...shown.map((of) => svg("circle", { cx: x(of.rows), cy: y(of.cost), r: 4, class: "seen" })),
    label(right, bottom + 27, "rows of the pass", "end"),
  ];
  const sentence = four ? ` Over 4 rows it is ${four.cost.toFixed(2)}: so many tokens must come of it to pay.` : "";
  const rows = [...new Set([...measured, ...seen].map((p) => p.rows))].sort((a, b) => a - b);
  const at = new Map(measured.map((p) => [p.rows, p.cost.toFixed(2)]));
  show(figure, picture(bottom + 32, title, children),
    `${title}. Dots: at start; rings: this conversation’s rounds; dashed: n times one row.${sentence}`,
    ["rows", "at start", "in rounds", "rounds"],
    rows.map((n) => [n, at.get(n) ?? "–", seenCost.get(n)?.cost.toFixed(2) ?? "–", seenCost.get(n)?.passes ?? 0]));
}

/** How many of the rounds with a draft accepted a token at position 1, 2, … */
export function acceptancePlot(figure, perPosition, drafts) {
  if (!drafts) return say(figure, "How often the first, second, third … token of a draft is accepted appears here.");
  const shares = Array.from({ length: Math.max(4, perPosition.length) }, (_, at) => (perPosition[at] ?? 0) / drafts);
  const [left, right, top, bottom] = [42, WIDTH - 4, 16, 116];
  const step = (right - left) / shares.length;
  const y = (share) => bottom - share * (bottom - top);
  const percent = (share) => `${Math.round(100 * share)} %`;
  const title = "Drafts that were accepted up to this position";
  const children = [
    ...[0.5, 1].flatMap((share) => [
      svg("path", { d: `M${left} ${y(share)}H${right}`, class: "grid" }),
      label(left - 5, y(share) + 3.5, percent(share), "end"),
    ]),
    svg("path", { d: `M${left} ${bottom}H${right}`, class: "axis" }),
    ...shares.map((share, at) => svg("rect",
      { x: left + (at + 0.15) * step, y: y(share), width: 0.7 * step, height: share * (bottom - top), class: "took" })),
    ...shares.map((share, at) => shares.length <= 10 &&
      label(left + (at + 0.5) * step, y(share) - 4, Math.round(100 * share), "middle", "value")).filter(Boolean),
    ...shares.map((_, at) => label(left + (at + 0.5) * step, bottom + 14, at + 1)),
    label(right, bottom + 27, "position in the draft", "end"),
  ];
  show(figure, picture(bottom + 32, title, children),
    `${title}: of ${drafts} ${drafts === 1 ? "round" : "rounds"} of this conversation with a draft.`,
    ["position", "accepted", "share"],
    shares.map((share, at) => [at + 1, perPosition[at] ?? 0, percent(share)]));
}
