// The map: one cell a GPU, nodes as they are wired, ten thousand of them on one canvas. Never by colour alone: use is how
// far a cell is filled, what is out of service is crossed, a finding is a dot, and what is under the pointer or was walked
// to is said in words. A table has the same for who cannot see it.
// @ts-check
import { onKey } from "./keys.js";
import { moved } from "./live.js";

const FREE = -1, HIDDEN = -2;
const GAP = 1, NODE_GAP = 4, LEAF_GAP = 12;
const LARGEST = 40, SMALLEST = 4;
const NAMED_FROM = 18;
const LINES = 8;
const root = document.documentElement.dataset.root ?? "";

/**
 * @typedef {{nodes: [string, string, number, number, number[], string][], leaves: string[], partitions: string[],
 *   jobs: [number, string, string, string, string, string][], job: number[], use?: (number | null)[], health: string,
 *   shared: Record<string, number[]>}} Gpus
 * @typedef {{x: number, y: number}} Spot
 * @typedef {{key: string, words: string, colour: string, count: number}} Entry
 */

class GpuMap {
  /** @param {HTMLElement} holder */
  constructor(holder) {
    this.holder = holder;
    this.canvas = /** @type {HTMLCanvasElement} */ (holder.querySelector("canvas"));
    this.said = /** @type {HTMLElement} */ (document.getElementById("map-said"));
    this.legend = /** @type {HTMLElement} */ (document.getElementById("map-legend"));
    this.table = /** @type {HTMLDetailsElement} */ (document.querySelector("details.as-table"));
    this.by = document.querySelector("[data-colour][aria-pressed=true]")?.getAttribute("data-colour") ?? "job";
    /** @type {Gpus} */
    this.gpus = { nodes: [], leaves: [], partitions: [], jobs: [], job: [], health: "", shared: {} };
    /** @type {Spot[]} */
    this.spots = [];
    /** @type {number[]} */
    this.nodeOf = [];
    this.side = LARGEST;
    this.at = -1;
    this.only = "";
    /** @type {{text: string, x: number, y: number}[]} */
    this.labels = [];
    this.listen();
  }

  listen() {
    new ResizeObserver(() => this.lay()).observe(this.holder);
    document.addEventListener("bireme:theme", () => this.draw());
    this.holder.addEventListener("pointermove", (event) => this.point(this.hit(event)));
    this.holder.addEventListener("pointerleave", () => this.point(-1));
    this.holder.addEventListener("click", (event) => this.open(this.hit(event)));
    this.holder.addEventListener("keydown", (event) => this.key(event));
    for (const button of document.querySelectorAll("[data-colour]")) {
      button.addEventListener("click", () => this.colour(button.getAttribute("data-colour") ?? "job"));
    }
    onKey("c", () => {
      const names = [...document.querySelectorAll("[data-colour]")].map((each) => each.getAttribute("data-colour") ?? "");
      this.colour(names[(names.indexOf(this.by) + 1) % names.length]);
    });
    this.table.addEventListener("toggle", () => this.tell());
  }

  /** @param {Gpus} gpus */
  show(gpus) {
    this.gpus = gpus;
    this.nodeOf = gpus.nodes.flatMap((node, at) => Array(node[2]).fill(at));
    this.lay();
    this.tell();
  }

  /** @param {string} by */
  colour(by) {
    this.by = by;
    this.only = "";
    for (const button of document.querySelectorAll("[data-colour]")) {
      button.setAttribute("aria-pressed", String(button.getAttribute("data-colour") === by));
    }
    const address = new URL(location.href);
    address.searchParams.set("colour", by);
    history.replaceState(null, "", address);
    moved();
    this.draw();
  }

  // -- where each cell is --------------------------------------------------------------------------------------------

  /** Nodes in the order of their leaves; the largest cells with which all of them are about a screen high. */
  lay() {
    const width = this.holder.clientWidth;
    const many = this.gpus.job.length;
    if (width === 0) {
      return;
    }
    const most = Math.max(320, innerHeight * 0.72);
    let side = LARGEST;
    while (side > SMALLEST && this.place(width, side) > most) {
      side -= 1;
    }
    const height = many === 0 ? 40 : this.place(width, side);
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    this.draw();
  }

