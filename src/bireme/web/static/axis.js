// One axis of time for all rows of a board: what part of it is looked at, and the gestures that change that.
// Pointer, wheel, pinch and keyboard come here; whoever draws is told by `changed`.
// @ts-check

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800,
  604800, 2592000];
const SHORTEST_S = 2;

export class Axis {
  /**
   * @param {number} first
   * @param {number} final
   * @param {() => void} changed
   */
  constructor(first, final, changed) {
    this.first = first;
    this.final = Math.max(final, first + 1);
    /** @type {[number, number]} */
    this.view = [this.first, this.final];
    this.changed = changed;
  }

  /**
   * Another whole: who looks at all of it goes on doing so, who looks at its end follows it, who looks at a part stays.
   * @param {number} first
   * @param {number} final
   */
  extend(first, final) {
    const all = this.view[0] <= this.first && this.view[1] >= this.final, atEnd = this.view[1] >= this.final;
    const length = this.view[1] - this.view[0];
    this.first = first;
    this.final = Math.max(final, first + 1);
    if (all) this.view = [this.first, this.final];
    else if (atEnd) this.view = [this.final - length, this.final];
  }

  whole() { this.show(this.first, this.final); }

  /**
   * @param {number} factor
   * @param {number} [around]
   */
  zoom(factor, around) {
    const [start, end] = this.view, middle = around === undefined ? (start + end) / 2 : around;
    this.show(middle - (middle - start) * factor, middle + (end - middle) * factor);
  }

  /** @param {number} part */
  pan(part) {
    const by = (this.view[1] - this.view[0]) * part;
    this.show(this.view[0] + by, this.view[1] + by);
  }

  /**
   * @param {number} start
   * @param {number} end
   */
  show(start, end) {
    const longest = this.final - this.first;
    const length = Math.max(Math.min(end - start, longest), Math.min(SHORTEST_S, longest));
    const begin = Math.max(this.first, Math.min(start, this.final - length));
    this.view = [begin, begin + length];
    this.changed();
  }

  /**
   * Where a moment is, of so many pixels.
   * @param {number} at
   * @param {number} width
   */
  x(at, width) { return (at - this.view[0]) / (this.view[1] - this.view[0]) * width; }

  /**
   * Round moments in the reader's zone, at most one in 110 pixels.
   * @param {number} width
   */
  ticks(width) {
    const span = this.view[1] - this.view[0];
    const step = STEPS.find((each) => each >= span / Math.max(2, width / 110)) || STEPS[STEPS.length - 1];
    const shift = new Date(this.view[0] * 1000).getTimezoneOffset() * 60;
    const found = [];
    for (let at = Math.ceil((this.view[0] - shift) / step) * step + shift; at <= this.view[1]; at += step) found.push(at);
    return found;
  }

  /**
   * Gestures on an element; `plane` is the part of it that shows the time.
   * @param {HTMLElement} element
   * @param {() => DOMRect} plane
   */
  listen(element, plane) {
    const at = (/** @type {{clientX: number}} */ event) => {
      const box = plane();
      return this.view[0] + (event.clientX - box.left) / Math.max(1, box.width) * (this.view[1] - this.view[0]);
    };
    element.addEventListener("wheel", (event) => this.#wheeled(event, at(event), element), {passive: false});
    element.addEventListener("keydown", (event) => this.#typed(event));
    element.addEventListener("dblclick", (event) => this.zoom(0.4, at(event)));
    this.#follow(element, plane);
  }

  /**
   * @param {WheelEvent} event
   * @param {number} around
   * @param {HTMLElement} element
   */
  #wheeled(event, around, element) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const meant = event.ctrlKey || event.shiftKey || event.altKey || sideways || document.activeElement === element;
    if (!meant) return;  // the page is scrolled
    event.preventDefault();
    if (sideways) this.pan(event.deltaX / 800);
    else this.zoom(event.deltaY < 0 ? 0.8 : 1.25, around);
  }

  /** @param {KeyboardEvent} event */
  #typed(event) {
    /** @type {Record<string, () => void>} */
    const keys = {
      "ArrowLeft": () => this.pan(-0.1), "ArrowRight": () => this.pan(0.1), "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5), "-": () => this.zoom(2), "0": () => this.whole(), "Home": () => this.whole(),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();  // the page has keys of its own
    act();
  }

  /**
   * One pointer drags, two pinch.
   * @param {HTMLElement} element
   * @param {() => DOMRect} plane
   */
  #follow(element, plane) {
    /** @type {Map<number, number>} */
    const held = new Map();
    /** @type {{view: [number, number], from: number[]}} */
    let begun = {view: this.view, from: []};
    const begin = () => { begun = {view: this.view, from: [...held.values()].sort((one, other) => one - other)}; };
    element.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      held.set(event.pointerId, event.clientX);
      element.setPointerCapture(event.pointerId);
      begin();
    });
    element.addEventListener("pointermove", (event) => {
      if (!held.has(event.pointerId)) return;
      held.set(event.pointerId, event.clientX);
      const now = [...held.values()].sort((one, other) => one - other), box = plane();
      const scale = (begun.view[1] - begun.view[0]) / Math.max(1, box.width);
      if (now.length === 1) {
        const moved = (begun.from[0] - now[0]) * scale;
        this.show(begun.view[0] + moved, begun.view[1] + moved);
      } else if (now.length === 2) {
        const factor = Math.max(1, begun.from[1] - begun.from[0]) / Math.max(1, now[1] - now[0]);
        const middle = begun.view[0] + ((begun.from[0] + begun.from[1]) / 2 - box.left) * scale;
        this.show(middle - (middle - begun.view[0]) * factor, middle + (begun.view[1] - middle) * factor);
      }
    });
    for (const end of ["pointerup", "pointercancel"]) {
      element.addEventListener(end, (event) => {
        held.delete(/** @type {PointerEvent} */ (event).pointerId);
        begin();
      });
    }
  }
}
