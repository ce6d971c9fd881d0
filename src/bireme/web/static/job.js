// The Job page: all of a job on one axis, its output with times, what a change would do, script and variables.
// @ts-check
import { api, ApiError, tell } from "./actions.js";
import { onKey } from "./keys.js";
import { drawTimeline } from "./timeline.js";

const FOLLOW_MS = 5_000;
const LINES = 800;
const article = /** @type {HTMLElement} */ (document.querySelector("article[data-job]"));
const path = article.dataset.path ?? "";

// -- all of it on one axis -------------------------------------------------------------------------------------------

/** @type {import("./plot.js").Board | null} */
let board = null;

function plot() {
  const told = JSON.parse(document.getElementById("timeline-data")?.textContent ?? "null");
  const holder = document.getElementById("board");
  if (told === null || holder === null || told.lanes === undefined) {
    return;
  }
  board = drawTimeline(holder, told, board);
}

document.querySelector("[data-part=timeline_part]")?.addEventListener("bireme:part", plot);
document.addEventListener("bireme:theme", () => board?.draw());

// -- its output ------------------------------------------------------------------------------------------------------

const log = /** @type {HTMLElement} */ (article.querySelector(".log"));
const said = /** @type {HTMLElement} */ (article.querySelector("[data-log-said]"));
const follow = /** @type {HTMLInputElement} */ (article.querySelector("[data-follow]"));
const find = /** @type {HTMLInputElement} */ (article.querySelector("[data-find]"));
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
let [stream, aim] = ["out", 0];

async function read() {
  if (document.getElementById("job-kind")?.dataset.kind === "wait") {
    said.textContent = "It has not started: there is no output yet.";
    return;
  }
  try {
    const told = await api(`${path}/log?stream=${stream}&lines=${LINES}${aim > 0 ? `&around=${aim}` : ""}`);
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    log.replaceChildren(...rows(told));
    said.textContent = told.problem || (told.lines.length === 0 ? `Nothing is in ${told.path} yet.` : told.path);
    if (aim > 0) {
      log.querySelector(".aim")?.scrollIntoView({ block: "center" });
    } else if (atEnd && follow.checked) {
      log.scrollTop = log.scrollHeight;
    }
    mark();
  } catch (error) {
    said.textContent = error instanceof Error ? error.message : String(error);
  }
}

/** @param {{lines: {number: number, text: string, start: number | null, end: number | null, source: string}[], skipped: number}} told */
function rows(told) {
  /** @type {HTMLElement[]} */
  const found = [];
  let before = 0;
  told.lines.forEach((line, at) => {
    const isBehindGap = told.skipped > 0 && (aim > 0 ? at === 0 : before > 0 && line.number !== before + 1);
    if (isBehindGap) {
      const gap = document.createElement("div");
      gap.className = "gap";
      gap.textContent = `${told.skipped.toLocaleString()} bytes are not shown: bireme logs has all`;
      found.push(gap);
    }
    before = line.number || before + 1;
    const row = document.createElement("div");
    row.className = line.number === aim && aim > 0 ? "line aim" : "line";
    const [number, when, text] = [document.createElement("span"), document.createElement("span"), document.createElement("code")];
    number.textContent = line.number > 0 ? String(line.number) : "";
    if (line.end !== null) {
      when.textContent = CLOCK.format(line.end * 1000);
      when.title = line.source === "own" ? "as the line says" : `written between ${new Date((line.start ?? line.end) * 1000).toLocaleString()} and ${new Date(line.end * 1000).toLocaleString()}`;
    }
    text.textContent = visible(line.text);
    row.append(number, when, text);
    found.push(row);
  });
  return found;
}