  /** @param {number} width @param {number} side @returns {number} the height that it takes */
  place(width, side) {
    const { nodes, leaves } = this.gpus;
    this.side = side;
    this.spots = new Array(this.gpus.job.length);
    this.labels = [];
    const named = side >= 12 && nodes.length <= 400;
    const over = named ? 15 : 0;
    const firsts = [];
    let first = 0;
    for (const node of nodes) {
      firsts.push(first);
      first += node[2];
    }
    const order = nodes.map((_, at) => at).sort((one, other) => nodes[one][3] - nodes[other][3] || one - other);
    let [x, y, row, leaf] = [0, 0, 0, -2];
    for (const at of order) {
      const [name, , count, itsLeaf] = nodes[at];
      const across = Math.min(count, Math.max(1, count <= 4 ? count : Math.ceil(count / (side >= 12 ? 1 : 2))), Math.max(1, Math.floor(width / (side + GAP))));
      const down = Math.ceil(count / Math.max(1, across));
      const [wide, high] = [across * (side + GAP), over + down * (side + GAP)];
      if (count === 0) {
        continue;
      }
      if (itsLeaf !== leaf) {
        if (x > 0) {
          y += row + NODE_GAP;
        }
        y += leaf === -2 ? 0 : LEAF_GAP;
        if (itsLeaf >= 0) {
          this.labels.push({ text: leaves[itsLeaf], x: 0, y: y + 11 });
          y += 16;
        }
        [x, row, leaf] = [0, 0, itsLeaf];
      }
      if (x > 0 && x + wide > width) {
        [x, y, row] = [0, y + row + NODE_GAP, 0];
      }
      if (named) {
        this.labels.push({ text: name, x, y: y + 11 });
      }
      for (let gpu = 0; gpu < count; gpu += 1) {
        this.spots[firsts[at] + gpu] = { x: x + (gpu % across) * (side + GAP), y: y + over + Math.floor(gpu / across) * (side + GAP) };
      }
      x += wide + NODE_GAP + (named ? 6 : 0);
      row = Math.max(row, high);
    }
    return y + row + 2;
  }

  // -- what each cell looks like -------------------------------------------------------------------------------------

