// Values of rows, as tables show them.

import { el } from "./dom.js";
import { isNumber, written } from "./exact.js";
import { moment, number } from "./format.js";

const LONG = 40; // what has more characters is cut off where it is shown, and whole where the pointer rests
const TIME = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})?$/;

/** A table's cell, of this class too: numbers to the right, times for people, whatever has parts as JSON. */
function cell(value, kind = "") {
  if (value === null || value === undefined) return el("td", { class: `muted ${kind}` }, "null");
  if (isNumber(value)) return el("td", { class: `right ${kind}` }, shownNumber(value));
  if (typeof value === "object") return el("td", { class: `mono wrap ${kind}` }, written(value));
  if (isTime(value)) return el("td", { class: `nowrap num ${kind}`, title: value }, moment(value));
  const text = String(value);
  return el("td", { class: `${text.length > LONG ? "long" : "nowrap"} ${kind}`, title: text.length > LONG ? text : null }, text);
}

function shownNumber(value) {
  return number(value, Number.isInteger(value) || typeof value === "bigint" ? {} : { maximumFractionDigits: 6 });
}

/** Whether a value is a time. There are texts that look like one: of the 45th of a month, or with more behind it. */
function isTime(value) {
  return TIME.test(value) && !Number.isNaN(Date.parse(value));
}

/** A table of a view's rows, by its key's columns. Behind each row stands its `ending`; `marked` ones are told to have changed. */
export function rowTable(key, rows, { ending = null, marked = () => false }) {
  const keys = new Set(key.map(({ name }) => name));
  const names = Object.keys(rows[0]);
  const right = (name) => !keys.has(name) && rows.some((row) => isNumber(row[name]));
  const head = el("tr", {}, names.map((name) => el("th", { scope: "col", class: right(name) ? "right" : null }, name)), ending ? el("td", {}) : null);
  const end = (row) => (ending ? el("td", { class: "right" }, ending(row)) : null);
  const lines = rows.map((row) => el("tr", { class: marked(row) ? "told" : null }, names.map((name) => cell(row[name], keys.has(name) ? "key" : right(name) ? "right" : "")), end(row)));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, lines));
}

/** A table of rows, which are lists; names of columns that hold numbers stand to the right as well. */
export function valueTable(columns, rows, caption) {
  const right = columns.map((_, index) => rows.some((row) => isNumber(row[index])));
  const head = el("tr", {}, columns.map((name, index) => el("th", { scope: "col", class: right[index] ? "right" : null }, name)));
  const body = rows.map((row) => el("tr", {}, row.map((value, index) => cell(value, right[index] ? "right" : ""))));
  return el("table", {}, caption ? el("caption", { class: "hidden" }, caption) : null, el("thead", {}, head), el("tbody", {}, body));
}
