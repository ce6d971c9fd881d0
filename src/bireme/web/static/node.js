// The history of a node and its GPUs: curves of the time that is chosen, drawn again as new samples come.
// @ts-check
import { api } from "./actions.js";
import { made, there } from "./making.js";
import { Board } from "./plot.js";

/** @typedef {{metric: string, unit: string, start: number, step_s: number, mean: (number | null)[], low: (number | null)[], high: (number | null)[]}} Curve */

/** @type {[string, number][]} */
const RANGES = [["1 hour", 3600], ["6 hours", 21600], ["1 day", 86400], ["7 days", 604800], ["30 days", 2592000]];
/** @type {Record<string, string>} */
const OF_NODE = { node_cpu: "CPUs busy", node_memory_used: "memory", node_load: "load", node_network_received: "received", node_network_sent: "sent" };
/** @type {Record<string, [string, number?]>} */
const OF_GPU = { gpu_sm_active: ["SMs active", 100], gpu_tensor_active: ["tensor cores", 100], gpu_util: ["GPU util", 100],
  gpu_memory_used: ["GPU memory"], gpu_power: ["power"], gpu_temperature: ["heat"] };
const MOST_GPUS = 8, FRESH_MS = 10_000;

const place = there("history");
const node = place.dataset.node ?? "";
let range = 3600;
/** @type {Board | null} */
let board = null;
let drawnAt = 0;
const holder = made("div");
const note = made("p", { class: "quiet", role: "status" });

/** @param {Record<string, string>} params @returns {Promise<Curve[]>} */
async function curves(params) {
  const told = await api(`/v1/telemetry/series?${new URLSearchParams(params)}`);
  return told.curves;
}

/** When the first figure is of. @param {import("./plot.js").Lane[]} found */
function beginning(found) {
  const begins = found.flatMap((lane) => lane.lines ?? []).map((line) => line.start + line.step_s * line.mean.findIndex((value) => value !== null));
  return Math.min(Infinity, ...begins);
}

/** @param {(number | null)[]} values */
const isKnown = (values) => values.some((value) => value !== null);

/** @param {number} start @param {number} end */
async function lanes(start, end) {
  const span = { start: String(start), end: String(end), points: "400" };
  const gpus = [...document.querySelectorAll("a[data-gpu]")].slice(0, MOST_GPUS)
    .map((link) => ({ name: `GPU ${link.textContent}`, uuid: link.getAttribute("data-gpu") ?? "" }));
  const [own, ...each] = await Promise.all([
    curves({ node, metrics: Object.keys(OF_NODE).join(","), ...span }),
    ...gpus.map((gpu) => curves({ node, gpu: gpu.uuid, metrics: Object.keys(OF_GPU).join(","), ...span })),
  ]);
  /** @type {import("./plot.js").Lane[]} */
  const found = [];
  for (const [metric, [title, top]] of Object.entries(OF_GPU)) {
    const lines = each.flatMap((curve, at) => curve.filter((one) => one.metric === metric && isKnown(one.mean)).map((one) => ({ ...one, name: gpus[at].name })));
    if (lines.length > 0) {
      const unit = each.flat().find((one) => one.metric === metric)?.unit ?? "";
      found.push({ name: metric, title, unit, top, lines });
    }
  }
  for (const [metric, title] of Object.entries(OF_NODE)) {
    const lines = own.filter((one) => one.metric === metric && isKnown(one.mean)).map((one) => ({ ...one, name: title }));
    if (lines.length > 0) {
      found.push({ name: metric, title, unit: lines[0].unit, lines });
    }
  }
  return found;
}

async function draw() {
  drawnAt = Date.now();
  const end = Math.round(Date.now() / 1000), start = end - range;
  try {
    const found = await lanes(start, end);
    note.textContent = found.length > 0 ? "" : "Nothing was measured here in this time.";
    const window = { first: Math.max(start, beginning(found)), final: end, last: end, label: `History of ${node}` };
    if (board === null || found.length === 0) {
      holder.replaceChildren();
      board = found.length > 0 ? new Board(holder, found, window) : null;
    } else {
      board.update(found, window);
    }
  } catch (error) {
    note.textContent = error instanceof Error ? error.message : String(error);
  }
}

function choose() {
  const bar = made("div", { class: "tools", role: "group", "aria-label": "How long" });
  for (const [text, seconds] of RANGES) {
    const button = made("button", { type: "button", text, "aria-pressed": String(seconds === range) });
    button.addEventListener("click", () => {
      range = seconds;
      bar.querySelectorAll("button").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
      board = null;
      holder.replaceChildren();
      draw();
    });
    bar.append(button);
  }
  return bar;
}

if (node !== "") {  // else nothing is measured, and the page says why
  place.replaceChildren(choose(), note, holder);
  draw();
}
document.addEventListener("bireme:part", () => {
  if (node !== "" && Date.now() - drawnAt > FRESH_MS && range <= 86400) {
    draw();
  }
});