/** Colours of terminals go, other control characters are seen. @param {string} text */
function visible(text) {
  return text
    .replace(/\u001b\[[0-9;]*m/g, "")
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function mark() {
  const wanted = find.value.toLowerCase();
  let first = null;
  for (const row of log.querySelectorAll(".line")) {
    const has = wanted !== "" && (row.lastElementChild?.textContent ?? "").toLowerCase().includes(wanted);
    row.classList.toggle("found", has);
    first ??= has ? row : null;
  }
  return first;
}

find.addEventListener("input", () => mark()?.scrollIntoView({ block: "nearest" }));
for (const button of article.querySelectorAll("button[data-stream]:not([data-line])")) {
  button.addEventListener("click", () => look(button.getAttribute("data-stream") ?? "out", 0));
}
article.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("button[data-line]") : null;
  if (button !== null) {
    look(button.getAttribute("data-stream") ?? "out", Number(button.getAttribute("data-line")));
    document.getElementById("log")?.scrollIntoView({ block: "start" });
    log.focus({ preventScroll: true });
  }
});

/** @param {string} which @param {number} line */
function look(which, line) {
  [stream, aim] = [which, line];
  for (const button of article.querySelectorAll("button[data-stream]:not([data-line])")) {
    button.setAttribute("aria-pressed", String(button.getAttribute("data-stream") === which));
  }
  if (line > 0) {
    follow.checked = false;
  }
  read();
}

follow.addEventListener("change", () => {
  aim = 0;
  log.scrollTop = log.scrollHeight;
  read();
});
setInterval(() => follow.checked && !document.hidden && read(), FOLLOW_MS);
document.querySelector("[data-part=job_head]")?.addEventListener("bireme:part", () => aim === 0 && read());
onKey("l", () => {
  document.getElementById("log")?.scrollIntoView();
  log.focus({ preventScroll: true });
});
read().then(() => {
  log.scrollTop = follow.checked ? log.scrollHeight : 0;
});

// -- another time limit: what it would do is planned as it is typed --------------------------------------------------

const form = /** @type {HTMLFormElement | null} */ (article.querySelector("form[data-limit]"));
let asking = 0;

form?.addEventListener("input", () => {
  clearTimeout(asking);
  asking = setTimeout(foresee, 350);
});
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  event.stopImmediatePropagation();
  try {
    await api(`${path}/update`, { changes: { time_limit_s: wanted() } });
    tell("The time limit was changed.");
  } catch (error) {
    tell(error instanceof Error ? error.message : String(error), "bad");
  }
});

const wanted = () => Math.round(60 * Number(/** @type {HTMLInputElement} */ (form?.elements.namedItem("minutes")).value));

async function foresee() {
  const place = form?.querySelector("output");
  if (!place || !(wanted() > 0)) {
    return;
  }
  place.textContent = "planning …";
  try {
    const told = await api(`${path}/foresee`, { verb: "update", changes: { time_limit_s: wanted() } });
    const start = (/** @type {number | null} */ at) => (at === null ? "not known" : at <= told.now + 1 ? "at once" : new Date(at * 1000).toLocaleString());
    const own = told.before === null && told.after === null ? "" : told.before === told.after ? `it starts as it would: ${start(told.after)}` : `it would start ${start(told.after)} (now: ${start(told.before)})`;
    const others = told.earlier === null ? "" : told.earlier + told.later === 0 ? "no other job's start changes" : `of others ${told.earlier} start sooner and ${told.later} later`;
    place.textContent = [own, others].filter(Boolean).join("; ");
  } catch (error) {
    place.textContent = error instanceof ApiError ? error.message : String(error);
  }
}

// -- what is read when somebody opens it -----------------------------------------------------------------------------

for (const details of /** @type {NodeListOf<HTMLDetailsElement>} */ (article.querySelectorAll("details[data-lazy]"))) {
  details.addEventListener("toggle", async () => {
    const place = details.querySelector("pre");
    if (!details.open || place === null || place.textContent !== "") {
      return;
    }
    try {
      const told = await api(details.dataset.lazy ?? "");
      place.textContent = typeof told === "string" ? told : Object.entries(told.variables ?? {}).map(([name, value]) => `${name}=${value}`).join("\n");
    } catch (error) {
      place.textContent = error instanceof Error ? error.message : String(error);
    }
  });
}
plot();
