// Rows over one axis of time, drawn on canvas: curves with their band from least to most, spans, marks. They zoom and
// pan together, by pointer, touch and keyboard. For who cannot see them each row of curves has a table behind it.
// Used by the pages, and, put into one file, by `bireme timeline --html`.
// @ts-check

import {Axis} from "./axis.js";
import {clock, exact, figure} from "./figures.js";

/**
 * @typedef {{name: string, start: number, step_s: number, mean: (number | null)[], low?: (number | null)[],
 *   high?: (number | null)[]}} Line  A curve; null: nothing was measured.
 * @typedef {{start: number, end: number | null, text: string, tone: string, more?: string}} Span
 * @typedef {{at: number, text: string, tone: string, more?: string}} Mark
 * @typedef {{name: string, title: string, unit?: string, about?: string, top?: number | null, lines?: Line[],
 *   spans?: Span[], marks?: Mark[]}} Lane  One row, as `/v1/jobs/JOB/timeline` tells it.
 * @typedef {{first: number, final: number, last?: number, from?: number, label: string}} Window  What is looked at;
 *   `last`: until when anything is known; `from`: curves begin no sooner.
 * @typedef {{lane: Lane, canvas: HTMLCanvasElement, height: number, element: HTMLElement, words: string[]}} Row
 */

const LINES = 8, LAYERS = 12, LAYER_PX = 16, TABLE_ROWS = 24;

/**
 * @param {string} name
 * @param {string} className
 * @param {string} [text]
 * @param {Element} [parent]
 */
function made(name, className, text, parent) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

/** @param {Lane} lane */
const reasons = (lane) => [...new Set((lane.spans || []).flatMap((span) => span.text.split(" + ")))].slice(0, LAYERS);

/**
 * Spans that overlap go into layers below each other.
 * @param {Span[]} spans
 */
function layered(spans) {
  /** @type {number[]} */
  const ends = [];
  return spans.map((span) => {
    const free = ends.findIndex((end) => end <= span.start), layer = free < 0 ? ends.length : free;
    ends[layer] = span.end === null ? Infinity : span.end;
    return layer;
  });
}

export class Board {
  /**
   * @param {HTMLElement} holder
   * @param {Lane[]} lanes
   * @param {Window} window
   */
  constructor(holder, lanes, window) {
    this.holder = holder;
    this.window = window;
    this.axis = new Axis(window.first, window.final, () => this.draw());
    /** @type {Row[]} */
    this.rows = [];
    /** @type {number | null} */
    this.pointed = null;
    this.asked = false;
    holder.replaceChildren();
    this.reading = this.#tools();
    this.board = made("div", "board", undefined, holder);
    this.board.tabIndex = 0;
    this.board.setAttribute("role", "group");
    this.board.setAttribute("aria-label", `${window.label}. Arrow keys pan, plus and minus zoom, 0 shows all. ` +
      "Tables below have the figures.");
    this.tables = made("div", "behind", undefined, holder);
    this.#fill(lanes);
    this.axis.listen(this.board, () => this.rows[0].canvas.getBoundingClientRect());
    this.board.addEventListener("pointermove", (event) => this.#point(event));
    this.board.addEventListener("pointerleave", () => { this.pointed = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.board);
    new MutationObserver(() => this.draw()).observe(document.documentElement, {attributes: true});
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /**
   * The same rows with newer figures: what is looked at stays.
   * @param {Lane[]} lanes
   * @param {Window} window
   */
  update(lanes, window) {
    this.window = window;
    this.axis.extend(window.first, window.final);
    const open = [...this.tables.querySelectorAll("details[open]")].map((each) => each.getAttribute("data-row"));
    this.#fill(lanes);
    this.tables.querySelectorAll("details").forEach((each) => {
      each.open = open.includes(each.getAttribute("data-row"));
    });
  }

  /** Buttons, and the place where is said what is pointed at. */
  #tools() {
    const bar = made("div", "tools", undefined, this.holder);
    /** @type {[string, () => void][]} */
    const tools = [["Zoom in", () => this.axis.zoom(0.5)], ["Zoom out", () => this.axis.zoom(2)],
      ["Earlier", () => this.axis.pan(-0.25)], ["Later", () => this.axis.pan(0.25)], ["Whole", () => this.axis.whole()]];
    for (const [text, action] of tools) {
      const button = /** @type {HTMLButtonElement} */ (made("button", "", text, bar));
      button.type = "button";
      button.addEventListener("click", action);
    }
    return made("p", "reading", "Point at a row, or use the arrow keys, + and -.", bar);
  }

  /** @param {Lane[]} lanes */
  #fill(lanes) {
    this.rows = [];
    this.board.replaceChildren();
    this.tables.replaceChildren();
    this.#add({name: "axis", title: ""}, 26);
    for (const lane of lanes) {
      const layers = lane.name === "reasons" ? reasons(lane).length
        : lane.name === "steps" ? Math.min(LAYERS, 1 + Math.max(0, ...layered(lane.spans || []))) : 0;
      this.#add(lane, lane.lines && lane.lines.length ? 74 : layers ? 8 + LAYER_PX * layers : 26);
    }
    this.draw();
  }

  /**
   * @param {Lane} lane
   * @param {number} height
   */
  #add(lane, height) {
    const element = made("div", `row of-${lane.name}`, undefined, this.board);
    const title = made("div", "title", lane.title, element);
    if (lane.about) title.title = lane.about;
    const lines = lane.lines || [];
    if (lines.length > 1) {
      lines.slice(0, LINES).forEach((line, place) => {
        const item = made("div", "legend", undefined, title);
        made("span", `swatch line${place % LINES}`, "", item);
        made("span", "", line.name, item);
      });
    }
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    canvas.style.height = `${height}px`;
    element.append(canvas);
    this.rows.push({lane, canvas, height, element, words: lane.name === "reasons" ? reasons(lane) : []});
    if (lines.length) this.#table(lane);
  }

