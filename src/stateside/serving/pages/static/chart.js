// Charts, drawn as SVG: lines and areas over a number, bars over names. They can be read with a pointer, a finger or
// the arrow keys; where those lead, screen readers are told.

import { el, put, say, svg } from "./dom.js";

const TOP = 10;
const BOTTOM = 26;

/** A chart in a figure. `draw(model)` shows a model:
 *
 *   label     what a screen reader is told
 *   height    in pixels
 *   x         { min, max, ticks: [{ at, text }] }
 *   y         { format, min, max }; both ends are found where they are not given
 *   series    [{ slot, points: [[x, y], …], area, dashed, bars, stacked }]; of stacked bars a point has its base too
 *   stops     [{ x, y, slot, title, rows: [[name, value], …] }], what the pointer finds
 */
export class Chart {
  constructor() {
    this.svg = svg("svg", { role: "img", tabindex: "0", "data-key": "chart" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.told = el("div", { class: "hidden", role: "status" });
    this.element = el("div", { class: "chart" }, this.svg, this.tip, this.told);
    this.at = null;
    new ResizeObserver(() => this.redraw()).observe(this.element);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  draw(model) {
    this.model = model;
    this.svg.setAttribute("aria-label", model.label);
    this.redraw();
  }

  redraw() {
    const width = this.element.clientWidth;
    if (!this.model || !width) return;
    const { height = 240, x, y, series } = this.model;
    const values = series.flatMap(({ points }) => points.map(([, value, base = 0]) => base + value));
    const scale = nice(Math.min(0, y.min ?? 0, ...values), Math.max(y.max ?? 0, ...values), y.whole);
    const labels = scale.ticks.map((value) => y.format(value));
    const left = 12 + Math.max(...labels.map((text) => text.length)) * 7;
    this.place = {
      x: (value) => left + ((value - x.min) / (x.max - x.min || 1)) * (width - left - 8),
      y: (value) => TOP + (1 - (value - scale.min) / (scale.max - scale.min)) * (height - TOP - BOTTOM),
      bottom: height - BOTTOM,
      slot: (width - left - 8) / (x.max - x.min || 1),
    };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    put(this.svg, this.axes(scale, labels, left, width, height), series.map((one) => this.series(one)), (this.cursor = svg("g")));
    this.showCursor();
  }

  axes(scale, labels, left, width, height) {
    const { x, y } = { x: this.place.x, y: this.place.y };
    const rows = scale.ticks.map((value, index) => [
      svg("line", { class: value === 0 ? "base-line" : "grid-line", x1: left, x2: width - 8, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, labels[index]),
    ]);
    const room = Math.max(1, Math.floor((width - left) / 52));
    const step = Math.ceil(this.model.x.ticks.length / room);
    const columns = this.model.x.ticks
      .filter((_, index) => index % step === 0)
      .map(({ at, text }) => svg("text", { x: x(at), y: height - 6, "text-anchor": "middle" }, text));
    return [rows, columns];
  }

  series({ slot = 1, points, area, dashed, bars, stacked }) {
    const { x, y } = this.place;
    const group = svg("g", { class: `s${slot}` });
    if (bars) {
      const wide = Math.max(1, Math.min(44, this.place.slot * 0.72));
      for (const [at, value, base = 0] of points) {
        const top = Math.min(y(base + value), y(base));
        const tall = Math.max(value && !base ? 1 : 0, Math.abs(y(base + value) - y(base)));
        const bar = svg("rect", { x: x(at) - wide / 2, y: top, width: wide, height: tall, rx: stacked ? 0 : Math.min(3, wide / 4) });
        bar.style.fill = "var(--c)";
        group.append(bar);
      }
      return group;
    }
    if (!points.length) return group;
    const path = points.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    if (area) {
      const ends = `L${x(points.at(-1)[0])} ${y(0)}L${x(points[0][0])} ${y(0)}Z`;
      const filled = svg("path", { d: path + ends });
      filled.style.fill = "color-mix(in srgb, var(--c) 12%, transparent)";
      group.append(filled);
    }
    const line = svg("path", { class: dashed ? "line dashed" : "line", d: path });
    line.style.stroke = "var(--c)";
    group.append(line);
    return group;
  }

  point(event) {
    const stops = this.model?.stops ?? [];
    if (!stops.length) return;
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    const far = (stop) => Math.abs(this.place.x(stop.x) - at);
    this.at = stops.reduce((best, stop, index) => (far(stop) < far(stops[best]) ? index : best), 0);
    this.showCursor();
  }

  key(event) {
    const last = (this.model?.stops.length ?? 0) - 1;
    const moves = { ArrowLeft: (at) => at - 1, ArrowRight: (at) => at + 1, Home: () => 0, End: () => last };
    if (event.key === "Escape") this.leave();
    if (!(event.key in moves) || last < 0) return;
    event.preventDefault();
    this.at = Math.max(0, Math.min(last, moves[event.key](this.at ?? last + (event.key === "ArrowLeft" ? 1 : 0))));
    this.showCursor();
    const { title, rows } = this.model.stops[this.at];
    say(this.told, `${title}: ${rows.map((row) => row.join(" ")).join(", ")}`);
  }

  leave() {
    this.at = null;
    say(this.told, "");
    this.showCursor();
  }

  showCursor() {
    const stop = this.at === null ? undefined : this.model.stops[this.at];
    this.tip.hidden = !stop;
    if (!stop) return put(this.cursor ?? svg("g"));
    const [x, y] = [this.place.x(stop.x), this.place.y(stop.y)];
    const spot = svg("circle", { class: "spot", cx: x, cy: y, r: 5 });
    spot.style.fill = `var(--c${stop.slot ?? 1})`;
    put(this.cursor, svg("line", { class: "rule", x1: x, x2: x, y1: TOP, y2: this.place.bottom }), spot);
    const rows = stop.rows.map(([name, value]) => el("span", {}, name, el("span", {}, value)));
    put(this.tip, el("b", {}, stop.title), rows);
    const room = this.element.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, x > room / 2 ? x - this.tip.offsetWidth - 12 : x + 12))}px`;
  }
}

/** Round numbers that reach from one value to another, at most six of them. */
function nice(least, most, whole = false) {
  const span = most - least || 1;
  const rough = span / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const found = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough) ?? rough;
  const step = whole ? Math.max(1, Math.ceil(found)) : found;
  const min = Math.floor(least / step) * step;
  const max = Math.max(min + step, Math.ceil(most / step - 1e-9) * step);
  const ticks = [];
  for (let at = min; at <= max + step / 1e6; at += step) ticks.push(Math.abs(at) < step / 1e6 ? 0 : at);
  return { min, max, ticks };
}

/** A small line without axes, for a place beside a number. */
export function spark(values, { width = 120, height = 32, slot = 1 } = {}) {
  const most = Math.max(1e-9, ...values);
  const x = (index) => (values.length > 1 ? (index / (values.length - 1)) * (width - 2) + 1 : width / 2);
  const y = (value) => height - 2 - (value / most) * (height - 4);
  const d = values.map((value, index) => `${index ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const area = svg("path", { d: values.length ? `${d}L${x(values.length - 1)} ${height}L${x(0)} ${height}Z` : "" });
  area.style.fill = `color-mix(in srgb, var(--c${slot}) 14%, transparent)`;
  const line = svg("path", { d, fill: "none", "stroke-width": 1.5, "stroke-linejoin": "round" });
  line.style.stroke = `var(--c${slot})`;
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
}
