// The charts of a view's newest batches: how long each took and for what, and how many events it had.

import { Chart } from "./chart.js";
import { el, say } from "./dom.js";
import { age, clock, number, rough } from "./format.js";
import { body, card } from "./parts.js";

const PARTS = [
  ["ask", "ask the source", 2],
  ["plan", "plan", 4],
  ["log", "write the plan down", 6],
  ["work", "work and sinks", 1],
  ["commit", "commit", 3],
];

/** The pace by the settings batch_pause_ms and batch_target_ms, as the end of a sentence. */
function pace(set) {
  if (!set) return "";
  const pause = set.paused_ms ? `; the newest began after a pause of ${age(set.paused_ms)}` : "";
  return set.target_ms ? `${pause}; to take about ${age(set.target_ms)}, the next has up to ${number(set.events)} events` : pause;
}

export class Batches {
  constructor() {
    this.times = new Chart();
    this.rows = new Chart();
    this.last = el("p", { class: "muted small num" });
    const legend = el("div", { class: "legend" }, PARTS.map(([, name, slot]) => el("span", { class: `s${slot}` }, el("span", { class: "swatch" }), name)));
    this.element = el(
      "div",
      { class: "grid two" },
      card("Time of each batch", body(this.times.element, legend, this.last)),
      card("Events of each batch", body(this.rows.element)),
    );
  }

  /** The newest batches of a view. */
  show(batches) {
    const none = "Spark’s reports of batches appear here; of a job that is not ours there are none.";
    for (const chart of [this.times, this.rows]) {
      if (batches.length) delete chart.element.parentElement.dataset.none;
      else chart.element.parentElement.dataset.none = none;
    }
    if (!batches.length) return;
    const ticks = batches.map((batch, index) => ({ at: index, text: number(batch.batch) })).filter(({ at }) => at % 10 === 0);
    const x = { min: -0.5, max: Math.max(20, batches.length) - 0.5, ticks };
    this.drawTimes(batches, x);
    this.drawRows(batches, x);
    const slowest = batches.reduce((most, batch) => (batch.duration_ms > most.duration_ms ? batch : most));
    const mean = batches.reduce((sum, batch) => sum + batch.duration_ms, 0) / batches.length;
    say(this.last, `${batches.length} ${batches.length === 1 ? "batch" : "batches"}: ${age(mean)} in the mean, batch ${number(slowest.batch)} took longest with ${age(slowest.duration_ms)}${pace(batches.at(-1).pace)}`);
  }

  drawTimes(batches, x) {
    const bases = batches.map(() => 0);
    const series = PARTS.map(([part, , slot]) => ({
      slot,
      bars: true,
      stacked: true,
      points: batches.map((batch, index) => {
        const point = [index, batch.parts_ms[part], bases[index]];
        bases[index] += batch.parts_ms[part];
        return point;
      }),
    }));
    this.times.draw({
      label: `Time of the last ${batches.length} batches, from batch ${batches[0].batch} on. The newest took ${age(batches.at(-1).duration_ms)}.`,
      height: 190,
      x,
      y: { format: (value) => age(value) },
      series,
      stops: batches.map((batch, index) => ({
        x: index,
        y: bases[index],
        title: `Batch ${number(batch.batch)}: ${age(batch.duration_ms)}`,
        rows: [...PARTS.map(([part, name]) => [name, age(batch.parts_ms[part])]), ["at", clock(batch.time)]],
      })),
    });
  }

  drawRows(batches, x) {
    this.rows.draw({
      label: `Events of the last ${batches.length} batches. The newest had ${number(batches.at(-1).rows)}.`,
      height: 252,
      x,
      y: { format: (value) => rough(value), whole: true },
      series: [{ slot: 1, bars: true, points: batches.map((batch, index) => [index, batch.rows]) }],
      stops: batches.map((batch, index) => ({
        x: index,
        y: batch.rows,
        title: `Batch ${number(batch.batch)}`,
        rows: [["events", number(batch.rows)], ["a second", batch.rows_per_s == null ? "–" : rough(batch.rows_per_s)], ["at", clock(batch.time)]],
      })),
    });
  }
}
