// Parts of the page that stay true: the server sends a part as soon as it looks different, and it is put in place of
// the old one piece by piece, so that focus, selection and what is open stay. A page that hears nothing says so.
// @ts-check
import { morph } from "./morph.js";

const root = document.documentElement.dataset.root ?? "";
const SILENT_MS = 40_000;

/** @type {EventSource | null} */
let source = null;
let heardAt = Date.now();

/** @returns {HTMLElement[]} */
const parts = () => [...document.querySelectorAll("[data-part]")].map((each) => /** @type {HTMLElement} */ (each));

export function startLive() {
  if (parts().length === 0) {
    return;
  }
  open();
  setInterval(() => {
    if (source !== null && Date.now() - heardAt > SILENT_MS) {
      say("stale", `This page has heard nothing since ${new Date(heardAt).toLocaleTimeString()}: what it shows may be old.`);
    }
  }, 5_000);
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("popstate", () => location.reload());
}

/** The address has changed without a new page: its parts are listened to anew. */
export function moved() {
  close();
  open();
}

function open() {
  if (source !== null) {
    return;
  }
  const asked = new URLSearchParams({ page: location.pathname.slice(root.length) + location.search });
  for (const part of parts()) {
    asked.append("part", part.dataset.part ?? "");
  }
  source = new EventSource(`${root}/live?${asked}`);
  source.addEventListener("open", () => heard());
  source.addEventListener("part", (event) => {
    heard();
    const told = JSON.parse(event.data);
    for (const place of parts()) {
      if (place.dataset.part === told.part) {
        put(place, told.html);
      }
    }
  });
  source.addEventListener("back", () => heard());
  source.addEventListener("away", (event) => say("stale", `The daemon does not answer: what is shown is as it was. ${JSON.parse(event.data)}`));
  source.addEventListener("out", () => {
    close();
    say("out", "Your session has ended: bireme web prints a link to a new one.");
  });
  source.addEventListener("error", () => {
    say("stale", `The connection broke at ${new Date(heardAt).toLocaleTimeString()}: what is shown is as it was then. Trying again …`);
    if (source !== null && source.readyState === EventSource.CLOSED) {
      close(); // it was refused, and the browser does not try again by itself
      setTimeout(() => document.hidden || open(), 5_000);
    }
  });
}

function close() {
  source?.close();
  source = null;
}

function heard() {
  heardAt = Date.now();
  say("live", "");
}

/** @param {string} state @param {string} text */
function say(state, text) {
  const [shown, banner] = [document.getElementById("live"), document.getElementById("stale")];
  if (shown !== null && shown.dataset.state !== state) {
    shown.dataset.state = state;
    shown.textContent = { live: "live", stale: "stale", out: "logged out" }[state] ?? "";
  }
  if (banner !== null) {
    banner.hidden = text === "";
    banner.textContent = text;
  }
}

/** Puts new contents in place, and says so to whoever draws more of them. @param {HTMLElement} place @param {string} html */
export function put(place, html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html; // escaped by the server, and scripts in it never run (Content-Security-Policy)
  const focused = document.activeElement;
  morph(place, fresh.content);
  if (focused instanceof HTMLElement && focused !== document.activeElement && focused.isConnected) {
    focused.focus({ preventScroll: true }); // a row that has moved loses it
  }
  place.dispatchEvent(new CustomEvent("bireme:part", { bubbles: true }));
}
