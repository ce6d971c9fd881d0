// Elements made by scripts: their texts are set as text, never as markup.
// @ts-check

/**
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {{class?: string, text?: string} & Record<string, string | undefined>} [attributes]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function made(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined) {
      continue;
    }
    if (key === "text") {
      element.textContent = value;
    } else {
      element.setAttribute(key, value);
    }
  }
  element.append(...children);
  return element;
}

/**
 * A table of text; columns whose head begins with `#` are numbers.
 * @param {string} label
 * @param {string[]} heads
 * @param {(string | Node)[][]} rows
 */
export function table(label, heads, rows) {
  const kinds = heads.map((head) => (head.startsWith("#") ? "n" : "text"));
  const head = made("tr", {}, ...heads.map((text, at) => made("th", { scope: "col", class: kinds[at], text: text.replace("#", "") })));
  const body = rows.map((row) => made("tr", { "data-row": "" }, ...row.map((cell, at) => made("td", { class: kinds[at] }, cell))));
  return made("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    made("table", {}, made("thead", {}, head), made("tbody", {}, ...body)));
}

/** The element of this id, which the page has. @param {string} id @returns {HTMLElement} */
export function there(id) {
  const found = document.getElementById(id);
  if (found === null) {
    throw new Error(`the page has no ${id}`);
  }
  return found;
}

/** Calls it once, when nobody has called for a while. @param {() => void} act @param {number} ms */
export function calmly(act, ms) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, ms);
  };
}

/** @param {EventTarget | null} slider */
function sayValue(slider) {
  if (slider instanceof HTMLInputElement && slider.dataset.shows !== undefined) {
    const place = document.getElementById(slider.dataset.shows);
    if (place !== null) {
      place.textContent = Number(slider.value).toLocaleString() + (slider.dataset.unit ?? "");
    }
  }
}

/** Sliders say their value beside them, also after the part of the page that they are in was drawn again. */
export function showSliders() {
  const sayAll = () => document.querySelectorAll("input[data-shows]").forEach(sayValue);
  document.addEventListener("input", (event) => sayValue(event.target));
  document.addEventListener("bireme:part", sayAll);
  sayAll();
}