  draw() {
    const context = this.canvas.getContext("2d");
    if (context === null) {
      return;
    }
    const scale = devicePixelRatio || 1;
    const look = palette();
    const entries = this.entries(look);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = look.quiet;
    for (const label of this.labels) {
      context.fillText(label.text, label.x, label.y);
    }
    for (let gpu = 0; gpu < this.spots.length; gpu += 1) {
      this.cell(context, gpu, look, entries);
    }
    if (this.side >= NAMED_FROM && (this.by === "job" || this.by === "user")) {
      this.name(context, look);
    }
    if (this.at >= 0 && this.at < this.spots.length) {
      const { x, y } = this.spots[this.at];
      context.strokeStyle = look.ink;
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, this.side + 2, this.side + 2);
    }
    this.explain(entries, look);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} gpu @param {Record<string, string>} look @param {Map<string, Entry>} entries */
  cell(context, gpu, look, entries) {
    const { x, y } = this.spots[gpu];
    const side = this.side;
    const health = this.gpus.health[gpu];
    const key = this.keyOf(gpu);
    const colour = entries.get(key)?.colour ?? look.grid;
    context.globalAlpha = this.only === "" || this.only === key ? 1 : 0.18;
    if (this.gpus.job[gpu] === FREE && this.by !== "health" && this.by !== "partition") {
      context.fillStyle = look.grid;
      context.fillRect(x, y, side, side);
    } else if (this.by === "use") {
      const use = this.gpus.use?.[gpu] ?? null;
      context.fillStyle = look.edge;
      context.fillRect(x, y, side, side);
      if (use !== null) {
        const high = Math.max(use > 0 ? 1 : 0, (side * Math.min(100, use)) / 100);
        context.fillStyle = colour;
        context.fillRect(x, y + side - high, side, high);
      }
    } else {
      context.fillStyle = colour;
      context.fillRect(x, y, side, side);
    }
    if (this.gpus.shared[gpu] !== undefined && side >= 8) {
      context.strokeStyle = look.card;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, y + side);
      context.lineTo(x + side, y);
      context.stroke();
    }
    if (health === "x" || health === "o") {
      context.strokeStyle = health === "x" ? look.bad : look.quiet;
      context.lineWidth = side >= 10 ? 2 : 1;
      context.beginPath();
      context.moveTo(x + 1, y + 1);
      context.lineTo(x + side - 1, y + side - 1);
      if (health === "x") {
        context.moveTo(x + side - 1, y + 1);
        context.lineTo(x + 1, y + side - 1);
      }
      context.stroke();
    } else if (health === "d") {
      context.fillStyle = look.bad;
      context.beginPath();
      context.arc(x + side / 2, y + side / 2, Math.max(1.5, side / 5), 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  /** Whose cells these are, where there is room for it. @param {CanvasRenderingContext2D} context @param {Record<string, string>} look */
  name(context, look) {
    context.fillStyle = look.on;
    context.font = "600 10px system-ui, sans-serif";
    for (let gpu = 0, end = 0; gpu < this.spots.length; gpu = end) {
      const key = this.keyOf(gpu);
      for (end = gpu + 1; end < this.spots.length && this.keyOf(end) === key && this.nodeOf[end] === this.nodeOf[gpu] && this.spots[end].y === this.spots[gpu].y;) {
        end += 1;
      }
      const job = this.gpus.jobs[this.gpus.job[gpu]];
      if (job !== undefined && (this.only === "" || this.only === key)) {
        const room = (end - gpu) * (this.side + GAP) - 6;
        const text = this.by === "job" ? (context.measureText(`${job[1]} ${job[2]}`).width <= room ? `${job[1]} ${job[2]}` : job[1]) : job[3];
        if (context.measureText(text).width <= room) {
          context.fillText(text, this.spots[gpu].x + 4, this.spots[gpu].y + this.side / 2 + 3.5);
        }
      }
    }
  }

  /** What a cell is counted with. @param {number} gpu */
  keyOf(gpu) {
    const job = this.gpus.job[gpu];
    const health = this.gpus.health[gpu];
    if (this.by !== "partition" && job === FREE && (health === "x" || health === "o")) {
      return health;
    }
    switch (this.by) {
      case "health":
        return health;
      case "partition":
        return String(this.gpus.nodes[this.nodeOf[gpu]][4][0] ?? "-");
      case "use": {
        const use = this.gpus.use?.[gpu] ?? null;
        return job === FREE ? "free" : use === null ? "unknown" : use < 5 ? "idle" : use < 40 ? "low" : use < 75 ? "middle" : "high";
      }
    }
    if (job < 0) {
      return job === FREE ? "free" : "others";
    }
    return this.by === "user" ? `u${this.gpus.jobs[job][3]}` : `j${this.gpus.jobs[job][0]}`;
  }

  /** Who is counted, the largest first, with colours. @param {Record<string, string>} look @returns {Map<string, Entry>} */
  entries(look) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (let gpu = 0; gpu < this.gpus.job.length; gpu += 1) {
      const key = this.keyOf(gpu);
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    /** @type {Record<string, [string, string]>} */
    const fixed = {
      free: ["free", look.grid], others: ["others' jobs", look.note], unknown: ["in a job, not measured", look.edge],
      idle: ["under 5%: idle", look.bad], low: ["5 to 40%", look.wait], middle: ["40 to 75%", look.start], high: ["75% and more", look.run],
      ".": ["well", look.run], d: ["a finding stands", look.wait], x: ["out of service", look.grid], o: ["its node is out", look.grid],
    };
    /** @type {Map<string, Entry>} */
    const found = new Map();
    const colours = this.coloursOf([...counts.keys()].filter((key) => this.by === "partition" || fixed[key] === undefined));
    for (const [key, count] of [...counts].sort((one, other) => other[1] - one[1])) {
      const known = this.by === "job" || this.by === "user" ? fixed[key] : this.by === "partition" ? undefined : fixed[key];
      const [words, colour] = known ?? [this.wordsOf(key), look[`l${colours.get(key)}`]];
      found.set(key, { key, words, colour, count });
    }
    return found;
  }

  /** A number of a colour for each: always the same while nobody else has it, and none twice while there are enough.
   * @param {string[]} keys @returns {Map<string, number>} */
  coloursOf(keys) {
    /** @type {Map<string, number>} */
    const found = new Map();
    const wanted = (/** @type {string} */ key) => (this.by === "job" ? Number(key.slice(1)) : hash(key)) % LINES;
    const taken = Array.from({ length: LINES }, () => 0);
    for (const key of keys.sort((one, other) => one.length - other.length || (one < other ? -1 : 1))) {
      const first = wanted(key), fewest = Math.min(...taken);
      const colour = taken.findIndex((_, at) => taken[(first + at) % LINES] === fewest);
      found.set(key, (first + colour) % LINES);
      taken[(first + colour) % LINES] += 1;
    }
    return found;
  }

  /** @param {string} key */
  wordsOf(key) {
    if (this.by === "partition") {
      return this.gpus.partitions[Number(key)] ?? "none";
    }
    if (this.by === "user") {
      return key.slice(1);
    }
    const job = this.gpus.jobs.find((each) => `j${each[0]}` === key);
    return job === undefined ? key : `${job[1]} ${job[2]}`;
  }

  /** The legend; a click leaves only these bright. @param {Map<string, Entry>} entries @param {Record<string, string>} look */
  explain(entries, look) {
    const shown = [...entries.values()].slice(0, 14);
    const key = JSON.stringify([this.by, this.only, shown, look.ink]);
    if (this.legend.dataset.key === key) {
      return;
    }
    this.legend.dataset.key = key;
    this.legend.replaceChildren(...shown.map((entry) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(this.only === entry.key));
      button.append(swatch(entry, look), `${entry.words} (${entry.count})`);
      button.addEventListener("click", () => {
        this.only = this.only === entry.key ? "" : entry.key;
        this.draw();
      });
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
    if (entries.size > shown.length) {
      const item = document.createElement("li");
      item.className = "quiet";
      item.textContent = `and ${entries.size - shown.length} more`;
      this.legend.append(item);
    }
  }

  // -- what is pointed at --------------------------------------------------------------------------------------------

  /** @param {MouseEvent} event @returns {number} */
  hit(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const reach = this.side + GAP;
    return this.spots.findIndex((spot) => x >= spot.x && x < spot.x + reach && y >= spot.y && y < spot.y + reach);
  }

  /** @param {number} gpu */
  point(gpu) {
    if (gpu !== this.at) {
      this.at = gpu;
      this.said.textContent = gpu < 0 ? "" : this.words(gpu);
      requestAnimationFrame(() => this.draw());
    }
  }

  /** @param {number} gpu */
  words(gpu) {
    const [name, state, , leaf, , note] = this.gpus.nodes[this.nodeOf[gpu]];
    const number = gpu - this.nodeOf.indexOf(this.nodeOf[gpu]);
    const use = this.gpus.use?.[gpu] ?? null;
    const health = { d: "a finding stands", x: "out of service", o: `node ${state}${note ? `: ${note}` : ""}` }[this.gpus.health[gpu]];
    const jobs = (this.gpus.shared[gpu] ?? [this.gpus.job[gpu]]).map((job) => {
      if (job < 0) {
        return job === FREE ? "free" : job === HIDDEN ? "in somebody's job" : "used by what is no job";
      }
      const [, label, title, user, account, partition] = this.gpus.jobs[job];
      return `job ${label} ${title}, ${user}${account ? ` (${account})` : ""}, ${partition}`;
    });
    return [`${name} GPU ${number}`, leaf >= 0 ? this.gpus.leaves[leaf] : "", ...jobs, use === null ? "" : `${use}% used`, health ?? ""].filter(Boolean).join(" · ");
  }

  /** @param {number} gpu */
  open(gpu) {
    if (gpu >= 0) {
      const job = this.gpus.job[gpu];
      location.assign(job >= 0 ? `${root}/jobs/${this.gpus.jobs[job][0]}` : `${root}/nodes/${encodeURIComponent(this.gpus.nodes[this.nodeOf[gpu]][0])}`);
    }
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const from = this.spots[Math.max(0, this.at)];
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Enter") {
      this.open(this.at);
    } else if (step !== undefined && from !== undefined) {
      event.preventDefault();
      this.point(this.at < 0 ? 0 : this.nearest(from, step[0], step[1]));
    }
  }

  /** The next cell that way. @param {Spot} from @param {number} right @param {number} down */
  nearest(from, right, down) {
    let [best, far] = [this.at, Infinity];
    for (let gpu = 0; gpu < this.spots.length; gpu += 1) {
      const [x, y] = [this.spots[gpu].x - from.x, this.spots[gpu].y - from.y];
      const [along, aside] = right !== 0 ? [x * right, Math.abs(y)] : [y * down, Math.abs(x)];
      if (along > 0 && along + 4 * aside < far) {
        [best, far] = [gpu, along + 4 * aside];
      }
    }
    return best;
  }

  /** The same as a table, when somebody opens it: one row a node. */
  tell() {
    if (!this.table.open) {
      return;
    }
    const place = /** @type {HTMLElement} */ (this.table.querySelector("div"));
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const words of ["Node", "State", "GPUs", "in jobs", "out of service", "jobs"]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = words;
      head.append(cell);
    }
    const body = table.createTBody();
    let first = 0;
    for (const [name, state, count] of this.gpus.nodes) {
      const mine = this.gpus.job.slice(first, first + count);
      const out = [...this.gpus.health.slice(first, first + count)].filter((each) => each === "x" || each === "o").length;
      const jobs = [...new Set(mine.filter((job) => job >= 0))].map((job) => this.gpus.jobs[job][1]);
      const row = body.insertRow();
      for (const text of [name, state, count, mine.filter((job) => job !== FREE).length, out, jobs.join(", ")]) {
        row.insertCell().textContent = String(text);
      }
      first += count;
    }
    place.replaceChildren(table);
  }
}

