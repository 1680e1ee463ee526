"use strict";
(() => {
  // "1,234 ms" as a number, so that a column is sorted by what it says; text stays text.
  const factors = { "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, days: 86400, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, "B": 1 };
  const value = (text) => {
    const found = text.replaceAll(",", "").replace("−", "-").match(/^([+-]?[\d.]+(?:e[+-]?\d+)?)\s*(\S*)/);
    return found ? Number(found[1]) * (factors[found[2]] || 1) : text.trim() === "" ? -Infinity : NaN;
  };
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0], rows = [...body.rows], headings = [...table.tHead.rows[0].cells];
    if (rows.length < 3) continue;
    headings.forEach((heading, column) => {
      heading.tabIndex = 0;
      heading.ariaSort = "none";
      const sort = () => {
        // Down, up, and as it was.
        const next = { none: "descending", descending: "ascending", ascending: "none" }[heading.ariaSort];
        for (const other of headings) other.ariaSort = "none";
        heading.ariaSort = next;
        const cell = (row) => row.cells[column].textContent, sign = next === "descending" ? -1 : 1;
        const sorted = next === "none" ? rows : [...rows].sort((a, b) => sign * compare(cell(a), cell(b)));
        body.append(...sorted);
      };
      heading.addEventListener("click", sort);
      heading.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
    if (rows.length < 10) continue;
    const words = document.createElement("input");
    words.type = "search";
    words.placeholder = `filter ${rows.length} rows`;
    words.ariaLabel = "words that a row has to contain";
    words.addEventListener("input", () => {
      const wanted = words.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
    });
    table.parentElement.before(words);
  }
})();
