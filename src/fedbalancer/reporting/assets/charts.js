"use strict";
// Draws the charts of a page as SVG from small specifications, without other libraries. Names are only ever set as text.
// Colours are CSS variables, so a dark page needs no redrawing.
const SVG = "http://www.w3.org/2000/svg";
const DASH = { solid: "", dash: "7 4", dot: "2 3.5", dashdot: "8 3 2 3" };
const LETTER = 6.4; // width of a label's character in pixels
const LINE = 13; // height of a label's line in pixels
const LINES = 6; // approximate maximum number of lines of a label
const REACH = 3; // maximum factor by which an interval extends an axis of ratios
const MANY = 14; // maximum number of lines of a tooltip

function node(parent, tag, attributes, text) {
  const child = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) child.setAttribute(name, value);
  if (text !== undefined) child.textContent = text;
  parent.append(child);
  return child;
}

function element(parent, tag, className, text) {
  const child = document.createElement(tag);
  if (className) child.className = className;
  if (text !== undefined) child.textContent = text;
  parent.append(child);
  return child;
}

/** Sets the colours of a method or a part on an element: `l` for a light page, `d` for a dark one. */
function setInk(child, look) {
  child.classList.add("ink");
  child.style.setProperty("--l", look.colour);
  child.style.setProperty("--d", look.dark);
  return child;
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(size >= 1 ? 4 : 3)));
}

/** Returns about `count` round numbers from low to high. */
function ticks(low, high, count) {
  const rough = (high - low || 1) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const values = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) values.push(Number((at * step).toPrecision(12)));
  return values;
}

/** Returns round numbers for an axis of ratios: 1, 2, 5, 10 and so on, as far as there is room. */
function ratioTicks(low, high, count) {
  if (high / low < 5) return ticks(low, high, count);
  const powers = ticks(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)), 99).filter(Number.isInteger).map((power) => 10 ** power);
  const within = (values) => values.filter((at) => at >= low && at <= high).map((at) => Number(at.toPrecision(6)));
  const all = within(powers.flatMap((power) => [power, 2 * power, 5 * power]));
  return all.length > 2 * count ? within(powers) : all;
}

/** Returns the ends of an axis of ratios: all means and seeds fit, intervals as far as the rest remains readable. */
function ratioEnds(rows) {
  const [low, high] = span([1, ...rows.flatMap((row) => [...row.parts, ...(row.dots || []), row.mark]).filter((value) => value > 0)]);
  const [least, most] = span([low, high, ...rows.flatMap((row) => row.range || [])]);
  return [Math.max(least, low / REACH) / 1.1, Math.min(most, high * REACH) * 1.1];
}

/** Wraps a label into lines of at most `room` characters, after punctuation. A label that is still too long is shortened
    in the middle, because variants of a method differ at the end. */
