// CSV of the tables that are shown: raw figures where a cell has one, else its text.
// @ts-check

/** @param {string} text */
const quoted = (text) => (/[",\n\r]/.test(text) || /^[=+\-@\t]/.test(text) && Number.isNaN(Number(text)) ? `"${text.replace(/^(?=[=+\-@\t])/, "'").replaceAll('"', '""')}"` : text);

/** @param {HTMLTableElement} table */
export function csvOf(table) {
  const skipped = new Set([...table.querySelectorAll("thead th")].flatMap((head, at) => (head.querySelector(".hear") ? [at] : [])));
  return [...table.rows].map((row) => [...row.cells].filter((_, at) => !skipped.has(at)).map((cell) => {
    const time = cell.querySelector("time");
    return quoted(cell.dataset.value ?? time?.getAttribute("datetime") ?? (cell.textContent ?? "").trim().replace(/\s+/g, " "));
  }).join(",")).join("\r\n") + "\r\n";
}

for (const button of document.querySelectorAll("button[data-csv]")) {
  button.addEventListener("click", () => {
    const { csv, file } = /** @type {HTMLElement} */ (button).dataset;
    const table = document.getElementById(csv ?? "");
    if (!(table instanceof HTMLTableElement)) {
      return;
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
    link.download = file ?? "bireme.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1_000);
  });
}
