// What if: each change of a slider is planned on the queue as it is, and shown before against after.
// @ts-check
import { api } from "./actions.js";
import { exact, lasted } from "./figures.js";
import { calmly, made, showSliders, table, there } from "./making.js";

/** @typedef {{nodes: number, gpus: number, cpus: number, start_now: number, start_later: number, unknown: number, mean_wait_s: number | null}} Sums */
/** @typedef {{job: string, job_id: number, name: string, user: string, nodes: number, gpus: number, before: number | null, after: number | null, changes: boolean, why: string[]}} Waiting */

const root = document.documentElement.dataset.root ?? "";
const CALM_MS = 250, MOST_ROWS = 200;
const form = /** @type {HTMLFormElement} */ (there("change"));
let asked = 0;

/** @param {ParentNode} parent @param {string} selector @returns {HTMLInputElement[]} */
const sliders = (parent, selector) => [...parent.querySelectorAll(selector)].map((each) => /** @type {HTMLInputElement} */ (each));

function change() {
  /** @type {{add_nodes: string[], drain: string[], keys: Record<string, string>, orders: object[]}} */
  const found = { add_nodes: [], drain: [], keys: {}, orders: [] };
  for (const set of form.querySelectorAll("fieldset")) {
    const { partition, model, gpus, cpus } = set.dataset;
    const [add] = sliders(set, "[data-add]"), [size] = sliders(set, "[data-size]"), [less] = sliders(set, "[data-less]");
    if (Number(add?.value) > 0) {
      const each = size ? `${size.value}:${model}` : cpus;
      found.add_nodes.push(`${add.value}x${each} partition=${partition}`);
    }
    if (Number(less?.value) > 0) {
      const nodes = JSON.parse(less.dataset.nodes ?? "[]");
      found.drain.push(...nodes.slice(nodes.length - Number(less.value)));
    }
  }
  for (const slider of sliders(form, "[data-key]").filter((each) => each.value !== each.dataset.was)) {
    found.keys.PriorityType = "priority/multifactor";
    found.keys[slider.dataset.key ?? ""] = slider.value;
  }
  for (const slider of sliders(form, "[data-limit]").filter((each) => each.value !== each.dataset.was)) {
    found.orders.push(order(JSON.parse(slider.dataset.limit ?? "{}"), Number(slider.value)));
  }
  return found;
}

/** @param {{whose: string, user: string, tres: string, kind: string}} limit @param {number} most */
function order(limit, most) {
  const edit = { limits: { tres: { grp_tres: { [limit.tres]: most } } } };
  if (limit.kind === "QOS") {
    return { _: "ModifyQos", names: [limit.whose], edit };
  }
  const where = { accounts: [limit.whose], ...(limit.user ? { users: [limit.user] } : {}) };
  return { _: limit.user ? "ModifyUsers" : "ModifyAccounts", where, edit };
}

/** @param {ReturnType<typeof change>} found */
function command(found) {
  const words = [...found.add_nodes.map((each) => `--add-nodes '${each}'`), ...found.drain.length ? [`--drain ${found.drain.join(",")}`] : [],
    ...Object.entries(found.keys).map(([key, value]) => `--set ${key}=${value}`)];
  return ["bireme whatif", ...words].join(" ");
}

async function plan() {
  const mine = ++asked, found = change(), place = there("planned");
  there("command").textContent = command(found);
  place.classList.add("busy");
  try {
    const told = await api("/v1/whatif", found);
    if (mine === asked) {
      place.replaceChildren(figures(told.before, told.after));
      there("jobs").replaceChildren(jobs(told));
    }
  } catch (error) {
    if (mine === asked) {
      place.replaceChildren(made("p", { class: "warning", text: error instanceof Error ? error.message : String(error) }));
    }
  } finally {
    place.classList.remove("busy");
  }
}

/** @param {Sums} before @param {Sums} after */
function figures(before, after) {
  /** @type {[string, (sums: Sums) => string][]} */
  const rows = [["nodes in service", (sums) => String(sums.nodes)], ["GPUs", (sums) => String(sums.gpus)],
    ["jobs that start now", (sums) => String(sums.start_now)], ["jobs with a time", (sums) => String(sums.start_later)],
    ["jobs without a time", (sums) => String(sums.unknown)],
    ["wait on average, of those with a time", (sums) => (sums.mean_wait_s === null ? "–" : lasted(sums.mean_wait_s))]];
  return made("div", { class: "pair" }, ...rows.map(([label, value]) => {
    const [was, is] = [value(before), value(after)];
    const shown = was === is ? made("b", { text: is }) : made("b", {}, made("small", { text: `${was} → ` }), is);
    return made("div", { class: "figure" }, shown, made("span", { text: label }));
  }));
}

/** @param {{jobs: Waiting[], left_out: number, now: number}} told */
function jobs(told) {
  if (told.jobs.length === 0) {
    return made("p", { class: "empty" }, made("strong", { text: "No job waits." }), " What would be shorter or longer is seen when some do.");
  }
  const rows = told.jobs.slice(0, MOST_ROWS).map((job) => [
    made("a", { href: `${root}/jobs/${job.job_id}`, text: job.job }), job.name, when(job.before, told.now),
    when(job.after, told.now), difference(job), job.user, String(job.nodes), String(job.gpus),
  ]);
  const more = told.left_out + Math.max(0, told.jobs.length - MOST_ROWS);
  const shown = table("Jobs that wait", ["Job", "Name", "As it is", "Then", "Change", "User", "#Nodes", "#GPUs"], rows);
  return made("div", {}, shown, ...(more > 0 ? [made("p", { class: "quiet", text: `${more} more are not listed.` })] : []));
}

/** @param {number | null} at @param {number} now */
function when(at, now) {
  if (at === null) {
    return "not known";
  }
  return at <= now + 1 ? "now" : made("span", { title: exact(at), text: `in ${lasted(at - now)}` });
}

/** @param {Waiting} job */
function difference(job) {
  if (!job.changes) {
    return made("span", { class: "quiet", text: job.after === null && job.why.length > 0 ? job.why[0] : "the same" });
  }
  if (job.before === null || job.after === null) {
    return job.after === null ? made("span", { class: "quiet", text: ["no time is known then:", ...job.why].join(" ") })
      : made("span", { class: "sooner", text: "▲ gets a time" });
  }
  const sooner = job.after < job.before;
  return made("span", { class: sooner ? "sooner" : "later", text: `${sooner ? "▲" : "▼"} ${lasted(Math.abs(job.after - job.before))} ${sooner ? "sooner" : "later"}` });
}

const planSoon = calmly(plan, CALM_MS);
showSliders();
form.addEventListener("input", planSoon);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(() => {
  form.querySelectorAll("input[data-shows]").forEach((each) => each.dispatchEvent(new Event("input", { bubbles: true })));
  plan();
}));
plan();
