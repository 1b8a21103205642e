"use strict";
// The page around the charts: tooltips, the legend that hides methods, the choice of the x axis, the tables of values and,
// on a live page, updates.
const DRAW = { lines: drawLines, bars: drawBars };
const drawn = new Map(); // element of a chart -> the object that draws it
const page = { methods: [], hidden: new Set(), axis: "", zoom: new Map() };
const DRAG = 12; // minimum width of a drag in pixels
const off = new Set(); // names of the hidden methods
let charts = new Map();
const tip = element(document.body, "div", "tip");
const spoken = element(document.body, "div", "unseen");
spoken.setAttribute("aria-live", "polite");
tip.hidden = true;

function load(data) {
  page.methods = data.methods;
  page.hidden = new Set(data.methods.flatMap((method, m) => (off.has(method.name) ? [m] : [])));
  charts = new Map(data.charts.map((chart) => [`chart-${chart.name}`, chart]));
}

function draw(box) {
  const chart = charts.get(box.id);
  if (!chart) return;
  box.replaceChildren();
  drawn.set(box, DRAW[chart.kind](box, chart, page));
  const table = box.closest("figure").querySelector("details.numbers");
  if (table && table.open) fill(table, box);
}

function drawAll() {
  for (const box of document.querySelectorAll(".chart")) draw(box);
}

function fill(details, box) {
  const { head, rows } = drawn.get(box).table();
  const table = document.createElement("table");
  const top = element(element(table, "thead"), "tr"), body = element(table, "tbody");
  for (const text of head) element(top, "th", "", text).scope = "col";
  for (const [first, ...rest] of rows) {
    const row = element(body, "tr");
    element(row, "th", "", first).scope = "row";
    for (const text of rest) element(row, "td", "", text);
  }
  details.querySelector(".scroll").replaceChildren(table);
  hinted.observe(table);
}

function show(values, x, y) {
  tip.replaceChildren();
  element(tip, "strong", "", values.head);
  for (const row of values.rows.slice(0, MANY)) {
    const line = element(tip, "div");
    if (row.look) setInk(element(line, "i"), row.look);
    element(line, "span", "", row.label);
    element(line, "b", "", row.text);
  }
  if (values.rows.length > MANY) element(tip, "div", "", `and ${values.rows.length - MANY} more`);
  tip.hidden = false;
  tip.style.left = "0"; // at the edge of the window it would be measured too narrow
  const left = x + 16 + tip.offsetWidth > innerWidth ? Math.max(x - 16 - tip.offsetWidth, 4) : x + 16;
  tip.style.left = `${left}px`;
  const beside = y - tip.offsetHeight / 2, above = y - tip.offsetHeight - 22;
  const top = innerWidth > 640 ? beside : above >= 4 ? above : y + 26; // on a phone, not below the finger
  tip.style.top = `${Math.min(Math.max(top, 4), innerHeight - tip.offsetHeight - 4)}px`;
}

function hide(box) {
  tip.hidden = true;
  if (drawn.has(box)) drawn.get(box).leave();
}

function listen(box) {
  const place = { at: 0 };
  const along = (event) => event.clientX - box.getBoundingClientRect().left;
  const point = (event) => {
    const edge = box.getBoundingClientRect(), chart = drawn.get(box);
    const values = chart && chart.at(event.clientX - edge.left, event.clientY - edge.top);
    if (values) show(values, event.clientX, event.clientY);
  };
  const zoom = (...range) => {
    if (!drawn.has(box) || !drawn.get(box).zoom) return;
    drawn.get(box).zoom(...range);
    hide(box);
    draw(box);
  };
  box.addEventListener("pointermove", point);
  box.addEventListener("pointerdown", (event) => { place.down = event.pointerType === "mouse" ? along(event) : undefined; point(event); });
  box.addEventListener("pointerup", (event) => {
    if (place.down !== undefined && Math.abs(along(event) - place.down) > DRAG) zoom(place.down, along(event));
    place.down = undefined;
  });
  box.addEventListener("dblclick", () => zoom());
  box.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && hide(box)); // a finger leaves immediately
  box.addEventListener("blur", () => hide(box));
  box.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], chart = drawn.get(box);
    if (event.key === "Escape") hide(box);
    if (!way || !chart) return;
    event.preventDefault();
    place.at = Math.max(place.at + way, 0);
    const edge = box.getBoundingClientRect(), rows = Boolean(chart.middle);
    const along = rows ? chart.middle(place.at) : (chart.first || 0) + place.at * chart.step;
    const values = rows ? chart.at(0, along) : chart.at(along, 0);
    if (!values) return;
    show(values, edge.left + (rows ? edge.width / 2 : Math.min(along, edge.width)), edge.top + (rows ? along : edge.height / 2));
    spoken.textContent = [values.head, ...values.rows.map((row) => `${row.label} ${row.text}`)].join("; ");
  });
  const table = box.closest("figure").querySelector("details.numbers");
  table.addEventListener("toggle", () => table.open && drawn.has(box) && fill(table, box));
}

