// The rows of a view: by key, by condition and page by page, brought up to date as long as the first page is shown.

import { ask, empty } from "./app.js";
import { el, icon, say } from "./dom.js";
import { written } from "./exact.js";
import { number } from "./format.js";
import { body, field, refresh, trouble } from "./parts.js";
import { rowTable } from "./values.js";

const PAGE = 25;

export class Rows {
  /** Of the view at this address; `watch(key)` is called with the parts of a key that somebody wants to watch. */
  constructor(address, described, watch) {
    Object.assign(this, { address, key: described.key, watch, cursors: [], cursor: null, batch: null, looks: 0, looking: false });
    const { key, columns } = described;
    this.keys = key.map(({ name, type }) => el("input", { type: "text", id: `key-${name}`, placeholder: type, autocomplete: "off", spellcheck: "false" }));
    this.where = el("input", { type: "text", id: "where", placeholder: `${columns[0]?.name ?? key[0].name}>=100`, autocomplete: "off", spellcheck: "false", "aria-describedby": "where-help" });
    const all = [...key, ...columns].map(({ name }) => name);
    this.order = el("select", { id: "order" }, el("option", { value: "" }, "by key"), all.map((name) => [el("option", { value: name }, `${name}, least first`), el("option", { value: `-${name}` }, `${name}, greatest first`)]));
    this.rows = el("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": "Rows" });
    this.told = el("span", { class: "muted small num", role: "status" });
    this.back = el("button", { class: "button slim", disabled: true, onclick: () => this.turn(-1) }, "Back");
    this.next = el("button", { class: "button slim", disabled: true, onclick: () => this.turn(1) }, "Next");
    this.content = this.make();
    this.question = this.stated();
  }

  make() {
    const fields = this.key.map(({ name }, index) => field(`key-${name}`, name, this.keys[index]));
    const more = [field("where", "Only rows with", this.where), field("order", "In the order", this.order)];
    const form = el("form", { class: "questions", onsubmit: (event) => this.first(event) }, fields, more, el("button", { class: "button primary" }, icon("search"), "Look up"));
    const help = el("p", { class: "muted small help", id: "where-help" }, "Give the key’s first parts, or none. A condition is a column, one of = != < <= > >= and a value; several with & between them.");
    return [el("div", { class: "card-body roomy" }, form, help), this.rows, el("div", { class: "rows-foot" }, this.told, el("span", {}, this.back, " ", this.next))];
  }

  /** The view stands at this batch: on the first page its rows are shown. */
  heard(batch) {
    if (!this.cursors.length && !this.looking && batch !== this.batch) this.look();
  }

  /** What stands in the fields is the question from now on, and not before. */
  first(event) {
    event.preventDefault();
    Object.assign(this, { cursors: [], cursor: null, question: this.stated() });
    this.look();
  }

  turn(by) {
    if (by > 0 && !this.cursor) return; // it is being turned
    if (by > 0) this.cursors.push(this.cursor);
    else this.cursors.pop();
    this.cursor = null;
    this.look();
  }

  /** The question in the fields: the key's first parts, up to the last one that is filled in, the conditions and the order. */
  stated() {
    const values = this.keys.map((input) => input.value);
    const conditions = this.where.value.split("&").map((text) => text.trim());
    return {
      parts: values.slice(0, values.findLastIndex((value) => value !== "") + 1),
      conditions: conditions.filter(Boolean),
      order: this.order.value,
    };
  }

  asked() {
    const { parts, conditions, order } = this.question;
    const asked = new URLSearchParams({ limit: PAGE });
    for (const part of parts) asked.append("key", part);
    for (const condition of conditions) asked.append("where", condition);
    if (order) asked.set("order", order);
    if (this.cursors.length) asked.set("cursor", this.cursors.at(-1));
    return asked;
  }

  /** Ask, and show what is answered, unless something else was asked meanwhile. */
  async look() {
    const look = ++this.looks;
    this.looking = true;
    try {
      const found = await ask(`${this.address}/rows?${this.asked()}`, { exact: true });
      if (look === this.looks) this.show(found);
    } catch (error) {
      if (look === this.looks) this.fail(error);
    }
    if (look !== this.looks) return;
    this.looking = false;
    this.back.disabled = !this.cursors.length;
    this.next.disabled = !this.cursor;
  }

  show({ stamp, rows, cursor }) {
    Object.assign(this, { batch: stamp.batch, cursor });
    const { parts, conditions } = this.question;
    const none = () => empty("No rows", parts.length || conditions.length ? "Nothing has this key and meets these conditions." : "This view is empty.");
    refresh(this.rows, [rows, this.question], () => (rows.length ? rowTable(this.key, rows, { ending: (row) => this.watchButton(row) }) : none()));
    const page = this.cursors.length ? `page ${this.cursors.length + 1}, ` : "";
    say(this.told, `${page}${number(rows.length)} ${rows.length === 1 ? "row" : "rows"} of batch ${number(stamp.batch)}${cursor ? "; there are more" : ""}`);
  }

  fail(error) {
    if (!error.status) this.batch = null; // the same is asked again as soon as the server is heard
    trouble(this.rows, error, "These rows cannot be shown", body);
    say(this.told, "");
    this.cursor = null;
  }

  watchButton(row) {
    const parts = this.key.map(({ name }) => row[name]);
    if (parts.some((part) => typeof part === "object")) return null;
    return el("button", { class: "button quiet slim", "data-key": written(parts), "aria-label": `Watch ${parts.join(", ")}`, title: "Watch this row", onclick: () => this.watch(parts) }, icon("eye"));
  }
}
