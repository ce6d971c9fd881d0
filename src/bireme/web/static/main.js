// What every page has: live parts, keys, times, forms. Pages with more of their own load a module beside this one.
// @ts-check
import { startActions } from "./actions.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { sayTimes } from "./times.js";

sayTimes(document);
startKeys();
startActions();
startLive();
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone the menu is wider than the screen
