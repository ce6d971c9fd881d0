"use strict";
// Draws every timeline of the page: rows over one axis that zoom and pan together. Reads the JSON beside it and asks
// nobody for anything. All texts are set as text, never as markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800,
    604800, 2592000];
  const made = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(element);
    return element;
  };
  const html = (name, className, text, parent) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  };
  const two = (number) => String(number).padStart(2, "0");
  const clock = (at, span) => {
    const date = new Date(at * 1000);
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    const hour = `${two(date.getHours())}:${two(date.getMinutes())}`;
    if (span > 3 * 86400) return `${day.slice(5)} ${hour}`;
    return span < 3600 * 4 ? `${hour}:${two(date.getSeconds())}` : hour;
  };
  const whole = (at) => `${new Date(at * 1000).toLocaleDateString()} ${clock(at, 0)}`;
  const short = (value, unit) => {
    if (value === null || value === undefined) return "not measured";
    if (unit === "MiB" && value >= 1024) return `${(value / 1024).toFixed(1)} GiB`;
    if (unit === "KiB/s" && value >= 1024) return `${(value / 1024).toFixed(1)} MiB/s`;
    if (!unit) return `${Number(value.toPrecision(4))}`;
    const digits = Math.abs(value) >= 100 || unit === "%" ? 0 : Math.abs(value) >= 10 ? 1 : 2;
    return `${value.toFixed(digits)}${unit === "%" ? "%" : ` ${unit}`}`;
  };

  class Chart {
    constructor(holder, told) {
      this.told = told;
      this.last = told.is_over ? told.end : Math.min(told.now, told.end);
      this.first = told.start;
      this.final = Math.max(told.end, told.start + 1);
      this.view = [this.first, this.final];
      this.rows = [];
      const placed = told.lanes.filter((lane) => lane.name === "placement").flatMap((lane) => lane.spans);
      this.ranFrom = Math.min(...placed.map((span) => span.start), Infinity);
      if (this.ranFrom === Infinity) this.ranFrom = this.first;
      this.build(holder);
      new ResizeObserver(() => this.draw()).observe(holder);
      this.draw();
    }

    build(holder) {
      const bar = html("div", "tools", undefined, holder);
      const tools = [["Zoom in", () => this.zoom(0.5)], ["Zoom out", () => this.zoom(2)], ["Earlier", () =>
        this.pan(-0.25)], ["Later", () => this.pan(0.25)], ["Whole", () => this.show(this.first, this.final)]];
      for (const [text, action] of tools) {
        const button = html("button", "", text, bar);
        button.type = "button";
        button.addEventListener("click", action);
      }
      this.reading = html("output", "reading", "Point at a row, or use the arrow keys, + and -.", bar);
      this.board = html("div", "board", undefined, holder);
      this.board.tabIndex = 0;
      this.board.setAttribute("role", "group");
      this.board.setAttribute("aria-label",
        `Timeline of job ${this.told.job}. Arrow keys pan, plus and minus zoom, 0 shows all. Tables below have it all.`);
      this.addRow({title: "", name: "axis"}, 26);
      for (const lane of this.told.lanes) {
        if (lane.lines.length) this.addRow(lane, 74);
        else if (lane.name === "steps") this.addRow(lane, 8 + 16 * Math.min(12, this.layers(lane.spans)));
        else if (lane.name === "reasons") this.addRow(lane, 8 + 16 * this.words(lane).length);
        else this.addRow(lane, lane.spans.length ? 28 : 24);
      }
      const log = (this.told.log || []).filter((output) => output.lines.some((line) => line.start !== null));
      for (const output of log) {
        const title = output.stream === "out" ? "output lines" : "error lines";
        const marks = output.lines.filter((line) => line.start !== null)
          .map((line) => ({at: line.end, text: line.text, tone: "note", more: ""}));
        this.addRow({title, name: "log", spans: [], marks, lines: []}, 24);
      }
      this.listen();
    }

    addRow(lane, height) {
      const row = html("div", `row of-${lane.name}`, undefined, this.board);
      const title = html("div", "title", lane.title, row);
      if (lane.about) title.title = lane.about;
      if (lane.lines && lane.lines.length > 1) this.legend(lane, title);
      const svg = made("svg", {height, "aria-hidden": "true"}, row);
      this.rows.push({lane, svg, height});
    }

    legend(lane, title) {
      lane.lines.forEach((line, place) => {
        const item = html("div", "legend", undefined, title);
        html("span", `swatch line${place % 8}`, "", item);
        html("span", "", line.name, item);
      });
    }

    words(lane) {
      return [...new Set(lane.spans.flatMap((span) => span.text.split(" + ")))].slice(0, 12);
    }

    layers(spans) {
      const ends = [];
      for (const span of spans) {
        let layer = ends.findIndex((end) => end <= span.start);
        if (layer < 0) layer = ends.length;
        ends[layer] = span.end === null ? Infinity : span.end;
        span.layer = layer;
      }
      return Math.max(1, ends.length);
    }

    listen() {
      const board = this.board;
      const at = (event) => {
        const box = this.rows[0].svg.getBoundingClientRect();
        return this.view[0] + (event.clientX - box.left) / box.width * (this.view[1] - this.view[0]);
      };
      board.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) < Math.abs(event.deltaY) && !event.altKey
          && document.activeElement !== board) return;
        event.preventDefault();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / 800);
        else this.zoom(event.deltaY < 0 ? 0.8 : 1.25, at(event));
      }, {passive: false});
      board.addEventListener("keydown", (event) => {
        const keys = {ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), "+": () => this.zoom(0.5), "=":
          () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(this.first, this.final),
          Home: () => this.show(this.first, this.final)};
        if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
      });
      let held = null;
      board.addEventListener("pointerdown", (event) => {
        held = {x: event.clientX, view: [...this.view]};
        board.setPointerCapture(event.pointerId);
      });
      board.addEventListener("pointermove", (event) => {
        if (held) {
          const width = this.rows[0].svg.getBoundingClientRect().width;
          const moved = (held.x - event.clientX) / width * (held.view[1] - held.view[0]);
          this.show(held.view[0] + moved, held.view[1] + moved, true);
        }
        this.point(at(event), event);
      });
      board.addEventListener("pointerup", () => { held = null; });
      board.addEventListener("pointerleave", () => this.point(null));
      board.addEventListener("dblclick", (event) => this.zoom(0.4, at(event)));
    }

    zoom(factor, around) {
      const [start, end] = this.view;
      const middle = around === undefined ? (start + end) / 2 : around;
      this.show(middle - (middle - start) * factor, middle + (end - middle) * factor);
    }

    pan(part) {
      const by = (this.view[1] - this.view[0]) * part;
      this.show(this.view[0] + by, this.view[1] + by, true);
    }

    show(start, end, keep) {
      const longest = this.final - this.first;
      let length = Math.max(Math.min(end - start, longest), Math.min(2, longest));
      if (keep) length = Math.min(this.view[1] - this.view[0], longest);
      start = Math.max(this.first, Math.min(start, this.final - length));
      this.view = [start, start + length];
      this.draw();
    }

    draw() {
      for (const row of this.rows) {
        row.width = Math.max(50, row.svg.clientWidth || row.svg.parentNode.clientWidth - 170);
        row.svg.replaceChildren();
        row.svg.setAttribute("viewBox", `0 0 ${row.width} ${row.height}`);
        if (row.lane.name === "axis") this.axis(row);
        else if (row.lane.lines.length) this.curves(row);
        else this.spansAndMarks(row);
        row.cross = made("line", {class: "cross", y1: 0, y2: row.height, x1: -9, x2: -9}, row.svg);
      }
    }

    x(row, at) { return (at - this.view[0]) / (this.view[1] - this.view[0]) * row.width; }

    ticks(row) {
      const span = this.view[1] - this.view[0];
      const step = STEPS.find((each) => each >= span / Math.max(2, row.width / 110)) || STEPS[STEPS.length - 1];
      const shift = new Date(this.view[0] * 1000).getTimezoneOffset() * 60;
      const found = [];
      for (let at = Math.ceil((this.view[0] - shift) / step) * step + shift; at <= this.view[1]; at += step) found.push(at);
      return found;
    }

    axis(row) {
      for (const at of this.ticks(row)) {
        const x = this.x(row, at);
        made("line", {class: "tick", x1: x, x2: x, y1: 19, y2: 26}, row.svg);
        made("text", {class: "when", x, y: 14, "text-anchor": x < 30 ? "start" : x > row.width - 30 ? "end" : "middle"},
          row.svg).textContent = clock(at, this.view[1] - this.view[0]);
      }
    }

    grid(row) {
      for (const at of this.ticks(row)) {
        const x = this.x(row, at);
        made("line", {class: "grid", x1: x, x2: x, y1: 0, y2: row.height}, row.svg);
      }
    }

    spansAndMarks(row) {
      this.grid(row);
      const lane = row.lane;
      const words = lane.name === "reasons" ? this.words(lane) : null;
      for (const span of lane.spans) {
        const start = this.x(row, span.start), end = this.x(row, span.end === null ? this.last : span.end);
        if (end < 0 || start > row.width) continue;
        const layers = words ? span.text.split(" + ").map((word) => words.indexOf(word))
          : [lane.name === "steps" ? span.layer : 0];
        const height = words || lane.name === "steps" ? 14 : row.height - 8;
        for (const layer of layers) {
          if (layer < 0 || layer > 11) continue;
          const left = Math.max(-5, start), width = Math.max(2, Math.min(row.width + 5, end) - left);
          const y = 4 + layer * 16;
          const box = made("rect", {class: `span ${span.tone}`, x: left, y, width, height, rx: 3}, row.svg);
          made("title", {}, box).textContent =
            `${words ? words[layer] : span.text}\n${whole(span.start)} to ${span.end === null ? "now" : whole(span.end)}` +
            `\n${span.more}`;
          const label = words ? words[layer] : span.text;
          if (width > 7 * label.length + 10) {
            made("text", {class: `label ${span.tone}`, x: Math.max(4, left + 5), y: y + height / 2 + 4}, row.svg)
              .textContent = label;
          }
        }
      }
      for (const mark of lane.marks) {
        const place = this.x(row, mark.at);
        if (place < -1 || place > row.width + 1) continue;
        const y = row.height / 2, size = lane.name === "log" ? 3 : 5;
        const x = Math.max(size, Math.min(row.width - size, place));  // whole also at either end of the axis
        const shape = made("path", {class: `mark ${mark.tone}`,
          d: `M${x} ${y - size} L${x + size} ${y} L${x} ${y + size} L${x - size} ${y} Z`}, row.svg);
        made("title", {}, shape).textContent = `${whole(mark.at)}\n${mark.text}\n${mark.more}`;
      }
    }

    scale(lane) {
      if (lane.top) return lane.top;
      if (!lane.highest) {
        lane.highest = Math.max(1e-9, ...lane.lines.map((line) =>
          line.high.reduce((most, value) => value !== null && value > most ? value : most, 0)));
      }
      return lane.highest * 1.05;
    }

    curves(row) {
      this.grid(row);
      const lane = row.lane, top = this.scale(lane), floor = row.height - 6;
      const y = (value) => floor - Math.max(0, Math.min(1, value / top)) * (row.height - 14);
      for (const part of [0.5, 1])
        made("line", {class: "grid", x1: 0, x2: row.width, y1: y(top * part), y2: y(top * part)}, row.svg);
      lane.lines.forEach((line, place) => {
        const reach = lane.name.startsWith("logged ") ? this.reach(line) : 1;
        const first = Math.max(0, Math.floor((this.view[0] - line.start) / line.step_s) - 1);
        const end = Math.min(line.mean.length, Math.ceil((this.view[1] - line.start) / line.step_s) + 1);
        let path = "", upper = [], lower = [], areas = "";
        const close = () => {
          if (upper.length) areas += `M${upper.join("L")}L${lower.reverse().join("L")}Z`;
          upper = []; lower = [];
        };
        let known = -Infinity;
        for (let at = first; at < end; at += 1) {
          if (line.mean[at] === null) { close(); continue; }
          const gap = at - known > reach;
          known = at;
          const begin = Math.max(line.start + at * line.step_s, this.ranFrom);
          const x0 = this.x(row, begin), x1 = this.x(row, Math.min(line.start + (at + 1) * line.step_s, this.last));
          if (x1 < x0) continue;
          const height = y(line.mean[at]).toFixed(1);
          path += `${gap ? "M" : "L"}${x0.toFixed(1)} ${height}L${x1.toFixed(1)} ${height}`;
          upper.push(`${x0.toFixed(1)} ${y(line.high[at]).toFixed(1)}`, `${x1.toFixed(1)} ${y(line.high[at]).toFixed(1)}`);
          lower.push(`${x0.toFixed(1)} ${y(line.low[at]).toFixed(1)}`, `${x1.toFixed(1)} ${y(line.low[at]).toFixed(1)}`);
        }
        close();
        made("path", {class: `area line${place % 8}`, d: areas}, row.svg);
        made("path", {class: `curve line${place % 8}`, d: path}, row.svg);
      });
      for (const part of [0.5, 1])  // above the curves, which would strike them through
        made("text", {class: "scale", x: row.width - 4, y: y(top * part) + 11, "text-anchor": "end"}, row.svg)
          .textContent = short(top * part, lane.unit);
    }

    // How many cells may lie between two points that a program logged at its own pace, and the line goes on.
    reach(line) {
      if (line.reach === undefined) {
        const known = line.mean.flatMap((value, at) => value === null ? [] : [at]);
        const apart = known.slice(1).map((at, place) => at - known[place]).sort((one, other) => one - other);
        line.reach = apart.length ? 3 * apart[Math.floor(apart.length / 2)] : 1;
      }
      return line.reach;
    }

    point(at, event) {
      for (const row of this.rows) {
        const x = at === null ? -9 : this.x(row, at);
        row.cross.setAttribute("x1", x);
        row.cross.setAttribute("x2", x);
      }
      if (at === null || at < this.first || at > this.final) return;
      const row = this.rows.find((each) => {
        const box = each.svg.getBoundingClientRect();
        return event.clientY >= box.top && event.clientY <= box.bottom;
      });
      let words = whole(at);
      if (row && row.lane.lines && row.lane.lines.length) {
        words += "   " + row.lane.lines.slice(0, 8).map((line) => {
          const value = line.mean[Math.floor((at - line.start) / line.step_s)];
          return `${line.name}: ${short(value, row.lane.unit)}`;
        }).join("   ");
      }
      this.reading.textContent = words;
    }
  }

  const told = JSON.parse(document.getElementById("told").textContent);
  document.querySelectorAll(".chart").forEach((holder, place) => new Chart(holder, told.timelines[place]));
})();