  /** A table of what is looked at, made when it is opened. @param {Lane} lane */
  #table(lane) {
    const details = document.createElement("details");
    details.setAttribute("data-row", lane.title);
    made("summary", "", `${lane.title} as a table`, details);
    details.addEventListener("toggle", () => { if (details.open) this.#fillTable(details, lane); });
    this.tables.append(details);
  }

  /**
   * @param {HTMLDetailsElement} details
   * @param {Lane} lane
   */
  #fillTable(details, lane) {
    details.querySelector(".wide")?.remove();
    const wide = made("div", "wide", undefined, details), table = made("table", "", undefined, wide);
    wide.tabIndex = 0;
    wide.setAttribute("role", "region");
    wide.setAttribute("aria-label", `${lane.title} as a table`);
    const head = made("tr", "", undefined, made("thead", "", undefined, table));
    made("th", "", "from", head).setAttribute("scope", "col");
    for (const line of lane.lines || []) made("th", "n", line.name, head).setAttribute("scope", "col");
    const body = made("tbody", "", undefined, table), [start, end] = this.axis.view;
    for (let part = 0; part < TABLE_ROWS; part += 1) {
      const from = start + (end - start) * part / TABLE_ROWS, to = start + (end - start) * (part + 1) / TABLE_ROWS;
      const cells = (lane.lines || []).map((line) => between(line, from, to, lane.unit || ""));
      if (cells.every((cell) => !cell)) continue;
      const row = made("tr", "", undefined, body);
      made("td", "at", exact(from), row);
      for (const cell of cells) made("td", "n", cell || "not measured", row);
    }
  }

  /** In the next frame: what is asked several times until then is drawn once. */
  draw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      for (const row of this.rows) this.#drawRow(row);
    });
  }

  /** @param {Row} row */
  #drawRow(row) {
    const width = row.canvas.clientWidth, scale = devicePixelRatio || 1;
    if (!width) return;
    if (row.canvas.width !== Math.round(width * scale)) row.canvas.width = Math.round(width * scale);
    if (row.canvas.height !== Math.round(row.height * scale)) row.canvas.height = Math.round(row.height * scale);
    const context = row.canvas.getContext("2d");
    if (!context) return;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, row.height);
    new Painter(context, width, row, this).paint();
  }

  /** @param {PointerEvent} event */
  #point(event) {
    const box = this.rows[0].canvas.getBoundingClientRect(), [start, end] = this.axis.view;
    const at = start + (event.clientX - box.left) / Math.max(1, box.width) * (end - start);
    this.pointed = at >= start && at <= end ? at : null;
    this.draw();
    if (this.pointed === null) return;
    const row = this.rows.find((each) => {
      const own = each.element.getBoundingClientRect();
      return event.clientY >= own.top && event.clientY <= own.bottom;
    });
    this.reading.textContent = [exact(at), ...(row ? said(row, at, (end - start) * 6 / Math.max(1, box.width),
      this.window.last ?? this.window.final) : [])].join("   ");
  }
}

/**
 * What a row shows at a moment.
 * @param {Row} row
 * @param {number} at
 * @param {number} near
 * @param {number} last
 * @returns {string[]}
 */
