"use strict";
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const table = document.querySelector(".board"), rows = all(":scope > tbody", table), shown = document.getElementById("shown");

  // Filters.
  const filters = ["norm", "members"].map((name) => document.getElementById(name));
  const filter = () => {
    for (const row of rows) row.hidden = filters.some((choice) => choice.value && row.dataset[choice.id] !== choice.value);
    shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  filters.forEach((choice) => choice.addEventListener("change", filter));
  filter();

  // A click on a heading sorts, another one turns the order round. Blank cells are last in either order, and so are
  // gains that are not counted.
  const choice = document.getElementById("sort");
  const after = (row, key) => (row.dataset[key] === "" ? 2 : key === "gain" ? Number(row.dataset.after) : 0);
  const sort = (key, again) => {
    const head = document.querySelector(`.board thead [data-sort="${key}"]`).closest("th");
    const first = key === "method" ? "ascending" : "descending", other = first === "ascending" ? "descending" : "ascending";
    const order = again && head.getAttribute("aria-sort") === first ? other : first, sign = order === "ascending" ? 1 : -1;
    all("thead th[aria-sort]", table).forEach((cell) => cell.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", order);
    choice.value = key;
    const compare = (a, b) => (key === "method" ? a.dataset.method.localeCompare(b.dataset.method) : Number(a.dataset[key]) - Number(b.dataset[key]));
    rows.sort((a, b) => after(a, key) - after(b, key) || sign * compare(a, b)).forEach((row) => table.append(row));
  };
  for (const button of all("thead button", table)) button.addEventListener("click", () => sort(button.dataset.sort, true));
  choice.addEventListener("change", () => sort(choice.value, false));

  // Details of a row.
  for (const button of all(".open", table)) {
    button.addEventListener("click", () => {
      const detail = document.getElementById(button.getAttribute("aria-controls"));
      detail.hidden = !detail.hidden;
      button.setAttribute("aria-expanded", String(!detail.hidden));
    });
  }
})();