function wrap(label, room) {
  const most = room * LINES, half = most >> 1;
  const [name, ...behind] = (label.length > most ? label.slice(0, half) + "…" + label.slice(1 - half) : label).split(" · ");
  const lines = [""];
  for (let part of [...(name.match(/[^,:[+]*[,:[+]+|[^,:[+]+/g) || []), ...behind.map((word) => ` · ${word}`)]) {
    if (lines[lines.length - 1] && lines[lines.length - 1].length + part.length > room) lines.push("");
    for (; part.length > room; part = part.slice(room)) lines.splice(-1, 1, part.slice(0, room), "");
    lines[lines.length - 1] += part;
  }
  return lines.map((line) => line.trim()).filter((line, i) => line || !i);
}

function span(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  return low <= high ? [low, high] : null;
}

function path(x, y, sx, sy) {
  let text = "", pen = "M";
  for (let i = 0; i < x.length; i++) {
    if (y[i] === null) { pen = "M"; continue; }
    text += pen + sx(x[i]).toFixed(1) + " " + sy(y[i]).toFixed(1);
    pen = "L";
  }
  return text;
}

function area(x, low, high, sx, sy) {
  const whole = x.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  const point = (i, y) => sx(x[i]).toFixed(1) + " " + sy(y[i]).toFixed(1);
  const there = whole.map((i) => point(i, high)), back = whole.reverse().map((i) => point(i, low));
  return there.length ? "M" + [...there, ...back].join("L") + "Z" : "";
}

/** Returns the index nearest to `value` in the ascending `x`, or -1 if it is more than `reach` outside. */
function nearest(x, value, reach) {
  if (!x.length || value < x[0] - reach || value > x[x.length - 1] + reach) return -1;
  let low = 0, high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle; else high = middle;
  }
  return value - x[low] <= x[high] - value ? low : high;
}

/** Returns the value of a line at x: mean and band, or the single seeds beyond the shortest one. */
function readLine(line, at, reach) {
  const i = nearest(line.x, at, reach);
  if (i >= 0 && line.y[i] !== null) {
    const wide = line.low && line.low[i] !== null && line.high[i] !== line.low[i];
    return { y: line.y[i], text: number(line.y[i]) + (wide ? ` (${number(line.low[i])} to ${number(line.high[i])})` : "") };
  }
  const on = (line.tails || []).map((tail) => [tail, nearest(tail.x, at, reach)]).filter(([, place]) => place >= 0);
  if (!on.length) return null;
  const values = on.map(([tail, place]) => tail.y[place]);
  return { y: Math.max(...values), text: `${values.map(number).join(", ")} (${on.length} of ${line.n} seeds)` };
}

function frame(box, width, height, left, bottom, xs, ys, sx, sy, labels) {
  const svg = node(box, "svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  for (const y of ys) {
    node(svg, "line", { class: "rule", x1: left, x2: width - 8, y1: sy(y), y2: sy(y) });
    node(svg, "text", { x: left - 6, y: sy(y) + 4, "text-anchor": "end" }, number(y));
  }
  for (const x of xs) {
    node(svg, "line", { class: "rule faint", x1: sx(x), x2: sx(x), y1: 22, y2: height - bottom });
    node(svg, "text", { x: sx(x), y: height - bottom + 16, "text-anchor": "middle" }, number(x));
  }
  node(svg, "text", { class: "axis", x: 2, y: 12 }, labels.y);
  node(svg, "text", { class: "axis", x: width - 8, y: height - 6, "text-anchor": "end" }, labels.x);
  return svg;
}

/** Draws lines over a selectable x axis, with bands over seeds and thin tails beyond the shortest seed. */
function drawLines(box, chart, page) {
  const key = chart.axes[page.axis] ? page.axis : Object.keys(chart.axes)[0];
  const lines = chart.series.filter((s) => s.on[key] && !page.hidden.has(s.m)).map((s) => ({ ...s, ...s.on[key] }));
  const marks = (chart.marks || []).filter((mark) => !mark.axis || mark.axis === key);
  const whole = span([...lines.flatMap((l) => [...l.x, ...(l.tails || []).flatMap((t) => t.x)]), chart.from || 0]) || [0, 1];
  const across = page.zoom.get(chart.name + key) || (chart.points ? [whole[0] - 0.5, whole[1] + 0.5] : whole);
  const shown = (x, y) => (y || []).filter((_, i) => x[i] >= across[0] && x[i] <= across[1]);
  const values = lines.flatMap((l) => [...[l.y, l.low, l.high].flatMap((y) => shown(l.x, y)), ...(l.tails || []).flatMap((t) => shown(t.x, t.y))]);
  const up = span([...values, ...marks.filter((m) => m.y !== undefined).map((m) => m.y), ...(chart.zero ? [0] : [])]) || [0, 1];
  const room = (up[1] - up[0] || Math.abs(up[1]) || 1) * 0.06, low = chart.floor !== undefined ? Math.min(chart.floor, up[1]) : chart.zero ? up[0] : up[0] - room, high = up[1] + room;
  const width = Math.max(box.clientWidth, 240), height = box.clientHeight || 300, bottom = 40;
  const ys = ticks(low, high, height / 60), left = Math.max(...ys.map((y) => number(y).length), 2) * LETTER + 14;
  const right = across[1] > across[0] ? across[1] : across[0] + 1;
  const sx = (x) => left + ((x - across[0]) / (right - across[0])) * (width - left - 14);
  const sy = (y) => height - bottom - ((y - low) / (high - low)) * (height - bottom - 24);
  const xs = ticks(across[0], right, Math.min(width / 90, chart.whole ? right - across[0] : Infinity));
  const svg = frame(box, width, height, left, bottom, xs, ys, sx, sy, { x: chart.axes[key], y: chart.y });
  drawMarks(svg, marks, sx, sy, [left, width - 8], [22, height - bottom], across[0], right);
  const clip = node(node(svg, "clipPath", { id: `clip-${chart.name}` }), "rect", { x: left - 5, y: 18, width: width - left, height: height - bottom - 14 });
  const slot = (width - left - 14) / (right - across[0]), apart = Math.min(9, (slot * 0.7) / Math.max(lines.length, 1));
  lines.forEach((line, place) => {
    const look = page.methods[line.m];
    const g = setInk(node(svg, "g", { class: "series", "data-m": line.m, "clip-path": `url(#${clip.parentNode.id})` }), look);
    if (chart.points) return drawPoints(g, line, (place - (lines.length - 1) / 2) * apart, Math.min(3.4, Math.max(apart / 2, 1.6)), sx, sy);
    if (line.low && line.n > 1 || line.spread) node(g, "path", { class: "band", d: area(line.x, line.low, line.high, sx, sy) });
    const stroke = { "stroke-width": line.thin ? 1.1 : look.width, "stroke-dasharray": line.thin ? "3 3" : DASH[look.dash] };
    if (line.x.length === 1 && line.y[0] !== null) node(g, "circle", { class: "dot", cx: sx(line.x[0]), cy: sy(line.y[0]), r: 4 });
    else node(g, "path", { class: "line", d: path(line.x, line.y, sx, sy), ...stroke });
    for (const tail of line.tails || []) {
      node(g, "path", { class: "line tail", d: path(tail.x, tail.y, sx, sy), "stroke-width": 1.1, "stroke-dasharray": DASH[look.dash] });
      node(g, "circle", { class: "dot", cx: sx(tail.x[tail.x.length - 1]), cy: sy(tail.y[tail.y.length - 1]), r: 2.6 });
    }
  });
  const cursor = node(svg, "line", { class: "cursor", y1: 22, y2: height - bottom, visibility: "hidden" });
  if (!lines.length) node(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing to show");
  const reach = ((right - across[0]) / (width - left)) * 12;
  return {
    table: () => linesTable(lines, chart, key, across[0], right, reach, page),
    at(px) {
      const at = Math.min(Math.max(across[0] + ((px - left) / (width - left - 14)) * (right - across[0]), across[0]), right);
      const anchor = lines.map((l) => [l, nearest(l.x, at, reach)]).find(([, i]) => i >= 0);
      const x = anchor ? anchor[0].x[anchor[1]] : at;
      cursor.setAttribute("x1", sx(x)); cursor.setAttribute("x2", sx(x)); cursor.setAttribute("visibility", "visible");
      const rows = lines.map((l) => [l, readLine(l, x, reach)]).filter(([, value]) => value).sort((a, b) => b[1].y - a[1].y);
      return { head: `${chart.axes[key]}: ${number(x)}`, rows: rows.map(([l, value]) => ({ look: page.methods[l.m], label: l.label, text: value.text })) };
    },
    leave: () => cursor.setAttribute("visibility", "hidden"),
    /** Zooms to the range between two positions; without positions, shows everything. */
    zoom(from, to) {
      const at = (px) => Math.min(Math.max(across[0] + ((px - left) / (width - left - 14)) * (right - across[0]), across[0]), right);
      if (from === undefined) page.zoom.delete(chart.name + key);
      else page.zoom.set(chart.name + key, [at(Math.min(from, to)), at(Math.max(from, to))]);
    },
    step: (width - left - 14) / 50, first: left,
  };
}

/** Draws a dot per x, next to those of other methods, with a line from the lowest to the highest seed. */
function drawPoints(g, line, shift, r, sx, sy) {
  line.x.forEach((x, i) => {
    if (line.y[i] === null) return;
    const cx = sx(x) + shift, wide = line.low && line.low[i] !== null && line.high[i] !== line.low[i];
    if (wide) node(g, "line", { class: "line", x1: cx, x2: cx, y1: sy(line.low[i]), y2: sy(line.high[i]), "stroke-width": 1.2 });
    node(g, "circle", { class: "dot", cx, cy: sy(line.y[i]), r });
  });
}

function drawMarks(svg, marks, sx, sy, [left, right], [top, bottom], least, most) {
  for (const mark of marks) {
    if (mark.y !== undefined) {
      node(svg, "line", { class: "mark dotted", x1: left, x2: right, y1: sy(mark.y), y2: sy(mark.y) });
      node(svg, "text", { class: "axis", x: left + 4, y: sy(mark.y) - 4 }, mark.text);
    } else if (mark.x >= least && mark.x <= most) {
      node(svg, "line", { class: "mark", x1: sx(mark.x), x2: sx(mark.x), y1: top, y2: bottom });
      const fits = sx(mark.x) - mark.text.length * LETTER > left; // otherwise it would be cut off at the left
      node(svg, "text", { class: "axis", x: sx(mark.x) + (fits ? -4 : 4), y: bottom - 5, "text-anchor": fits ? "end" : "start" }, mark.text);
    }
  }
}

function linesTable(lines, chart, key, from, to, reach, page) {
  const each = [...new Set(lines.flatMap((line) => line.x))].filter((x) => x >= from && x <= to).sort((a, b) => a - b);
  const at = chart.points ? each : Array.from({ length: 11 }, (_, i) => from + ((to - from) * i) / 10).map((x) => chart.whole ? Math.round(x) : x);
  const head = [chart.axes[key], ...lines.map((line) => line.label)];
  return { head, rows: at.map((x) => [number(x), ...lines.map((line) => (readLine(line, x, reach) || { text: "–" }).text)]) };
}

/** Draws horizontal bars, plain or stacked, with seeds as dots and an interval as a line. Ratios have a log axis; their bars
    start at 1 and end in a stroke. */
function drawBars(box, chart, page) {
  const rows = chart.rows.filter((row) => row.m === undefined || !page.hidden.has(row.m));
  const width = Math.max(box.clientWidth, 240), narrow = width < 430, thick = narrow ? 16 : 18;
  const left = narrow ? 4 : Math.min(Math.max(...rows.map((row) => row.label.length), 4) * LETTER + 12, width * 0.42);
  const labels = rows.map((row) => wrap(row.label, Math.floor((narrow ? width - 8 : left - 8) / LETTER)));
  const heights = labels.map((lines) => narrow ? LINE * lines.length + 25 : Math.max(LINE * lines.length + 9, 26));
  const tops = heights.map((_, i) => heights.slice(0, i).reduce((a, b) => a + b, 0));
  const height = heights.reduce((a, b) => a + b, 0) + 44;
  const end = width - 14 - Math.max(...rows.map((row) => row.text ? Math.max(row.text.length * LETTER, 48) : 0), 0);
  box.style.height = `${height}px`;
  const { sx, at, first } = chart.log ? ratioScale(rows, left, end) : plainScale(rows, chart, left, end);
  const svg = node(box, "svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  for (const x of at) {
    node(svg, "line", { class: "rule", x1: sx(x), x2: sx(x), y1: 0, y2: height - 40 });
    node(svg, "text", { x: sx(x), y: height - 26, "text-anchor": "middle" }, number(x));
  }
  node(svg, "text", { class: "axis", x: width - 8, y: height - 6, "text-anchor": "end" }, chart.x);
  if (chart.line !== undefined) node(svg, "line", { class: "mark", x1: sx(chart.line), x2: sx(chart.line), y1: 0, y2: height - 40 });
  rows.forEach((row, place) => {
    const top = tops[place] + (narrow ? LINE * labels[place].length + 4 : (heights[place] - thick) / 2), middle = top + thick / 2;
    const g = node(svg, "g", row.m === undefined ? {} : { class: "series", "data-m": row.m });
    const name = node(g, "text", { class: "name", "text-anchor": narrow ? "start" : "end" });
    const above = narrow ? tops[place] + LINE : middle + 4 - ((labels[place].length - 1) * LINE) / 2;
    labels[place].forEach((line, i) => node(name, "tspan", { x: narrow ? 4 : left - 8, y: above + i * LINE }, line));
    let from = first;
    row.parts.forEach((part, i) => {
      if (!part) return;
      const to = chart.log ? part : from + part, ends = [sx(from), sx(to)];
      const bar = node(g, "rect", { class: "bar", x: Math.min(...ends), y: top, width: Math.abs(ends[1] - ends[0]), height: thick });
      setInk(bar, chart.parts[i] && chart.parts[i].colour ? chart.parts[i] : page.methods[row.m]);
      if (chart.log) setInk(node(g, "line", { class: "mean", x1: ends[1], x2: ends[1], y1: top - 2, y2: top + thick + 2 }), page.methods[row.m]);
      from = to;
    });
    if (row.range) drawRange(g, row.range, middle, sx);
    for (const dot of row.dots || []) node(g, "circle", { class: "seed", cx: sx(dot), cy: middle, r: 3.2 });
    if (row.mark) node(g, "path", { class: "diamond", d: `M${sx(row.mark)} ${middle - 7}l5 7l-5 7l-5 -7Z` });
    if (row.text) node(g, "text", { class: "name", x: end + 6, y: middle + 4 }, row.text);
  });
  const cursor = node(svg, "rect", { class: "row", x: 0, width, visibility: "hidden" });
  return {
    table: () => barsTable(rows, chart),
    at(_, py) {
      const place = Math.max(tops.findLastIndex((top) => top <= py), 0), row = rows[place];
      if (!row) return null;
      cursor.setAttribute("y", tops[place]); cursor.setAttribute("height", heights[place]); cursor.setAttribute("visibility", "visible");
      const shown = chart.parts.map((part, i) => ({ look: part.colour ? part : page.methods[row.m], label: part.label, text: number(row.parts[i]) })).filter((_, i) => row.parts[i]);
      const more = row.dots && row.dots.length ? [{ label: "seeds", text: row.dots.map(number).join(", ") }] : [];
      const between = row.range ? [{ label: chart.interval || "interval", text: row.range.map(number).join(" to ") }] : [];
      const beside = row.mark ? [{ label: chart.marked, text: number(row.mark) }] : [];
      return { head: row.label, rows: [...shown, ...between, ...beside, ...more] };
    },
    leave: () => cursor.setAttribute("visibility", "hidden"),
    /** Returns the position of a row, counted from 1. */
    middle: (count) => { const place = Math.min(Math.max(count, 1), rows.length) - 1; return rows.length ? tops[place] + heights[place] / 2 : 0; },
  };
}

function barsTable(rows, chart) {
  const ranged = rows.some((row) => row.range);
  const head = ["", ...chart.parts.map((part) => part.label), ...(ranged ? [chart.interval || "interval"] : []), ...(chart.marked ? [chart.marked] : [])];
  const cells = (row) => [...chart.parts.map((_, i) => number(row.parts[i])), ...(ranged ? [row.range ? row.range.map(number).join(" to ") : "–"] : []), ...(chart.marked ? [number(row.mark)] : [])];
  return { head, rows: rows.map((row) => [row.label, ...cells(row)]) };
}

function plainScale(rows, chart, left, end) {
  const most = chart.most || (span(rows.flatMap((r) => [r.parts.reduce((a, b) => a + (b || 0), 0), ...(r.dots || []), ...(r.range || [])])) || [0, 1])[1] || 1;
  const sx = (x) => left + (Math.min(x, most * 1.06) / (most * (chart.most ? 1 : 1.06))) * (end - left);
  return { sx, at: ticks(0, most, (end - left) / 80), first: 0 };
}

/** Returns a log scale; values beyond its ends, such as 0, are drawn at the ends. */
function ratioScale(rows, left, end) {
  const [low, high] = ratioEnds(rows);
  const sx = (x) => left + (Math.log(Math.min(Math.max(x, low), high) / low) / Math.log(high / low)) * (end - left);
  return { sx, at: ratioTicks(low, high, (end - left) / 60), first: 1 };
}

/** Draws the line of an interval, with an arrow if it continues beyond the axis. */
function drawRange(g, range, y, sx) {
  const [x1, x2] = range.map(sx);
  node(g, "line", { class: "range", x1, x2, y1: y, y2: y });
  if (sx(range[0] * 0.99) === x1) node(g, "path", { class: "range arrow", d: `M${x1 + 6} ${y - 4}L${x1} ${y}L${x1 + 6} ${y + 4}` });
  if (sx(range[1] * 1.01) === x2) node(g, "path", { class: "range arrow", d: `M${x2 - 6} ${y - 4}L${x2} ${y}L${x2 - 6} ${y + 4}` });
}