function said(row, at, near, last) {
  const {lines = [], spans = [], marks = [], unit = ""} = row.lane;
  const curves = lines.slice(0, LINES).map((line) =>
    `${line.name}: ${figure(line.mean[Math.floor((at - line.start) / line.step_s)], unit)}`);
  const within = spans.filter((span) => span.start <= at && at <= (span.end ?? last))
    .map((span) => [span.text, span.more].filter(Boolean).join(": "));
  const beside = marks.filter((mark) => Math.abs(mark.at - at) <= near)
    .map((mark) => [mark.text, mark.more].filter(Boolean).join(": "));
  return [...curves, ...within, ...beside].slice(0, LINES);
}

/**
 * The mean of a curve within a time, with its least and most.
 * @param {Line} line
 * @param {number} from
 * @param {number} to
 * @param {string} unit
 */
function between(line, from, to, unit) {
  const first = Math.max(0, Math.floor((from - line.start) / line.step_s));
  const end = Math.min(line.mean.length, Math.max(first + 1, Math.ceil((to - line.start) / line.step_s)));
  let sum = 0, count = 0, least = Infinity, most = -Infinity;
  for (let at = first; at < end; at += 1) {
    const mean = line.mean[at];
    if (mean === null || mean === undefined) continue;
    sum += mean;
    count += 1;
    least = Math.min(least, line.low?.[at] ?? mean);
    most = Math.max(most, line.high?.[at] ?? mean);
  }
  if (!count) return "";
  const mean = figure(sum / count, unit);
  return least === most ? mean : `${mean} (${figure(least, unit)} to ${figure(most, unit)})`;
}

