// Changes: buttons and forms that send a request of the API's, say what came of it, and ask before what cannot be taken
// back. `data-post` is the path, `data-body` its JSON; the fields of a form with `data-post` are its JSON.
// @ts-check

const root = document.documentElement.dataset.root ?? "";

export class ApiError extends Error {
  /** @param {number} status @param {{message?: string, hint?: string}} said */
  constructor(status, said) {
    super([said.message ?? `status ${status}`, said.hint].filter(Boolean).join(" "));
    this.status = status;
  }
}

/**
 * One request to the API.
 * @param {string} path @param {unknown} [body] what to POST; without it the request is a GET
 * @returns {Promise<any>}
 */
export async function api(path, body) {
  const proof = document.querySelector("meta[name=proof]")?.getAttribute("content") ?? "";
  const raw = typeof body === "string";
  const how = body === undefined ? {} : {
    method: "POST",
    headers: { "bireme-proof": proof, "content-type": raw ? "application/octet-stream" : "application/json" },
    body: raw ? body : JSON.stringify(body),
  };
  const answer = await fetch(root + path, how);
  const text = await answer.text();
  let told = null;
  try {
    told = JSON.parse(text);
  } catch {
    // plain text: a script, a log
  }
  if (!answer.ok) {
    throw new ApiError(answer.status, told?.error ?? { message: text.slice(0, 300) });
  }
  return told ?? text;
}

/** Says something at the foot of the page, also to who cannot see it. @param {string} text @param {"good" | "bad"} kind */
export function tell(text, kind = "good") {
  const place = document.getElementById("said");
  if (place !== null) {
    place.textContent = text;
    place.dataset.kind = kind;
    place.classList.add("shown");
    clearTimeout(hiding);
    hiding = setTimeout(() => place.classList.remove("shown"), kind === "good" ? 5_000 : 15_000);
  }
}
let hiding = 0;

/** @param {HTMLElement} element @param {unknown} body */
async function send(element, body) {
  const [path, ask] = [element.dataset.post ?? "", element.dataset.ask ?? ""];
  if (ask !== "" && !confirm(ask)) {
    return;
  }
  element.setAttribute("aria-busy", "true");
  try {
    const told = await api(path, body);
    tell(element.dataset.done ?? `Done: ${(element.dataset.label ?? element.textContent ?? "").trim()}`);
    element.dispatchEvent(new CustomEvent("bireme:done", { bubbles: true, detail: told }));
  } catch (error) {
    tell(error instanceof Error ? error.message : String(error), "bad");
    element.dispatchEvent(new CustomEvent("bireme:refused", { bubbles: true, detail: error }));
  } finally {
    element.removeAttribute("aria-busy");
  }
}

/** The fields of a form as JSON: numbers of number fields and sliders, true and false of boxes; empty ones are left out.
 * @param {HTMLFormElement} form */
export function fieldsOf(form) {
  /** @type {Record<string, unknown>} */
  const found = JSON.parse(form.dataset.body ?? "{}");
  for (const field of form.elements) {
    if (!(field instanceof HTMLInputElement || field instanceof HTMLSelectElement || field instanceof HTMLTextAreaElement) || field.name === "") {
      continue;
    }
    const value = field instanceof HTMLInputElement && field.type === "checkbox" ? field.checked : field.value;
    if (value !== "") {
      const read = field instanceof HTMLInputElement && ["number", "range"].includes(field.type) ? Number(value) : value;
      const [outer, inner] = field.name.split(".");
      if (inner === undefined) {
        found[outer] = read;
      } else {
        found[outer] = { .../** @type {object} */ (found[outer] ?? {}), [inner]: read };
      }
    }
  }
  return found;
}

export function startActions() {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("button[data-post]") : null;
    if (button instanceof HTMLElement) {
      send(button, JSON.parse(button.dataset.body ?? "{}"));
    }
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form instanceof HTMLFormElement && form.dataset.post !== undefined) {
      event.preventDefault();
      send(form, fieldsOf(form));
    }
  });
}
