// The keyboard: `/` searches, `j k` walk rows, `g` and a letter goes to a page, `?` shows them all. Rows are elements
// with `data-row`; Enter opens the first link of one. Nothing here is in the way of a field, or of the browser's keys.
// @ts-check

const root = document.documentElement.dataset.root ?? "";
const GO_MS = 1_500;
let goUntil = 0;

/** @type {Map<string, () => void>} */
const own = new Map();

/** A page's own key. @param {string} key @param {() => void} act */
export function onKey(key, act) {
  own.set(key, act);
}

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) {
      return;
    }
    const field = event.target instanceof Element && event.target.closest("input, select, textarea, [contenteditable]");
    if (field instanceof HTMLElement) {
      if (event.key === "Escape") {
        field.blur();
      }
      return;
    }
    if (press(event.key)) {
      event.preventDefault();
    }
  });
  document.querySelector("[data-keys]")?.addEventListener("click", showKeys);
  document.querySelector("[data-theme-switch]")?.addEventListener("click", switchTheme);
  document.querySelector("form.search")?.addEventListener("submit", (event) => {
    const text = /** @type {HTMLInputElement} */ (document.getElementById("search")).value.trim();
    if (/^\d+(_\d+|\+\d+)?$/.test(text)) {
      event.preventDefault();
      location.assign(`${root}/jobs/${text}`);
    }
  });
}

/** @param {string} key @returns {boolean} whether it meant something */
function press(key) {
  if (Date.now() < goUntil) {
    goUntil = 0;
    return go(key);
  }
  switch (key) {
    case "/": {
      const search = document.getElementById("search");
      search?.focus();
      return search !== null;
    }
    case "j": return walk(1);
    case "k": return walk(-1);
    case "g": goUntil = Date.now() + GO_MS; return true;
    case "t": switchTheme(); return true;
    case "?": showKeys(); return true;
    case "Escape": return closeMenus();
  }
  const act = own.get(key);
  act?.();
  return act !== undefined;
}

/** @param {string} key */
function go(key) {
  const link = document.querySelector(`a[data-go="${CSS.escape(key)}"]`);
  if (link instanceof HTMLAnchorElement) {
    location.assign(link.href);
  }
  return link !== null;
}

/** @param {number} step */
function walk(step) {
  const rows = [...document.querySelectorAll("[data-row]")].filter((row) => row instanceof HTMLElement && row.offsetParent !== null);
  if (rows.length === 0) {
    return false;
  }
  const focused = document.activeElement?.closest("[data-row]");
  const at = focused ? rows.indexOf(focused) : step > 0 ? -1 : rows.length;
  const row = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  const target = row.matches("a, button") ? row : row.querySelector("a, button");
  if (target instanceof HTMLElement) {
    target.focus();
    row.scrollIntoView({ block: "nearest" });
  }
  return true;
}

function closeMenus() {
  const open = document.querySelectorAll("details.menu[open]");
  open.forEach((each) => each.removeAttribute("open"));
  return open.length > 0;
}

function showKeys() {
  const dialog = document.getElementById("keys");
  if (dialog instanceof HTMLDialogElement && !dialog.open) {
    dialog.showModal();
  }
}

function switchTheme() {
  document.dispatchEvent(new Event("bireme:switch-theme"));
}
