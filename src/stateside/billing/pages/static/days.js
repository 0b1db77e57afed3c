// The days of the open period: what each added, as a chart with a forecast, and as a table.

import { Chart } from "./chart.js";
import { el, put } from "./dom.js";
import { aboutMoney, date, day, money, number, roughMoney } from "./format.js";
import { replace, row, table, trouble } from "./parts.js";

export class Days {
  constructor() {
    this.chart = new Chart();
    this.table = el("div", { class: "table-wrap", id: "course-table", hidden: true });
    this.body = el("div");
    const toggle = el("button", { class: "button quiet slim", "aria-expanded": "false", "aria-controls": "course-table" }, "As a table");
    toggle.addEventListener("click", () => {
      this.table.hidden = !this.table.hidden;
      toggle.setAttribute("aria-expanded", String(!this.table.hidden));
    });
    const legend = el("div", { class: "legend" }, el("span", { class: "key so-far" }, "so far"), el("span", { class: "key forecast" }, "forecast"));
    this.element = el("section", { class: "days", hidden: true, "aria-label": "Day by day" }, this.body, el("div", { class: "legend" }, legend, toggle));
  }

  show(course) {
    if (!this.body.contains(this.chart.element)) replace(this.body, this.chart.element, this.table); // else the focus stays
    this.draw(course);
    const rows = course.days.map((each) => row(day(each.day), [number(each.events), "right"], [money(each.amount_micros, course.currency), "right"]));
    put(this.table, rows.length ? table(["Day", "Events", "Added"], rows, "What each day added") : null);
  }

  fail(error) {
    trouble(this.body, error, "The days cannot be shown");
  }

  draw(course) {
    const { currency, forecast_micros: forecast, days_in_period: length } = course;
    const stops = stopsOf(course);
    const sum = stops.at(-1)?.y ?? 0;
    const points = [[0, 0], ...stops.map(({ x, y }) => [x, y])];
    const series = [{ slot: 1, points, area: true }];
    if (forecast !== null && points.length <= length) {
      series.push({ slot: 6, points: [points.at(-1), [length, forecast]], dashed: true });
      stops.push({ x: length, y: forecast, slot: 6, title: "At the end of the period", rows: [["forecast", `about ${aboutMoney(forecast, currency)}`]] });
    }
    const first = course.days[0]?.day ?? "";
    const ticks = Array.from({ length }, (_, index) => ({ at: index + 1, text: shifted(first, index) })).filter((_, index) => index % 7 === 0 || length < 9);
    this.chart.draw({
      label: `What each day added: ${money(sum, currency)} after ${course.days.length} of ${length} days. The arrow keys lead from day to day.`,
      height: 200,
      x: { min: 0, max: length, ticks },
      y: { format: (value) => roughMoney(value, currency) },
      series,
      stops,
    });
  }
}

/** The sum at the end of each day. */
function stopsOf({ days, currency }) {
  let sum = 0;
  return days.map(({ day: text, amount_micros: added, events }, index) => {
    sum += added;
    const rows = [["so far", money(sum, currency)], ["on this day", money(added, currency)], ["events", number(events)]];
    return { x: index + 1, y: sum, title: day(text, { weekday: "short", day: "numeric", month: "long" }), rows };
  });
}

/** The text of the day so many days after this one. */
function shifted(first, days) {
  const at = new Date(`${first}T12:00:00Z`);
  at.setUTCDate(at.getUTCDate() + days);
  return date(at, "UTC");
}
