// A box for SQL: a statement, its result as a table and as a chart, and the same as a CSV file.

import { ask, empty, failure, problemOf, send } from "./app.js";
import { Chart } from "./chart.js";
import { el, icon, put } from "./dom.js";
import { isNumber } from "./exact.js";
import { age, number, rough } from "./format.js";
import { valueTable } from "./values.js";

const ROWS_SHOWN = 500;
const BARS_MOST = 60;

export class SqlBox {
  /** `statement` stands there at first; `examples` are [title, statement]. */
  constructor({ statement = "", examples = [] } = {}) {
    this.text = el("textarea", { class: "code", rows: "5", id: "sql", spellcheck: "false", autocapitalize: "off", "aria-describedby": "sql-help" });
    this.text.value = statement;
    this.run = el("button", { class: "button primary", type: "submit" }, icon("play"), "Run");
    this.save = el("button", { class: "button", type: "button", disabled: true, onclick: () => this.download() }, icon("save"), "CSV");
    this.told = el("p", { class: "muted small num", role: "status" });
    this.result = el("div");
    this.relations = el("div", { class: "relations" });
    this.chart = new Chart();
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.ask(event);
    });
    this.element = this.make(examples);
    this.list();
  }

  make(examples) {
    const some = examples.map(([title, statement]) =>
      el("button", { class: "button quiet slim", type: "button", onclick: (event) => this.example(statement, event) }, title),
    );
    const form = el(
      "form",
      { class: "sql-form", onsubmit: (event) => this.ask(event) },
      el("label", { class: "title", for: "sql" }, "Statement"),
      this.text,
      el("div", { class: "sql-buttons" }, this.run, this.save, el("span", { class: "muted small", id: "sql-help" }, "Ctrl+Enter runs it. One SELECT, of one snapshot of each view.")),
      some.length ? el("div", { class: "sql-examples" }, el("span", { class: "muted small" }, "For example:"), some) : null,
    );
    return el("div", { class: "sql" }, el("div", { class: "sql-top" }, form, this.relations), this.told, this.result);
  }

  async list() {
    try {
      const { relations } = await ask("/v1/sql");
      put(this.relations, el("h3", {}, "What there is"), relations.map((one) => this.relation(one)));
    } catch (error) {
      put(this.relations, failure(error, "Relations cannot be listed"));
    }
  }

  relation({ name, kind, columns }) {
    const insert = () => {
      this.text.setRangeText(name, this.text.selectionStart, this.text.selectionEnd, "end");
      this.text.focus();
    };
    const add = el("button", { class: "button quiet slim", type: "button", "aria-label": `Insert ${name}`, onclick: insert }, "Insert");
    const items = columns.map((column) => el("li", {}, el("span", { class: "mono" }, column.name), el("span", { class: "muted small" }, column.type.toLowerCase())));
    return el("details", {}, el("summary", {}, el("span", { class: "mono" }, name), el("span", { class: "chip" }, kind)), el("ul", {}, items), add);
  }

  example(statement, event) {
    this.text.value = statement;
    this.ask(event);
  }

  async ask(event) {
    event?.preventDefault();
    const sql = this.text.value.trim();
    if (!sql) return;
    this.running?.abort(); // which the server notices: only the newest statement counts
    const running = (this.running = new AbortController());
    const beganMs = performance.now();
    put(this.told, "Running …");
    try {
      const answer = await send("/v1/sql", "POST", { sql }, { signal: running.signal, exact: true });
      this.asked = sql;
      this.save.disabled = false;
      this.show(answer, performance.now() - beganMs);
    } catch (error) {
      if (running.signal.aborted) return;
      this.asked = null; // what is not shown is not saved either
      this.save.disabled = true;
      put(this.told);
      put(this.result, failure(error, "The statement was not answered"));
    }
  }

  show({ stamps, columns, rows }, ms) {
    const of = stamps.map(({ view, batch }) => `${view} at batch ${number(batch)}`).join(", ");
    const cut = rows.length > ROWS_SHOWN ? ` The first ${number(ROWS_SHOWN)} are shown; the CSV has all.` : "";
    put(this.told, `${number(rows.length)} ${rows.length === 1 ? "row" : "rows"} in ${age(ms)}${of ? `, of ${of}` : ""}.${cut}`);
    if (!rows.length) return put(this.result, empty("No rows", "The statement was answered, and nothing met it."));
    const table = el("div", { class: "table-wrap result", tabindex: "0", role: "region", "aria-label": "Result" }, valueTable(columns.map(({ name }) => name), rows.slice(0, ROWS_SHOWN), "Result"));
    const model = chartOf(columns, rows);
    put(this.result, model ? el("div", { class: "sql-chart" }, this.chart.element) : null, table);
    if (model) this.chart.draw(model);
    return undefined;
  }

  /** The same statement once more, as CSV, which may have far more rows. */
  async download() {
    this.save.disabled = true;
    try {
      const body = JSON.stringify({ sql: this.asked, format: "csv" });
      const response = await fetch("/v1/sql", { method: "POST", headers: { "content-type": "application/json" }, body });
      if (!response.ok) throw await problemOf(response);
      const address = URL.createObjectURL(await response.blob());
      el("a", { href: address, download: "result.csv" }).click();
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
    } catch (error) {
      put(this.result, failure(error, "There is no CSV"));
    } finally {
      this.save.disabled = !this.asked;
    }
  }
}

/** A chart of a result, if one says anything: a first column of names or times, and the first one of numbers behind it. */
function chartOf(columns, rows) {
  const at = columns.findIndex((_, index) => index > 0 && rows.every((row) => row[index] === null || isNumber(row[index])));
  if (at < 1 || rows.length < 2 || rows.length > BARS_MOST) return null;
  const names = rows.map((row) => String(row[0] ?? "null"));
  if (new Set(names).size < names.length) return null;
  const short = (text) => (/^\d{4}-\d{2}-\d{2}T/.test(text) ? text.slice(0, 10) : text.length > 9 ? `${text.slice(0, 8)}…` : text);
  return {
    label: `${columns[at].name} by ${columns[0].name}, ${rows.length} bars. The arrow keys lead from one to the next.`,
    height: 220,
    x: { min: -0.5, max: rows.length - 0.5, ticks: names.map((text, index) => ({ at: index, text: short(text) })) },
    y: { format: (value) => rough(value) },
    series: [{ slot: 1, bars: true, points: rows.map((row, index) => [index, Number(row[at])]) }],
    stops: rows.map((row, index) => ({ x: index, y: Number(row[at]), title: names[index], rows: [[columns[at].name, row[at] === null ? "null" : number(row[at])]] })),
  };
}
