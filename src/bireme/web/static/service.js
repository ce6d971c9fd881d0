// A service's page: its traffic of the last hour, the canary's slider, a request to try, a key that is shown once.
// @ts-check
import { api } from "./actions.js";
import { made, showSliders, there } from "./making.js";
import { Board } from "./plot.js";

/** @typedef {{metric: string, unit: string, mean: (number | null)[]}} Curve */

const EVERY_MS = 5_000;
/** @type {[string, [string, string][]][]} */
const ROWS = [
  ["requests", [["requests", "all"], ["errors", "errors"]]],
  ["time to answer", [["latency_p50", "half under"], ["latency_p90", "90% under"], ["latency_p99", "99% under"]]],
  ["at once", [["in_flight", "in flight"], ["queued", "queued"]]],
];

const place = there("traffic");
const name = place.dataset.service ?? "";
/** @type {Board | null} */
let board = null;

async function traffic() {
  try {
    const told = await api(`/v1/services/${encodeURIComponent(name)}/traffic`);
    if (told.curves.length === 0) {
      place.replaceChildren(made("p", { class: "quiet", text: "Nothing was heard of it since the daemon started." }));
      board = null;
      return;
    }
    const lanes = ROWS.map(([title, parts]) => lane(title, parts, told));
    const window = { first: told.start, final: told.end, last: told.now, label: `Traffic of ${name}` };
    if (board === null) {
      place.replaceChildren();
      board = new Board(place, lanes, window);
    } else {
      board.update(lanes, window);
    }
  } catch (error) {
    place.replaceChildren(made("p", { class: "quiet", text: error instanceof Error ? error.message : String(error) }));
    board = null;
  }
}

/** @param {string} title @param {[string, string][]} parts @param {{start: number, step_s: number, curves: Curve[]}} told */
function lane(title, parts, told) {
  const found = parts.map(([metric, label]) => ({ label, curve: told.curves.find((each) => each.metric === metric) }));
  const lines = found.flatMap(({ label, curve }) => curve ? [{ name: label, start: told.start, step_s: told.step_s, mean: curve.mean }] : []);
  return { name: title, title, unit: found[0].curve?.unit ?? "", lines };
}

/** @param {SubmitEvent} event */
async function tryIt(event) {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target), said = new FormData(form), place = there("tried");
  const text = (/** @type {string} */ field) => String(said.get(field) ?? "");
  /** @type {Record<string, string>} */
  const headers = text("body") ? { "Content-Type": isJson(text("body")) ? "application/json" : "text/plain" } : {};
  if (text("key")) {
    headers.Authorization = `Bearer ${text("key")}`;
  }
  form.setAttribute("aria-busy", "true");
  try {
    const body = { method: text("method"), path: text("path"), headers, body: text("body") };
    const told = await api(`/v1/services/${encodeURIComponent(form.dataset.service ?? "")}/try`, body);
    const kind = told.status < 400 ? "good" : "bad";
    place.replaceChildren(
      made("p", {}, made("span", { class: `state ${kind}`, text: String(told.status) }), ` in ${(told.took_s * 1000).toFixed(0)} ms${told.cut ? ", cut" : ""}`),
      made("details", {}, made("summary", { text: "Headers" }),
        made("pre", { tabindex: "0", text: told.headers.map((/** @type {string[]} */ each) => each.join(": ")).join("\n") })),
      made("pre", { tabindex: "0", text: pretty(told.body) }));
  } catch (error) {
    place.replaceChildren(made("p", { class: "warning", text: error instanceof Error ? error.message : String(error) }));
  } finally {
    form.removeAttribute("aria-busy");
  }
}

/** @param {string} text */
function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** @param {string} text */
const pretty = (text) => (isJson(text) ? JSON.stringify(JSON.parse(text), null, 2) : text);

document.getElementById("try")?.addEventListener("submit", (event) => tryIt(/** @type {SubmitEvent} */ (event)));
document.getElementById("add-key")?.addEventListener("bireme:done", (event) => {
  const shown = there("made-key"), code = shown.querySelector("code");
  if (code !== null) {
    code.textContent = /** @type {CustomEvent} */ (event).detail.key;
  }
  shown.hidden = false;
});
showSliders();
traffic();
setInterval(() => document.hidden || traffic(), EVERY_MS);