/** Hides or shows methods by name, because a live page may get new methods. */
function toggle(only) {
  for (const button of document.querySelectorAll(".legend button")) {
    const name = button.dataset.name;
    if (only !== undefined) off[only === null || name === only ? "delete" : "add"](name);
    button.setAttribute("aria-pressed", String(!off.has(name)));
  }
  page.hidden = new Set(page.methods.flatMap((method, m) => (off.has(method.name) ? [m] : [])));
  drawAll();
}

function wire() {
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      off[off.has(button.dataset.name) ? "delete" : "add"](button.dataset.name);
      toggle();
    });
    button.addEventListener("dblclick", () => toggle(off.size === page.methods.length - 1 && !off.has(button.dataset.name) ? null : button.dataset.name));
  }
  for (const select of document.querySelectorAll("select.axis")) {
    if ([...select.options].some((option) => option.value === page.axis)) select.value = page.axis;
    else page.axis = select.value;
    select.addEventListener("change", () => { page.axis = select.value; drawAll(); });
  }
  for (const box of document.querySelectorAll(".chart")) { listen(box); resized.observe(box); }
  for (const part of document.querySelectorAll(".scroll, .scroll table")) hinted.observe(part);
  toggle();
}

document.addEventListener("pointerdown", (event) => {
  for (const box of drawn.keys()) if (!box.contains(event.target)) drawn.get(box).leave();
  if (!event.target.closest(".chart")) tip.hidden = true;
});
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

const widths = new WeakMap();
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (widths.get(target) === target.clientWidth) continue;
    widths.set(target, target.clientWidth);
    draw(target);
  }
});

/** Marks every table that is wider than its container. */
const hinted = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const place = target.closest(".scroll");
    if (place) place.classList.toggle("more", place.scrollWidth > place.clientWidth + 1);
  }
});

/** Replaces the page by a newer version and keeps the reader's choices: hidden methods, axis, open sections. */
function update(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html"), data = fresh.getElementById("charts");
  const open = new Set([...document.querySelectorAll("details[open][id]")].map((details) => details.id));
  const closed = new Set([...document.querySelectorAll("details:not([open])[id]")].map((details) => details.id));
  document.title = fresh.title;
  resized.disconnect();
  hinted.disconnect();
  drawn.clear();
  tip.hidden = true;
  for (const part of ["header", "main"]) document.querySelector(part).replaceWith(document.adoptNode(fresh.querySelector(part)));
  for (const details of document.querySelectorAll("details[id]")) if (open.has(details.id) || closed.has(details.id)) details.open = open.has(details.id);
  load(data ? JSON.parse(data.textContent) : { methods: [], charts: [] });
  wire();
}

async function watch(every_ms) {
  const state = document.getElementById("live");
  let version = document.documentElement.dataset.version;
  for (;;) {
    await new Promise((go) => setTimeout(go, every_ms));
    try {
      const answer = await fetch(`page?since=${encodeURIComponent(version)}`, { cache: "no-store" });
      if (answer.status === 200) {
        update(await answer.text());
        version = answer.headers.get("X-Version");
      }
      document.getElementById("live").textContent = "live";
    } catch (error) {
      document.getElementById("live").textContent = "no connection to the server; waiting";
    }
  }
}

const initial = document.getElementById("charts");
if (initial) load(JSON.parse(initial.textContent));
wire();
if (document.documentElement.dataset.live) watch(Number(document.documentElement.dataset.live));