/** @returns {Record<string, string>} colours by their names */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "on", "quiet", "card", "edge", "grid", "bad", "note", "run", "wait", "start", ...Array.from({ length: LINES }, (_, at) => `l${at}`)];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** @param {string} text */
function hash(text) {
  let sum = 7;
  for (const letter of text) {
    sum = (sum * 31 + letter.charCodeAt(0)) >>> 0;
  }
  return sum;
}

/** @param {Entry} entry @param {Record<string, string>} look */
function swatch(entry, look) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [14, 14];
  const context = canvas.getContext("2d");
  if (context !== null) {
    context.fillStyle = entry.colour;
    context.fillRect(0, 0, 14, 14);
    if (entry.key === "x" || entry.key === "o") {
      context.strokeStyle = entry.key === "x" ? look.bad : look.quiet;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(1, 1);
      context.lineTo(13, 13);
      if (entry.key === "x") {
        context.moveTo(13, 1);
        context.lineTo(1, 13);
      }
      context.stroke();
    }
  }
  return canvas;
}

const holder = document.querySelector(".gpumap");
if (holder instanceof HTMLElement) {
  const map = new GpuMap(holder);
  const show = () => map.show(JSON.parse(document.getElementById("map-data")?.textContent ?? "{}"));
  document.querySelector("[data-part=map]")?.addEventListener("bireme:part", show);
  show();
}
