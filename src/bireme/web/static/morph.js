// Makes the children of an element look like others, changing as little as can be: rows are told apart by `data-key`,
// what has the focus or was opened stays as it is.
// @ts-check

const KEPT = new Set(["open", "aria-selected"]); // what a reader did, not what the server says

/** @param {Element} place @param {DocumentFragment | Element} fresh */
export function morph(place, fresh) {
  const keyed = new Map();
  for (const child of place.children) {
    const key = keyOf(child);
    if (key !== "") {
      keyed.set(key, child);
    }
  }
  /** @type {ChildNode | null} */
  let here = place.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const known = wanted instanceof Element ? keyed.get(keyOf(wanted)) : undefined;
    if (known !== undefined && known !== here) {
      place.insertBefore(known, here);
      here = known;
    }
    if (here !== null && isAlike(here, wanted)) {
      change(here, wanted);
      here = here.nextSibling;
    } else {
      place.insertBefore(wanted, here);
    }
  }
  while (here !== null) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

/** @param {Node} node @returns {string} */
function keyOf(node) {
  return node instanceof HTMLElement || node instanceof SVGElement ? (node.dataset.key ?? node.id) : "";
}

/** @param {Node} one @param {Node} other */
function isAlike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

/** @param {ChildNode} old @param {Node} wanted */
function change(old, wanted) {
  if (!(old instanceof Element) || !(wanted instanceof Element)) {
    if (old.nodeValue !== wanted.nodeValue) {
      old.nodeValue = wanted.nodeValue;
    }
    return;
  }
  if (old === document.activeElement && old.matches("input, select, textarea")) {
    return;
  }
  if (old instanceof HTMLElement && old.dataset.own !== undefined) {
    return; // a script draws in it
  }
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !KEPT.has(name)) {
      old.removeAttribute(name);
    }
  }
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value && !KEPT.has(name)) {
      old.setAttribute(name, value);
    }
  }
  morph(old, wanted);
}
