"use strict";
(() => {
  const one = (query, within = document) => within.querySelector(query);
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  let parsed = null; // the page is readable before this is asked for
  const data = () => (parsed ??= JSON.parse(one("#data").textContent));
  const command = (card) => document.getElementById(`command-${data().cards[card][2] ?? card}`)?.textContent ?? "";
  const made = (tag, text, look = "") => Object.assign(document.createElement(tag), { textContent: text, className: look });

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // pages opened as files may not be allowed the clipboard
      const area = document.body.appendChild(made("textarea", text));
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    copy(command(button.dataset.card));
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1200);
  });

  // Tooltips: what a pointer, a finger or the arrow keys find in a plot.
  const REACH = 32, tip = one("#tip");
  let shown = null, kept = false;

  function place(plot, spot) {
    return [(spot[0] / 1000) * plot.clientWidth, spot[1]];
  }

  function nearest(plot, event) {
    const box = plot.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let found = null, least = REACH;
    data().plots[plot.id].forEach((spot, index) => {
      const [left, top] = place(plot, spot);
      const [aside, above] = [Math.abs(left - x), Math.abs(top - y)];
      const far = { rows: above, cells: above < REACH / 2 ? aside / 1e3 : REACH, points: Math.hypot(aside, above) }[plot.dataset.find];
      if (far < least) [found, least] = [index, far];
    });
    return found;
  }

  function turnText([round, ms, low, high, read]) {
    const span = low === high ? "" : ` (${low} to ${high})`;
    return `round ${round}: ${ms} ms${span}${read === null ? "" : `, read roof ${read} GB/s`}`;
  }

  function fill(spot) {
    const [name, facts] = data().cards[spot[2]], list = document.createElement("dl");
    for (const [which, text] of facts) list.append(made("dt", data().names[which]), made("dd", text));
    const parts = [made("strong", name)];
    if (spot.length > 3) parts.push(made("p", turnText(spot.slice(3))));
    parts.push(list);
    if (command(spot[2])) {
      const button = made("button", "copy", "copy");
      button.dataset.card = spot[2];
      parts.push(made("code", command(spot[2])), button);
    }
    tip.replaceChildren(...parts);
  }

  function show(plot, index, keep = false) {
    const spot = data().plots[plot.id][index], [left, top] = place(plot, spot), box = plot.getBoundingClientRect();
    hide();
    fill(spot);
    tip.hidden = false;
    [shown, kept] = [{ plot, index }, keep];
    tip.classList.toggle("kept", keep);
    const at = one(".at", plot), x = box.left + left, y = box.top + top, { offsetWidth: wide, offsetHeight: high } = tip;
    at.setAttribute("x", left);
    at.setAttribute("y", top);
    at.classList.add("on");
    tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - wide - 8))}px`;
    tip.style.top = `${y + 16 + high < innerHeight ? y + 16 : Math.max(8, y - high - 16)}px`;
  }

  function hide() {
    if (shown) one(".at", shown.plot).classList.remove("on");
    tip.hidden = true;
    [shown, kept] = [null, false];
  }

  function walk(plot, key) {
    const count = data().plots[plot.id].length, index = shown?.plot === plot ? shown.index : -1;
    const steps = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: count - 1 };
    if (!(key in steps) || !count) return false;
    show(plot, (steps[key] + count) % count);
    return true;
  }

  for (const plot of all(".plot")) {
    plot.addEventListener("pointermove", (event) => {
      if (kept) return;
      const index = nearest(plot, event);
      if (index === null) hide();
      else if (shown?.plot !== plot || shown.index !== index) show(plot, index);
    });
    plot.addEventListener("pointerleave", (event) => { if (!kept && event.pointerType === "mouse") hide(); });
    plot.addEventListener("click", (event) => {
      const index = nearest(plot, event);
      if (index !== null) show(plot, index, true);
    });
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && shown?.plot === plot) show(plot, shown.index, true);
      else if (!walk(plot, event.key)) return;
      event.preventDefault();
    });
    plot.addEventListener("blur", () => { if (!kept) hide(); });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("click", (event) => { if (!event.target.closest(".plot, #tip")) hide(); });
  addEventListener("scroll", () => { if (shown && !kept) hide(); }, { passive: true });

  // Tables: sorted by the first number of a cell, or by its letters. Settings align as numbers and may be words: these
  // come after numbers either way, and a dash last.
  function keyOf(text, numeric) {
    const number = numeric ? parseFloat(text.replace(/^[~<]|,/g, "")) : NaN;
    return Number.isNaN(number) ? text : number;
  }

  const kindOf = (key) => (key === "—" ? 2 : typeof key === "number" ? 0 : 1);

  function sort(table, column, order) {
    const body = table.tBodies[0], numeric = table.tHead.rows[0].cells[column].classList.contains("number");
    const keyed = [...body.rows].map((row) => [order ? keyOf(row.cells[column].textContent, numeric) : +row.dataset.card, row]);
    keyed.sort(([a], [b]) => {
      if (kindOf(a) !== kindOf(b)) return kindOf(a) - kindOf(b);
      return (order || 1) * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    });
    body.append(...keyed.map(([, row]) => row));
  }

  for (const table of all("table.rows")) {
    all("thead button", table).forEach((button, column) => button.addEventListener("click", () => {
      const heads = all("thead th[aria-sort]", table), head = heads[column];
      const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
      heads.forEach((other) => other.setAttribute("aria-sort", other === head ? next : "none"));
      sort(table, column, { none: 0, ascending: 1, descending: -1 }[next]);
    }));
  }

  for (const input of all("input[data-table]")) {
    const rows = [...document.getElementById(input.dataset.table).tBodies[0].rows];
    const said = (row) => [...row.cells].slice(0, -1).map((cell) => cell.textContent).join(" "); // without its button
    const texts = rows.map((row) => said(row).toLowerCase()), count = one("output", input.closest(".tools"));
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row, n) => { row.hidden = !words.every((word) => texts[n].includes(word)); });
      const left = rows.filter((row) => !row.hidden).length;
      count.textContent = words.length ? `${left} of ${rows.length} rows` : `${rows.length} rows`;
    });
  }

  // Colours: as the system has them, until the button says otherwise.
  const theme = one("#theme"), WORDS = { auto: "◐ auto", light: "○ light", dark: "● dark" };

  function dress(name) {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    theme.textContent = WORDS[name];
    theme.setAttribute("aria-label", `colours: ${name === "auto" ? "as the system" : name}`);
  }
  theme.addEventListener("click", () => {
    const names = Object.keys(WORDS), now = document.documentElement.dataset.theme ?? "auto";
    dress(names[(names.indexOf(now) + 1) % names.length]);
  });
  addEventListener("beforeprint", () => all("details.about").forEach((details) => { details.open = true; }));
})();
