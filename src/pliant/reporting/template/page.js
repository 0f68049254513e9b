"use strict";
(() => {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const themes = JSON.parse(document.getElementById("themes").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const charts = Array.from(document.querySelectorAll(".chart"));
  const errors = [];
  let round = 0;

  // What tests and people look for: how many charts are drawn, and what went wrong.
  function tell(drawn) {
    root.dataset.charts = String(charts.length);
    root.dataset.drawn = String(drawn);
    root.dataset.errors = JSON.stringify(errors);
  }

  window.addEventListener("error", (event) => { errors.push(String(event.message)); tell(0); });

  function setTheme(name) {
    root.dataset.theme = name;
    draw(name);
  }

  // One chart after another, with a pause for the page to answer in between; a later round ends an earlier one.
  async function draw(name) {
    const mine = ++round;
    let drawn = 0;
    tell(drawn);
    for (const place of charts) {
      try {
        await vegaEmbed(place, specs[Number(place.dataset.spec)], {
          config: themes[name], renderer: "svg",
          actions: { export: true, source: false, compiled: false, editor: false },
        });
        drawn += 1;
      } catch (error) {
        errors.push(String(error));
        place.textContent = "This chart could not be drawn: " + error;
        place.classList.add("failed");
      }
      if (mine !== round) return;
      tell(drawn);
      await new Promise((next) => setTimeout(next, 0));
    }
  }

  function key(row, column) {
    const cell = row.cells[column];
    if (cell.dataset.k === undefined) return cell.textContent.toLowerCase();
    return cell.dataset.k === "" ? null : Number(cell.dataset.k);
  }

  // Missing values stay at the end either way; rows that are equal keep their order.
  function sort(header) {
    const table = header.closest("table");
    const column = Array.from(header.parentNode.children).indexOf(header);
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows).map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
      return down ? -order : order;
    });
    body.append(...rows.map(([, row]) => row));
  }

  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sort(button.parentNode));
  }
  document.getElementById("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  setTheme(dark.matches ? "dark" : "light");
})();
