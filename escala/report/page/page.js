
"use strict";
// Sort and filter the table of runs. Filter and order are in the address: #runs?filter=…&sort=….
(function () {
  const form = document.getElementById("runs-form");
  const input = document.getElementById("runs-filter");
  const count = document.getElementById("runs-count");
  const table = document.getElementById("runs-table");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const headings = Array.from(table.tHead.rows[0].cells);
  // With a space between cells, so that no word reaches over two of them.
  const text = (row) => Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
  const texts = new Map(rows.map((row) => [row, text(row)]));

  // The state of an address; an address without one has no filter and the order of the file.
  function state() {
    const [, query = ""] = location.hash.split("?");
    const found = new URLSearchParams(query);
    const sort = found.get("sort") || "";
    return { filter: found.get("filter") || "", key: sort.replace(/^-/, ""), down: sort.startsWith("-") };
  }

  function remember(filter, key, down) {
    const query = new URLSearchParams();
    if (filter) query.set("filter", filter);
    if (key) query.set("sort", (down ? "-" : "") + key);
    location.replace("#runs?" + query);
  }

  // Numbers by value and text by the reader's alphabet; what is missing comes last in both orders.
  function compare(column, down) {
    const sign = down ? -1 : 1;
    return (one, other) => {
      const [first, second] = [one, other].map((row) => row.cells[column]);
      const missing = [first, second].map((cell) => cell.textContent === "–");
      if (missing[0] || missing[1]) return missing[0] - missing[1];
      if (first.dataset.value === undefined) {
        return sign * first.textContent.localeCompare(second.textContent, undefined, { numeric: true });
      }
      return sign * (Number(first.dataset.value) - Number(second.dataset.value));
    };
  }

  function show() {
    const { filter, key, down } = state();
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const column = headings.findIndex((heading) => heading.dataset.key === key);
    const ordered = column < 0 ? rows : rows.slice().sort(compare(column, down));
    let shown = 0;
    for (const row of ordered) {
      row.hidden = !words.every((word) => texts.get(row).includes(word));
      shown += !row.hidden;
      body.append(row);
    }
    headings.forEach((heading, place) => {
      if (place === column) heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
    count.textContent = shown + " of " + rows.length + " runs";
    if (input.value !== filter) input.value = filter;
  }

  for (const heading of headings) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    button.addEventListener("click", () => {
      const { filter, key, down } = state();
      remember(filter, heading.dataset.key, key === heading.dataset.key && !down);
    });
    heading.replaceChildren(button);
  }
  input.addEventListener("input", () => {
    const { key, down } = state();
    remember(input.value, key, down);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", show);
  form.hidden = false;
  document.getElementById("runs-help").hidden = false;
  show();
  if (location.hash.startsWith("#runs?")) document.getElementById("runs").scrollIntoView();
})();

// Values of the chart, where one points at it. Without Vega, its drawing stays.
(function () {
  const data = document.getElementById("chart-specification");
  if (!data || typeof vegaEmbed === "undefined") return;
  const place = document.getElementById("chart");
  const drawing = place.firstElementChild;
  const live = document.createElement("div");
  // `ast`: Vega interprets expressions and compiles none, as the page's policy demands.
  vegaEmbed(live, JSON.parse(data.textContent), {
    ast: true,
    actions: false,
    renderer: "svg",
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  }).then(() => {
    const svg = live.querySelector("svg");
    for (const name of ["role", "aria-labelledby", "class"]) {
      svg.setAttribute(name, drawing.getAttribute(name));
    }
    // Title and description are those of the drawing. Its parts would be nameless images.
    for (const part of svg.querySelectorAll("[role]")) {
      for (const name of ["role", "aria-roledescription", "aria-label"]) part.removeAttribute(name);
    }
    svg.prepend(...drawing.querySelectorAll("title, desc"));
    place.replaceChildren(live);
  }, () => {});
})();
