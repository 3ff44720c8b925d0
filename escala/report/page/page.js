
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
  // A space between cells keeps the words of two cells apart.
  const text = (row) => Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
  const texts = new Map(rows.map((row) => [row, text(row)]));

  // The filter and the order of an address. The default is no filter, and the order of the file.
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

  // Order numbers by value, and text by the reader's alphabet. Missing values come last in both orders.
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
  show();
})();

// Unfold what an address leads to, or all.
(function () {
  const unfold = document.getElementById("unfold");
  function reveal() {
    const place = document.getElementById(location.hash.slice(1).split("?")[0]);
    if (!place) return;
    const folded = place.closest("details") || place.querySelector("details");
    if (folded) folded.open = true;
  }
  unfold.addEventListener("click", () => {
    const all = document.querySelectorAll("details");
    const open = !Array.from(all).every((each) => each.open);
    for (const each of all) each.open = open;
    unfold.textContent = open ? "Fold all" : "Unfold all";
  });
  unfold.hidden = false;
  addEventListener("hashchange", reveal);
  reveal();
  if (location.hash.startsWith("#runs?")) document.getElementById("runs").scrollIntoView();
})();

// Show the values of a mark when the reader points or taps. Without a script, browsers show titles.
(function () {
  const box = document.createElement("div");
  let shown = null;
  box.id = "tooltip";
  box.hidden = true;
  document.body.append(box);
  function show(part, event) {
    if (shown) shown.classList.remove("shown");
    shown = part;
    box.hidden = !part;
    if (!part) return;
    part.classList.add("shown");
    box.textContent = part.dataset.tooltip;
    const room = [innerWidth - box.offsetWidth, innerHeight - box.offsetHeight];
    box.style.left = Math.max(0, Math.min(event.clientX + 12, room[0] - 4)) + "px";
    box.style.top = Math.max(0, Math.min(event.clientY + 12, room[1] - 4)) + "px";
  }
  for (const title of document.querySelectorAll(".has-tooltip > title")) {
    title.parentNode.dataset.tooltip = title.textContent;
    title.remove();
  }
  for (const kind of ["pointermove", "click"]) {
    addEventListener(kind, (event) => show(event.target.closest(".has-tooltip"), event));
  }
  addEventListener("scroll", () => show(null), true);
})();
