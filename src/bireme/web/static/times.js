// Times as people read them: near ones by how far away they are, others in the reader's zone; the exact one on hover.
// The server writes `<time datetime>` in UTC, which is what is there without scripts.
// @ts-check

const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const AWAY = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });
const NEAR_S = 3600;

/** @param {number} at seconds since the epoch @param {number} now @returns {string} */
export function near(at, now) {
  const away = at - now;
  if (Math.abs(away) < 60) {
    return AWAY.format(Math.round(away), "second");
  }
  if (Math.abs(away) < NEAR_S) {
    return AWAY.format(Math.round(away / 60), "minute");
  }
  const [then, today] = [new Date(at * 1000), new Date(now * 1000)];
  return (then.toDateString() === today.toDateString() ? CLOCK : DAY).format(then);
}

/** @param {ParentNode} root */
export function sayTimes(root) {
  const now = Date.now() / 1000;
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = Date.parse(element.getAttribute("datetime") ?? "") / 1000;
    if (!Number.isNaN(at)) {
      const text = near(at, now);
      if (element.textContent !== text) {
        element.textContent = text;
      }
      element.setAttribute("title", EXACT.format(at * 1000));
    }
  }
}

setInterval(() => sayTimes(document), 10_000);
document.addEventListener("bireme:part", (event) => sayTimes(/** @type {HTMLElement} */ (event.target)));
