// Values of rows, as tables show them.

import { el } from "./dom.js";
import { moment, number } from "./format.js";

const LONG = 40; // what has more characters is cut off where it is shown, and whole where the pointer rests
const TIME = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}/;

/** A table's cell, of this class too: numbers to the right, times for people, whatever has parts as JSON. */
export function cell(value, kind = "") {
  if (value === null || value === undefined) return el("td", { class: `muted ${kind}` }, "null");
  if (typeof value === "number") return el("td", { class: `right ${kind}` }, shownNumber(value));
  if (typeof value === "object") return el("td", { class: `mono wrap ${kind}` }, JSON.stringify(value));
  if (TIME.test(value)) return el("td", { class: `nowrap num ${kind}`, title: value }, moment(value));
  const text = String(value);
  return el("td", { class: `${text.length > LONG ? "long" : "nowrap"} ${kind}`, title: text.length > LONG ? text : null }, text);
}

function shownNumber(value) {
  return number(value, Number.isInteger(value) ? {} : { maximumFractionDigits: 6 });
}

/** A table of rows, which are lists; names of columns that hold numbers stand to the right as well. */
export function valueTable(columns, rows, caption) {
  const right = columns.map((_, index) => rows.some((row) => typeof row[index] === "number"));
  const head = el("tr", {}, columns.map((name, index) => el("th", { scope: "col", class: right[index] ? "right" : null }, name)));
  const body = rows.map((row) => el("tr", {}, row.map((value) => cell(value))));
  return el("table", {}, caption ? el("caption", { class: "hidden" }, caption) : null, el("thead", {}, head), el("tbody", {}, body));
}
