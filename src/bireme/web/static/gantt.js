// The plan as bars: what runs until its limit, and the slots that waiting jobs have. A bar is a link to its job, and says
// in words what it is.
// @ts-check

const SPACE = "http://www.w3.org/2000/svg";
const ROW = 20, LEFT = 150, TOP = 24, MOST = 60;
const STEPS_S = [300, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const root = document.documentElement.dataset.root ?? "";

/** @typedef {[number, string, number, number | null, boolean, string, number, string]} Bar */

/** @param {string} name @param {Record<string, string | number>} attributes @param {string} [text] */
function made(name, attributes, text) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, String(value));
  }
  if (text !== undefined) {
    element.textContent = text;
  }
  return element;
}

/** @param {HTMLElement} holder @param {{bars: Bar[], now: number | null}} told */
function draw(holder, told) {
  const now = told.now ?? Date.now() / 1000;
  const bars = told.bars.slice(0, MOST);
  if (bars.length === 0) {
    const none = document.createElement("p");
    none.className = "quiet";
    none.textContent = "Nothing runs, and nothing that waits has a slot.";
    holder.replaceChildren(none);
    return;
  }
  const width = Math.max(540, holder.clientWidth), height = TOP + bars.length * ROW + 4;
  const first = now - 0.06 * horizon(bars, now), last = now + horizon(bars, now);
  const x = (/** @type {number} */ at) => LEFT + ((Math.min(last, Math.max(first, at)) - first) / (last - first)) * (width - LEFT - 8);
  const svg = made("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": "The plan, one bar a job" });
  const step = STEPS_S.find((each) => (last - first) / each <= width / 110) ?? 604800;
  const offset = new Date(first * 1000).getTimezoneOffset() * 60;
  for (let at = Math.ceil((first - offset) / step) * step + offset; at < last; at += step) {
    const isDay = new Date(at * 1000).getHours() === 0 && new Date(at * 1000).getMinutes() === 0;
    svg.append(made("line", { class: "grid", x1: x(at), x2: x(at), y1: TOP - 4, y2: height }), made("text", { class: "axis", x: x(at) + 3, y: 12 }, (isDay ? DAY : CLOCK).format(at * 1000)));
  }
  bars.forEach((bar, row) => svg.append(one(bar, TOP + row * ROW, x, last)));
  svg.append(made("line", { class: "now", x1: x(now), x2: x(now), y1: TOP - 8, y2: height }));
  holder.replaceChildren(svg);
  if (told.bars.length > bars.length) {
    const more = document.createElement("p");
    more.className = "quiet";
    more.textContent = `and ${told.bars.length - bars.length} more: search for some of them`;
    holder.append(more);
  }
}

/** How far ahead is looked: until most bars have ended. @param {Bar[]} bars @param {number} now */
function horizon(bars, now) {
  const ends = bars.map((bar) => bar[3] ?? bar[2] + 3600).sort((one, other) => one - other);
  return Math.max(1800, ends[Math.floor((ends.length - 1) * 0.95)] - now);
}

/** @param {Bar} bar @param {number} y @param {(at: number) => number} x @param {number} last */
function one(bar, y, x, last) {
  const [id, label, begin, end, runs, nodes, gpus, user] = bar;
  const [from, until] = [x(begin), Math.max(x(begin) + 3, x(end ?? last))];
  const say = (/** @type {number} */ at) => FULL.format(at * 1000);
  const words = `job ${label}, ${user}, ${gpus} GPUs${nodes ? ` on ${nodes}` : ""}: ${runs ? `runs since ${say(begin)}, until ${end === null ? "no limit" : say(end)}` : `starts ${say(begin)}, until ${end === null ? "no limit" : say(end)} at the latest`}`;
  const link = made("a", { href: `${root}/jobs/${id}`, "aria-label": words });
  const short = label.length > 22 ? `${label.slice(0, 21)}…` : label;
  link.append(
    made("title", {}, words),
    made("text", { x: 0, y: y + 14 }, short),
    made("rect", { class: runs ? "run" : "wait", x: from, y: y + 2, width: until - from, height: ROW - 4, rx: 3 }),
  );
  const inside = `${runs ? "▶ " : ""}${gpus ? `${gpus} GPU` : ""} ${nodes}`.trim();
  if (until - from > inside.length * 6.2 + 8) {
    link.append(made("text", { class: `inside ${runs ? "" : "wait"}`, x: from + 5, y: y + 14 }, inside));
  }
  return link;
}

const holder = document.querySelector(".gantt");
if (holder instanceof HTMLElement) {
  const show = () => draw(holder, JSON.parse(document.getElementById("plan-data")?.textContent ?? '{"bars": []}'));
  document.querySelector("[data-part=plan]")?.addEventListener("bireme:part", show);
  addEventListener("resize", show);
  show();
}
