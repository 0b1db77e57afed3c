// The pace of a period: day by day against the period before, and where both are at the same hour.

import { Chart } from "./chart.js";
import { empty } from "./app.js";
import { el, put } from "./dom.js";
import { date, day, moment, money, number, roughMoney } from "./format.js";
import { body, refresh, trouble } from "./parts.js";

const DAY_MS = 86_400_000;
const HOURS = 24;
const TIMES = 10;

/** What the comparison comes to, as a tile's name, value and note; `name` is how the period before is called.
 *
 * What is known of a pace is { pace, error, asOf }: without the first two it is being made, and with `asOf` it is old.
 */
export function paceTile({ pace, error, asOf }, currency, name) {
  const found = pace?.currencies.find((one) => one.currency === currency);
  if (error) return [`Against ${name} at the same day`, "–", "cannot be shown"];
  if (!pace) return [`Against ${name} at the same day`, "…", "is being added up"];
  if (!found || !hasBefore(found)) return ["Against the period before", "–", "there is none"];
  const against = pace.over ? `Against ${name}` : `Against ${name} at the same day`;
  const missing = found.unplaced_micros || found.unplaced_before_micros;
  if (missing) return [against, "–", `${money(missing, currency)} belong to no known day`];
  const { amount_micros: now, amount_before_micros: before } = found;
  const by = pace.over ? "" : ` by ${sameHour(found)}`;
  const old = asOf ? `; as of ${moment(asOf)}` : "";
  return [against, before ? changed(now / before) : "–", `which had ${money(before, currency)}${by}${old}`];
}

/** The card's content: both periods' sums, day by day. */
export class PaceChart {
  constructor() {
    this.chart = new Chart();
    this.legend = el("div", { class: "legend" });
    this.element = el("div", {}, empty("…", ""));
  }

  show({ pace, error }, currency, names) {
    if (error) trouble(this.element, error, "This cannot be shown", body);
    else refresh(this.element, [pace, currency, names], () => this.made(pace, currency, names));
  }

  made(pace, currency, names) {
    if (!pace) return empty("…", "");
    const found = pace.currencies.find((one) => one.currency === currency);
    if (!found) return empty("Nothing yet", "Days appear with the first event of this period.");
    const keys = [[1, names.now, ""], ...(hasBefore(found) ? [[6, names.before, "dashed"]] : [])];
    put(this.legend, keys.map(([slot, name, kind]) => el("span", { class: `s${slot}` }, el("span", { class: `stroke ${kind}` }), name)));
    this.draw(found, currency, names);
    return body(this.chart.element, this.legend);
  }

  draw(found, currency, names) {
    const at = found.hours / HOURS;
    const now = summed(found.days, at, found.amount_micros);
    const before = hasBefore(found) ? summed(found.days_before, at, found.amount_before_micros, found.days_before.length) : [];
    const last = Math.max(found.days_in_period, found.days_before.length);
    const stops = stopsOf(found, now, before, at, currency, names);
    const told = stops.length ? `; ${toldOf(stops.at(-1))}. The arrow keys lead from day to day.` : ". Its first hour is not over.";
    this.chart.draw({
      label: `${names.now} day by day${hasBefore(found) ? ` against ${names.before}` : ""}${told}`,
      height: 240,
      x: { min: 0, max: last, ticks: Array.from({ length: last }, (_, index) => ({ at: index + 1, text: day(dayOf(found.first_day, index), { day: "numeric" }) })) },
      y: { format: (value) => roughMoney(value, currency) },
      series: [
        { slot: 6, dashed: true, points: before },
        { slot: 1, area: true, points: now },
      ],
      stops,
    });
  }
}

/** The sums at the end of each day, and at a moment, which lies in one of them: up to it, or up to day `until`. */
function summed(days, at, amount, until = 0) {
  const points = [[0, 0]];
  let sum = 0;
  for (const [index, micros] of days.entries()) {
    if (index < at && at < index + 1) points.push([at, amount]);
    sum += micros;
    if (index + 1 <= Math.max(at, until)) points.push([index + 1, sum]);
  }
  return points;
}

function stopsOf(found, now, before, at, currency, names) {
  return now
    .filter(([x]) => x > 0)
    .map(([x, micros]) => {
      const other = before.find(([there]) => there === x)?.[1];
      const rows = [[names.now, money(micros, currency)]];
      if (other !== undefined) rows.push([names.before, money(other, currency)], ["difference", money(micros - other, currency, { sign: true })]);
      return { x, y: micros, slot: 1, title: x === at && x % 1 ? hourOf(found.first_day, found.hours) : day(dayOf(found.first_day, x - 1)), rows };
    });
}

function toldOf({ title, rows }) {
  return `${title}: ${rows.map((row) => row.join(" ")).join(", ")}`;
}

function hasBefore({ days_before: days, unplaced_before_micros: unplaced }) {
  return Boolean(unplaced) || days.some((micros) => micros !== 0);
}

/** “18 Mar, 14:00”, or the last day of a period that is shorter. */
function sameHour({ hours, first_day_before: first, days_before: days }) {
  return hours >= days.length * HOURS ? `the end of ${day(dayOf(first, days.length - 1))}` : hourOf(first, hours);
}

function hourOf(first, hours) {
  const time = Date.parse(`${dayOf(first, Math.floor(hours / HOURS))}T00:00:00Z`) + (hours % HOURS) * 3_600_000;
  return date(time, "UTC", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

function dayOf(first, index) {
  return new Date(Date.parse(`${first}T12:00:00Z`) + index * DAY_MS).toISOString().slice(0, 10);
}

/** “+9.5%”; of ten times as much and more, how many times. */
function changed(ratio) {
  if (ratio >= TIMES) return `${number(ratio, { maximumSignificantDigits: 3 })} times`;
  return number(ratio - 1, { style: "percent", maximumFractionDigits: 1, signDisplay: "exceptZero" });
}
