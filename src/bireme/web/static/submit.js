// Submit: what is typed is explained line by line, when it would start is planned, and then it is submitted.
// @ts-check
import { api, tell } from "./actions.js";
import { exact, lasted } from "./figures.js";
import { calmly, made, there } from "./making.js";

/** @typedef {{option: string, value: string, means: string, remark: string}} Meant */
/** @typedef {{number: number, text: string, kind: string, says: string, options: Meant[]}} Line */
/** @typedef {{path: string, body: Record<string, unknown>}} Submission */

const root = document.documentElement.dataset.root ?? "";
const CALM_MS = 300;
const form = /** @type {HTMLFormElement} */ (there("script"));
const send = /** @type {HTMLButtonElement} */ (there("send"));
const file = /** @type {HTMLInputElement} */ (there("file"));
/** @type {Submission | null} */
let submission = null;
let asked = 0;
let key = newKey();

/** Of one submission: sent twice, it is one job. */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {string} name */
const field = (name) => String(new FormData(form).get(name) ?? "");

async function explain() {
  const mine = ++asked;
  const body = { script: field("script").replaceAll("\r\n", "\n"), name: field("name"), folder: field("folder"),
    arguments: field("arguments").split(/\s+/).filter(Boolean) };
  try {
    const told = await api("/v1/explain", body);
    if (mine !== asked) {
      return;
    }
    there("lines").replaceChildren(...told.lines.map(line));
    problem(told.error);
    submission = told.submission;
    send.disabled = submission === null;
    send.textContent = told.service ? `Serve ${told.service}` : "Submit";
    there("understood").replaceChildren(...told.jobs.map(understood), ...told.notices.map((/** @type {string} */ text) => made("p", { class: "quiet", text })));
    await foresee(mine, told.service);
  } catch (error) {
    if (mine === asked) {
      submission = null;
      send.disabled = true;
      problem(error instanceof Error ? error.message : String(error));
    }
  }
}

/** @param {string} text */
function problem(text) {
  const place = there("problem");
  place.textContent = text;
  place.hidden = text === "";
}

/** @param {Line} told */
function line(told) {
  const says = told.options.map((each) => made("div", {}, made("b", { text: `${each.option}${each.value ? ` ${each.value}` : ""}` }), `: ${each.means} `,
    ...(each.remark ? [made("span", { class: "remark", text: `(${each.remark})` })] : [])));
  const words = told.says ? [made("div", { text: told.says })] : [];
  return made("li", { class: told.kind }, made("span", { class: "number", text: String(told.number) }), made("code", { text: told.text || " " }),
    ...(says.length + words.length > 0 ? [made("div", { class: "says" }, ...words, ...says)] : []));
}

/** @param {{name: string, sections: {title: string, rows: [string, string][]}[], warnings: string[]}} job */
function understood(job) {
  const parts = job.sections.flatMap((section) => [made("h3", { text: section.title }),
    made("dl", { class: "asks" }, ...section.rows.flatMap(([label, value]) => [made("dt", { text: label }), made("dd", { text: value })]))]);
  return made("div", {}, made("p", {}, made("strong", { text: job.name })), ...parts, ...job.warnings.map((text) => made("p", { class: "quiet", text })));
}

/** @param {number} mine @param {string} service */
async function foresee(mine, service) {
  const place = there("when");
  if (submission === null || service) {
    place.textContent = service ? "Its replicas are jobs; the page Services says when they are ready." : "";
    return;
  }
  try {
    const told = await api(`${submission.path}?test_only=1`, submission.body);
    if (mine !== asked) {
      return;
    }
    const now = Date.now() / 1000;
    const where = told.nodes.length > 0 ? ` on ${told.nodes.slice(0, 8).join(",")}${told.nodes.length > 8 ? " …" : ""}` : "";
    place.textContent = told.start_time === null ? `It would wait without a time that is known. ${told.reasons.join(" ")}`
      : told.start_time <= now + 5 ? `It would start now${where}, in partition ${told.partition}.`
        : `It would start in ${lasted(told.start_time - now)}${where}, in partition ${told.partition}.`;
    place.title = told.start_time === null ? "" : exact(told.start_time);
  } catch (error) {
    if (mine === asked) {
      place.textContent = `It would be refused: ${error instanceof Error ? error.message : String(error)}`;
    }
  }
}

/** @param {Event} event */
async function submit(event) {
  event.preventDefault();
  if (submission === null) {
    return;
  }
  send.setAttribute("aria-busy", "true");
  try {
    const told = await api(submission.path, { ...submission.body, idempotency_key: key });
    key = newKey();
    tell(told.job_id ? `Submitted batch job ${told.job_id}` : `Service ${told.name}: revision ${told.revision} is made`);
    location.assign(told.job_id ? `${root}/jobs/${told.job_id}` : `${root}/services/${encodeURIComponent(told.name)}`);
  } catch (error) {
    tell(error instanceof Error ? error.message : String(error), "bad");
  } finally {
    send.removeAttribute("aria-busy");
  }
}

file.addEventListener("change", async () => {
  const chosen = file.files?.[0];
  if (chosen !== undefined) {
    /** @type {HTMLTextAreaElement} */ (there("text")).value = await chosen.text();
    /** @type {HTMLInputElement} */ (form.elements.namedItem("name")).value = chosen.name;
    explain();
  }
});
form.addEventListener("input", calmly(explain, CALM_MS));
form.addEventListener("submit", submit);
explain();
