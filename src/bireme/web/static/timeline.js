// A job over time, as `/v1/jobs/JOB/timeline` tells it, on a board: on its page, and in `bireme timeline --html`.
// @ts-check
import { Board } from "./plot.js";

/** @typedef {{job: string, start: number, end: number, now: number, is_over?: boolean, lanes: import("./plot.js").Lane[],
 *   log?: {stream: string, lines: {start: number | null, end: number, text: string}[]}[]}} Timeline */

/** Lines of output as marks, where it is known when they were written. @param {Timeline} told @returns {import("./plot.js").Lane[]} */
function outputs(told) {
  return (told.log ?? []).flatMap((output) => {
    const marks = output.lines.filter((line) => line.start !== null).map((line) => ({ at: line.end, text: line.text, tone: "note" }));
    return marks.length > 0 ? [{ name: "log", title: output.stream === "out" ? "output lines" : "error lines", marks }] : [];
  });
}

/** @param {HTMLElement} holder @param {Timeline} told @param {Board | null} [board] what is there already */
export function drawTimeline(holder, told, board = null) {
  const placed = told.lanes.filter((lane) => lane.name === "placement").flatMap((lane) => lane.spans ?? []);
  const window = {
    first: told.start,
    final: Math.max(told.end, told.start + 1),
    last: told.is_over ? told.end : Math.min(told.now, told.end),
    from: placed.length > 0 ? Math.min(...placed.map((span) => span.start)) : told.start,
    label: `Job ${told.job} over time`,
  };
  const lanes = [...told.lanes, ...outputs(told)];
  if (board === null) {
    return new Board(holder, lanes, window);
  }
  board.update(lanes, window);
  return board;
}
