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

  // Tooltips: what a pointer, a finger or the arrow keys find in a figure. A mark is an element of the SVG, or for
  // lines each of its markers; the data names the card of each.
  const REACH = 24, tip = one("#tip"), found = new Map();
  let shown = null, kept = false;

  function marks(figure) {
    if (!found.has(figure)) found.set(figure, Object.entries(data().marks[figure.id]).flatMap(([id, cards]) => {
      const group = document.getElementById(`${figure.id}-${id}`), markers = group ? all("use", group) : [];
      return cards.map((card, n) => ({ element: markers.length ? markers[n] : group, card })).filter((mark) => mark.element);
    }));
    return found.get(figure);
  }

  // Boxes of marks from the upper left corner of their figure, kept until its size changes.
  function boxes(figure) {
    const outer = figure.getBoundingClientRect(), list = marks(figure);
    if (list.width !== outer.width) {
      list.width = outer.width;
      for (const mark of list) {
        const box = mark.element.getBoundingClientRect();
        mark.box = { left: box.left - outer.left, top: box.top - outer.top, wide: box.width, high: box.height };
      }
    }
    return [outer, list];
  }

  // The mark below the pointer, else the nearest within reach; of several the smallest, then the one centred nearest.
  function nearest(figure, event) {
    const [outer, list] = boxes(figure), x = event.clientX - outer.left, y = event.clientY - outer.top;
    let best = null, least = [REACH, Infinity];
    list.forEach(({ box }, index) => {
      const [aside, above] = [x - box.left - box.wide / 2, y - box.top - box.high / 2].map(Math.abs);
      const far = Math.hypot(Math.max(aside - box.wide / 2, 0), Math.max(above - box.high / 2, 0)), centre = Math.hypot(aside, above);
      if (far < least[0] || (far === least[0] && centre < least[1])) [best, least] = [index, [far, centre]];
    });
    return best;
  }

  function fill([card, note]) {
    const [name, facts] = data().cards[card], list = document.createElement("dl");
    for (const [which, text] of facts) list.append(made("dt", data().names[which]), made("dd", text));
    const parts = [made("strong", name)];
    if (note) parts.push(made("p", note));
    parts.push(list);
    if (command(card)) {
      const button = made("button", "copy", "copy");
      button.dataset.card = card;
      parts.push(made("code", command(card)), button);
    }
    tip.replaceChildren(...parts);
  }

  function show(figure, index, keep = false) {
    const [outer, list] = boxes(figure), { box, card } = list[index], at = one(".at", figure);
    hide();
    fill([card].flat());
    tip.hidden = false;
    [shown, kept] = [{ figure, index }, keep];
    tip.classList.toggle("kept", keep);
    const x = outer.left + box.left + box.wide / 2, y = outer.top + box.top, { offsetWidth: wide, offsetHeight: high } = tip;
    Object.assign(at.style, { left: `${box.left - 4}px`, top: `${box.top - 4}px`, width: `${box.wide + 8}px`, height: `${box.high + 8}px` });
    at.classList.add("on");
    const below = y + Math.min(box.high, 40) + 16;
    tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - wide - 8))}px`;
    tip.style.top = `${below + high < innerHeight ? below : Math.max(8, y - high - 16)}px`;
  }

  function hide() {
    if (shown) one(".at", shown.figure).classList.remove("on");
    tip.hidden = true;
    [shown, kept] = [null, false];
  }

  function walk(figure, key) {
    const count = marks(figure).length, index = shown?.figure === figure ? shown.index : -1;
    const steps = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: count - 1 };
    if (!(key in steps) || !count) return false;
    const next = (steps[key] + count) % count;
    marks(figure)[next].element.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(figure, next);
    return true;
  }

  for (const figure of all(".figure")) {
    figure.addEventListener("pointermove", (event) => {
      if (kept) return;
      const index = nearest(figure, event);
      if (index === null) hide();
      else if (shown?.figure !== figure || shown.index !== index) show(figure, index);
    });
    figure.addEventListener("pointerleave", (event) => { if (!kept && event.pointerType === "mouse") hide(); });
    figure.addEventListener("click", (event) => {
      const index = nearest(figure, event);
      if (index !== null) show(figure, index, true);
    });
    figure.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && shown?.figure === figure) show(figure, shown.index, true);
      else if (!walk(figure, event.key)) return;
      event.preventDefault();
    });
    figure.addEventListener("blur", () => { if (!kept) hide(); });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("click", (event) => { if (!event.target.closest(".figure, #tip")) hide(); });
  addEventListener("scroll", () => { if (shown && !kept && document.activeElement !== shown.figure) hide(); }, { passive: true });

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
