"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const selects = all("select[data-filter]");
  const method = document.getElementById("filter-method");
  const resolved = document.getElementById("filter-resolved");
  const grid = document.getElementById("filter-grid");

  const chosen = () => Object.fromEntries(selects.map((select) => [select.dataset.filter, select.value]));
  // An element without an attribute is not filtered by it: a row of a board has no scale. The item belongs to a cell.
  const fits = (element, wanted) =>
    Object.entries(wanted).every(([key, value]) => !value || !(key in element.dataset) || element.dataset[key] === value);

  function filter() {
    const wanted = chosen();
    const part = method.value.trim().toLowerCase();
    const listed = (row) => !("grid" in row.dataset) || grid.checked || part.includes("[");
    const matches = (row) => listed(row) && row.dataset.method.toLowerCase().includes(part);
    const isResolved = (element) => ["faster", "slower"].includes(element.dataset.verdict);
    for (const board of all(".board")) {
      for (const cell of all("[data-task]", board)) cell.hidden = Boolean(wanted.task) && cell.dataset.task !== wanted.task;
      const rows = all("tbody tr", board);
      for (const row of rows) {
        const cells = all("td", row).filter((cell) => !cell.hidden);
        const selected = cells.some((cell) => (!wanted.item || cell.dataset.item === wanted.item) && (!resolved.checked || isResolved(cell)));
        row.hidden = !(fits(row, wanted) && matches(row) && selected);
      }
      board.hidden = !fits(board, wanted) || rows.every((row) => row.hidden);
    }
    let count = 0;
    for (const row of all("#all tbody tr")) {
      row.hidden = !(fits(row, wanted) && matches(row) && (!resolved.checked || isResolved(row)));
      count += row.hidden ? 0 : 1;
    }
    document.getElementById("count").textContent = count === 1 ? "1 entry" : `${count} entries`;
  }

  const valueOf = (row, column) => {
    const cell = row.children[column];
    const text = "value" in cell.dataset ? cell.dataset.value : cell.textContent.trim();
    const number = Number(text);
    return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
  };

  function sort(header) {
    const table = header.closest("table");
    const column = [...header.parentElement.children].indexOf(header);
    const numbers = all("tbody tr", table).some((row) => typeof valueOf(row, column) === "number");
    const before = header.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numbers; // numbers start with the highest
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const compare = (one, two) => {
      const [a, b] = [valueOf(one, column), valueOf(two, column)];
      if (a === null || b === null) return (a === null) - (b === null); // missing values are last in both orders
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return down ? -order : order;
    };
    table.tBodies[0].append(...all("tbody tr", table).sort(compare));
  }

  for (const header of all("thead th")) header.querySelector("button").addEventListener("click", () => sort(header));
  for (const control of [...selects, resolved, grid].filter(Boolean)) control.addEventListener("change", filter);
  method.addEventListener("input", filter);
  document.getElementById("clear").addEventListener("click", () => {
    for (const select of selects) select.value = "";
    method.value = "";
    for (const box of [resolved, grid].filter(Boolean)) box.checked = false;
    filter();
  });
  filter();
})();
