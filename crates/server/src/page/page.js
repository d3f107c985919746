// The conversation: what is asked, what comes, what went wrong.

import { ApiError, chat, model } from "./api.js";
import { Figures } from "./figures.js";
import { Passage } from "./passage.js";

const $ = (id) => document.getElementById(id);
const figures = new Figures();

/** Settings that a tab keeps until it is closed. The key is one of them: it is written nowhere else. */
const KEPT = ["key", "system", "temperature", "max-tokens", "speculation", "show-rejected"];
/** Milliseconds until a server that is not there yet is asked again. */
const AGAIN = 1500;
/** Pixels from the end within which reading is following. */
const NEAR = 48;

/** What was said so far: pairs of a question and an answer. */
let turns = [];
/** The element of an exchange that came to nothing; it goes when the next one comes. */
let failed = null;
/** Stops the answer that is being given; `null` if there is none. */
let running = null;

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function button(text, action) {
  const made = element("button", "quiet", text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

// Settings.

const property = (input) => (input.type === "checkbox" ? "checked" : "value");

function restore() {
  for (const id of KEPT) {
    const kept = stored(id);
    // Which drafters there are the server tells later.
    if (kept !== null && id !== "speculation") $(id)[property($(id))] = JSON.parse(kept);
    $(id).addEventListener("change", () => store(id, JSON.stringify($(id)[property($(id))])));
  }
}

// Where a browser keeps nothing the page works too.
function stored(id) {
  try {
    return sessionStorage.getItem("foretoken:" + id);
  } catch {
    return null;
  }
}

function store(id, value) {
  try {
    sessionStorage.setItem("foretoken:" + id, value);
  } catch {}
}

function openSettings(focus) {
  $("settings").showModal();
  if (focus) $(focus).focus();
}

// The server.

function notice(text, ...more) {
  const shown = $("notice");
  // What was said already is not announced again.
  if (shown.firstChild?.textContent !== text) shown.replaceChildren(text, ...more);
  shown.hidden = !text;
}

let retry;

async function connect() {
  clearTimeout(retry);
  try {
    const served = await model($("key").value);
    notice("");
    $("model").textContent = `${served.id}, ${served.context_length} tokens of context`;
    document.title = `${served.id} – foretoken`;
    figures.cost = served.pass_seconds;
    offer(served.drafters);
  } catch (error) {
    if (error.status === 401) {
      notice(sentence(error.message), " ", button("Enter the key", () => openSettings("key")));
    } else {
      notice(sentence(error.message));
      retry = setTimeout(connect, AGAIN);
    }
  }
}

/** Offers the drafters that the server has. */
function offer(drafters) {
  const select = $("speculation");
  const chosen = JSON.parse(stored("speculation") ?? "null") ?? select.value;
  for (const option of select.querySelectorAll("[data-drafter]")) option.remove();
  for (const name of drafters) {
    const option = element("option", "", `${name} alone`);
    option.value = name;
    option.dataset.drafter = name;
    select.lastElementChild.before(option);
  }
  select.value = [...select.options].some((option) => option.value === chosen) ? chosen : "auto";
  for (const mark of $("legend").querySelectorAll("[data-source]")) {
    mark.hidden = !drafters.includes(mark.dataset.source);
  }
}

/** A message of the server's as a sentence. */
function sentence(text) {
  return /[.!?…]$/.test(text) ? text : text + ".";
}

// The conversation.

function request(question) {
  const system = $("system").value.trim();
  const message = (role, content) => ({ role, content });
  const number = (id) => ($(id).value === "" ? null : Number($(id).value));
  const speculation = $("speculation").value;
  return {
    messages: [
      ...(system ? [message("system", system)] : []),
      ...turns.flatMap((turn) => [message("user", turn.question), message("assistant", turn.answer)]),
      message("user", question),
    ],
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    speculation: speculation === "auto" ? true : speculation === "none" ? false : { drafter: speculation },
    return_drafts: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
}

async function send() {
  const question = $("message").value;
  if (running || !question.trim()) return;
  const wrong = ["temperature", "max-tokens"].find((id) => !$(id).checkValidity());
  if (wrong) {
    openSettings(wrong);
    $(wrong).reportValidity();
    return;
  }
  const body = request(question);
  // Of the conversation that this is: there may be a new one before the answer ends.
  const said = turns;
  failed?.remove();
  failed = null;
  $("welcome").hidden = true;
  $("message").value = "";
  const { exchange, root, foot } = addExchange(question);
  const answer = new Passage(root);
  running = new AbortController();
  busy(true);
  figures.begin();
  const { finish, problem } = await receive(body, answer);
  const stopped = running.signal.aborted;
  running = null;
  root.classList.remove("growing");
  const summary = figures.end();
  const kept = answer.text !== "" || finish !== null;
  if (kept) {
    said.push({ question, answer: answer.text });
  } else if (exchange.isConnected) {
    root.remove();
    exchange.classList.add("failed");
    failed = exchange;
    // Nothing that was typed is lost.
    if (!$("message").value) $("message").value = question;
  }
  follow(() => {
    if (kept) foot.append(element("span", "", [summary, ending(finish, stopped)].filter(Boolean).join(" · ")), copyButton(answer));
    else if (stopped) foot.append(element("span", "", "stopped before the answer began"));
    if (problem) foot.before(complaint(problem));
  });
  busy(false);
  $("status").textContent = problem ? "" : stopped ? "Stopped." : `Answer complete: ${summary}.`;
}

/** Takes in an answer as it comes, and says how it ended. */
async function receive(body, answer) {
  let finish = null;
  try {
    for await (const chunk of chat(body, $("key").value, running.signal)) {
      const choice = chunk.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      follow(() => {
        for (const round of choice.drafts ?? []) {
          answer.add(round);
          figures.add(round.round, chunk.usage.completion_tokens);
        }
      });
    }
  } catch (error) {
    return { finish, problem: error.name === "AbortError" ? null : error };
  }
  return { finish, problem: null };
}

function addExchange(question) {
  const number = $("conversation").querySelectorAll(".exchange").length + 1;
  const asked = element("div", "question");
  new Passage(asked).add({ text: [{ text: question, source: null }], rejected: "" });
  const root = element("div", "answer growing");
  const foot = element("p", "foot");
  const exchange = element("section", "exchange", element("h2", "", "You"), asked, element("h2", "", "Model"), root, foot);
  exchange.setAttribute("aria-label", `Exchange ${number}`);
  $("conversation").append(exchange);
  $("conversation").scrollTop = $("conversation").scrollHeight;
  return { exchange, root, foot };
}

/** How an answer ended, where that needs saying. */
function ending(finish, stopped) {
  if (stopped) return "stopped";
  return finish === "length" ? "cut at the most tokens that it may have" : "";
}

function complaint(error) {
  const made = element("div", "error", sentence(error instanceof ApiError ? error.message : `The page failed: ${error.message}`));
  made.setAttribute("role", "alert");
  if (error.status === 401) made.append(" ", button("Enter the key", () => openSettings("key")));
  return made;
}

function copyButton(answer) {
  const made = button("Copy", async () => {
    const copied = navigator.clipboard.writeText(answer.text);
    const said = await copied.then(() => "Copied", () => "Not copied");
    $("status").textContent = said + ".";
    made.textContent = said;
  });
  // Browsers have a clipboard for pages of this machine, or over TLS.
  made.hidden = !navigator.clipboard;
  return made;
}

/** Does what makes the conversation longer, and stays at its end if that is where the reader is. */
function follow(grow) {
  const view = $("conversation");
  const near = view.scrollHeight - view.scrollTop - view.clientHeight < NEAR;
  grow();
  if (near) view.scrollTop = view.scrollHeight;
}

function busy(is) {
  $("conversation").setAttribute("aria-busy", is);
  $("stop").hidden = !is;
  $("send").hidden = is;
  if (is) $("status").textContent = "Answering.";
  // The button that had the focus may be gone.
  if ([document.body, $("send"), $("stop")].includes(document.activeElement)) $("message").focus();
}

function stop() {
  running?.abort();
}

function clear() {
  stop();
  turns = [];
  failed = null;
  $("conversation").querySelectorAll(".exchange").forEach((exchange) => exchange.remove());
  $("welcome").hidden = false;
  figures.clear();
  $("message").focus();
}

// What the user does.

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("settings").open) stop();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", clear);
$("settings-button").addEventListener("click", () => openSettings());
$("settings-close").addEventListener("click", () => $("settings").close());
$("settings").addEventListener("close", connect);
$("panel-button").addEventListener("click", () => {
  const shown = document.body.classList.toggle("panel-shown");
  $("panel-button").setAttribute("aria-expanded", shown);
});
for (const example of document.querySelectorAll(".examples button")) {
  example.addEventListener("click", () => {
    $("message").value = example.textContent;
    $("message").focus();
  });
}

function showRejected() {
  document.body.classList.toggle("rejected-hidden", !$("show-rejected").checked);
}
$("show-rejected").addEventListener("change", showRejected);

restore();
showRejected();
connect();
