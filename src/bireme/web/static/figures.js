// Figures and times in words, as the commands write them. Values in, text out; nothing here touches a page.
// @ts-check

const two = (/** @type {number} */ number) => String(number).padStart(2, "0");

/**
 * A value with its unit, short.
 * @param {number | null | undefined} value
 * @param {string} unit
 */
export function figure(value, unit) {
  if (value === null || value === undefined) return "not measured";
  if (unit === "MiB" && Math.abs(value) >= 1024) return figure(value / 1024, "GiB");
  if (unit === "KiB/s" && Math.abs(value) >= 1024) return figure(value / 1024, "MiB/s");
  if (unit === "s" && value !== 0 && Math.abs(value) < 1) return figure(value * 1000, "ms");
  if (!unit) return `${Number(value.toPrecision(4))}`;
  const digits = Math.abs(value) >= 100 || unit === "%" || Number.isInteger(value) ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${unit === "%" ? "%" : ` ${unit}`}`;
}

/**
 * A number of hours, of so many seconds.
 * @param {number} seconds
 */
export function hours(seconds) {
  const value = seconds / 3600;
  return value.toLocaleString(undefined, {maximumFractionDigits: value >= 100 ? 0 : value >= 10 ? 1 : 2});
}

/**
 * How long, in its two largest units: "2 h 5 min".
 * @param {number} seconds
 */
export function lasted(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 24 * 60) return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  const total = Math.floor(minutes / 60);
  return total % 24 ? `${Math.floor(total / 24)} d ${total % 24} h` : `${total / 24} d`;
}

/**
 * The time of day on an axis that shows so many seconds, in the reader's zone.
 * @param {number} at
 * @param {number} span
 */
export function clock(at, span) {
  const date = new Date(at * 1000);
  const hour = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (span > 3 * 86400) return `${two(date.getMonth() + 1)}-${two(date.getDate())} ${hour}`;
  return span < 4 * 3600 ? `${hour}:${two(date.getSeconds())}` : hour;
}

/**
 * The exact time, in the reader's zone.
 * @param {number} at
 */
export function exact(at) {
  const date = new Date(at * 1000);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(at, 0)}`;
}
