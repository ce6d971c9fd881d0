// A page of one file with timelines in it: its data lies beside it.
// @ts-check
import { drawTimeline } from "./timeline.js";

const told = JSON.parse(document.getElementById("told")?.textContent ?? "{}");
document.querySelectorAll(".chart").forEach((holder, place) => drawTimeline(/** @type {HTMLElement} */ (holder), told.timelines[place]));
