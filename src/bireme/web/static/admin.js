// Admin: reservations as a calendar, and the forms whose request is more than their fields.
// @ts-check
import { api, tell } from "./actions.js";
import { Board } from "./plot.js";
import { there } from "./making.js";

/** @type {Board | null} */
let board = null;
let drawn = "";

function calendar() {
  const text = document.getElementById("calendar-data")?.textContent ?? "";
  if (text === drawn) {
    return;
  }
  drawn = text;
  const place = there("calendar");
  if (text === "") {
    place.replaceChildren();
    board = null;
    return;
  }
  const told = JSON.parse(text), window = { first: told.first, final: told.final, label: "Reservations" };
  if (board === null) {
    board = new Board(place, told.lanes, window);
  } else {
    board.update(told.lanes, window);
  }
}

/** @param {FormData} said @param {string} name */
const list = (said, name) => String(said.get(name) ?? "").split(",").map((word) => word.trim()).filter(Boolean);

/** @param {string} id @param {(said: FormData) => [string, object]} request @param {(told: any) => string} done */
function sends(id, request, done) {
  const form = document.getElementById(id);
  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    form.setAttribute("aria-busy", "true");
    try {
      const [path, body] = request(new FormData(/** @type {HTMLFormElement} */ (form)));
      tell(done(await api(path, body)));
      /** @type {HTMLFormElement} */ (form).reset();
    } catch (error) {
      tell(error instanceof Error ? error.message : String(error), "bad");
    } finally {
      form.removeAttribute("aria-busy");
    }
  });
}

/** @param {FormData} said @returns {[string, object]} */
function reservation(said) {
  const begin = Date.parse(String(said.get("begin"))) / 1000;
  /** @type {Record<string, unknown>} */
  const order = { begin, duration_s: Math.round(Number(said.get("hours")) * 3600) };
  if (said.get("nodes")) {
    order.nodes = [String(said.get("nodes"))];
  } else if (said.get("count")) {
    order.node_count = Number(said.get("count"));
  }
  for (const name of ["users", "accounts", "flags"]) {
    const words = list(said, name);
    if (words.length > 0) {
      order[name] = words;
    }
  }
  return ["/v1/reservations", { name: String(said.get("name") ?? ""), order }];
}

/** @param {FormData} said @returns {[string, object]} */
function limit(said) {
  const [name, tres] = String(said.get("limit")).split(":"), most = said.get("most") === "" ? -1 : Number(said.get("most"));
  const limits = tres === undefined ? { counts: { [name]: most } } : { tres: { [name]: { [tres]: most } } };
  const order = { _: "ModifyAccounts", where: { accounts: [String(said.get("account"))] }, edit: { limits } };
  return ["/v1/accounting/changes", { orders: [order] }];
}

/** @param {FormData} said @returns {[string, object]} */
function account(said) {
  const name = String(said.get("name")), users = list(said, "users");
  const orders = [{ _: "AddAccounts", names: [name], parent: String(said.get("parent")) },
    ...(users.length > 0 ? [{ _: "AddUsers", names: users, accounts: [name] }] : [])];
  return ["/v1/accounting/changes", { orders }];
}

sends("reserve", reservation, (told) => `Reservation ${told.name} is made.`);
sends("limit", limit, () => "The limit is set.");
sends("account", account, () => "The account is added.");
calendar();
document.addEventListener("bireme:part", calendar);