/** Paints one row. */
class Painter {
  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} width
   * @param {Row} row
   * @param {Board} board
   */
  constructor(context, width, row, board) {
    this.context = context;
    this.width = width;
    this.row = row;
    this.axis = board.axis;
    this.window = board.window;
    this.pointed = board.pointed;
    const style = getComputedStyle(row.element);
    this.colour = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim() || "gray";
    this.font = (/** @type {number} */ size) => `${size}px ${style.fontFamily}`;
  }

  paint() {
    const {context, row} = this;
    if (row.lane.name === "axis") {
      this.#axis();
    } else {
      for (const at of this.axis.ticks(this.width)) this.#upright(at, this.colour("grid"), 0);
      if (row.lane.lines && row.lane.lines.length) this.#curves(row.lane, row.lane.lines);
      this.#spans(row.lane.spans || []);
      for (const mark of row.lane.marks || []) this.#mark(mark);
    }
    if (this.pointed !== null) this.#upright(this.pointed, this.colour("cross"), 0);
    context.globalAlpha = 1;
  }

  #axis() {
    const {context} = this;
    context.font = this.font(11);
    context.fillStyle = this.colour("quiet");
    const span = this.axis.view[1] - this.axis.view[0];
    for (const at of this.axis.ticks(this.width)) {
      const x = this.axis.x(at, this.width);
      this.#upright(at, this.colour("quiet"), 19);
      context.textAlign = x < 30 ? "left" : x > this.width - 30 ? "right" : "center";
      context.fillText(clock(at, span), x, 14);
    }
  }

  /**
   * @param {number} at
   * @param {string} colour
   * @param {number} from
   */
  #upright(at, colour, from) {
    const {context} = this, x = Math.round(this.axis.x(at, this.width)) + 0.5;
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, from);
    context.lineTo(x, this.row.height);
    context.stroke();
  }

  /** @param {Span[]} spans */
  #spans(spans) {
    const {row} = this, layers = row.lane.name === "steps" ? layered(spans) : spans.map(() => 0);
    spans.forEach((span, place) => {
      if (row.words.length) {
        for (const word of span.text.split(" + ")) this.#span(span, word, row.words.indexOf(word), LAYER_PX - 2);
      } else {
        this.#span(span, span.text, layers[place], row.lane.name === "steps" ? LAYER_PX - 2 : row.height - 8);
      }
    });
  }

  /**
   * @param {Span} span
   * @param {string} text
   * @param {number} layer
   * @param {number} height
   */
  #span(span, text, layer, height) {
    const start = this.axis.x(span.start, this.width);
    const end = this.axis.x(span.end ?? this.window.last ?? this.window.final, this.width);
    if (layer < 0 || layer >= LAYERS || end < 0 || start > this.width) return;
    const {context} = this, left = Math.max(-5, start), width = Math.max(2, Math.min(this.width + 5, end) - left);
    const y = 4 + layer * LAYER_PX;
    context.fillStyle = this.colour(span.tone);
    context.beginPath();
    context.roundRect(left, y, width, height, 3);
    context.fill();
    context.font = this.font(11);
    if (context.measureText(text).width > width - 10) return;
    context.textAlign = "left";
    context.fillStyle = this.colour(span.tone === "wait" ? "on-wait" : "on");
    context.fillText(text, Math.max(4, left + 5), y + height / 2 + 4);
  }

  /** @param {Mark} mark */
  #mark(mark) {
    const place = this.axis.x(mark.at, this.width), size = this.row.lane.name === "log" ? 3 : 5;
    if (place < -1 || place > this.width + 1) return;
    const x = Math.max(size, Math.min(this.width - size, place)), y = this.row.height / 2, {context} = this;
    context.fillStyle = this.colour(mark.tone);
    context.beginPath();
    context.moveTo(x, y - size);
    context.lineTo(x + size, y);
    context.lineTo(x, y + size);
    context.lineTo(x - size, y);
    context.fill();
  }

  /**
   * @param {Lane} lane
   * @param {Line[]} lines
   */
  #curves(lane, lines) {
    const top = scaleOf(lane, lines), floor = this.row.height - 6, {context} = this;
    const y = (/** @type {number} */ value) => floor - Math.max(0, Math.min(1, value / top)) * (this.row.height - 14);
    context.strokeStyle = this.colour("grid");
    for (const part of [0.5, 1]) {
      context.beginPath();
      context.moveTo(0, Math.round(y(top * part)) + 0.5);
      context.lineTo(this.width, Math.round(y(top * part)) + 0.5);
      context.stroke();
    }
    context.save();
    lines.forEach((line, place) => this.#curve(line, this.colour(`l${place % LINES}`), y,
      lane.name.startsWith("logged ") ? reach(line) : 1));
    context.restore();
    this.#scale(top, y, lane.unit || "");
  }

  /**
   * @param {Line} line
   * @param {string} colour
   * @param {(value: number) => number} y
   * @param {number} most  So many steps may lie between two known ones, and the line goes on.
   */
  #curve(line, colour, y, most) {
    const {context} = this, [start, end] = this.axis.view;
    const first = Math.max(0, Math.floor((start - line.start) / line.step_s) - 1);
    const behind = Math.min(line.mean.length, Math.ceil((end - line.start) / line.step_s) + 1);
    const from = this.window.from ?? -Infinity, last = this.window.last ?? Infinity;
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.5;
    const path = new Path2D(), band = new Path2D();
    let known = -Infinity;
    for (let at = first; at < behind; at += 1) {
      const mean = line.mean[at];
      if (mean === null || mean === undefined) continue;
      const x0 = this.axis.x(Math.max(line.start + at * line.step_s, from), this.width);
      const x1 = this.axis.x(Math.min(line.start + (at + 1) * line.step_s, last), this.width);
      if (x1 < x0) continue;
      if (at - known > most) path.moveTo(x0, y(mean));
      else path.lineTo(x0, y(mean));
      path.lineTo(x1, y(mean));
      known = at;
      const low = line.low?.[at] ?? mean, high = line.high?.[at] ?? mean;
      if (high > low) band.rect(x0, y(high), x1 - x0, y(low) - y(high));
    }
    context.globalAlpha = 0.18;
    context.fill(band);
    context.globalAlpha = 1;
    context.stroke(path);
  }

  /**
   * Above the curves, which would strike the figures through.
   * @param {number} top
   * @param {(value: number) => number} y
   * @param {string} unit
   */
  #scale(top, y, unit) {
    const {context} = this;
    context.font = this.font(10);
    context.textAlign = "right";
    context.lineJoin = "round";
    for (const part of [0.5, 1]) {
      const text = figure(top * part, unit), at = y(top * part) + 11;
      context.lineWidth = 4;
      context.strokeStyle = this.colour("card");
      context.strokeText(text, this.width - 4, at);
      context.fillStyle = this.colour("quiet");
      context.fillText(text, this.width - 4, at);
    }
  }
}

/**
 * What the top of a row of curves stands for.
 * @param {Lane} lane
 * @param {Line[]} lines
 */
function scaleOf(lane, lines) {
  if (lane.top) return lane.top;
  let most = 0;
  for (const line of lines) {
    for (const value of line.high || line.mean) if (value !== null && value > most) most = value;
  }
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most)), part = [1, 2, 2.5, 5, 10].find((each) => each * power >= most) || 10;
  return part * power;
}

/**
 * How many steps may lie between two points that a program logged at its own pace.
 * @param {Line} line
 */
function reach(line) {
  const known = line.mean.flatMap((value, at) => value === null ? [] : [at]);
  const apart = known.slice(1).map((at, place) => at - known[place]).sort((one, other) => one - other);
  return apart.length ? 3 * apart[Math.floor(apart.length / 2)] : 1;
}
