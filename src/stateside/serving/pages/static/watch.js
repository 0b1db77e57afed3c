// The rows of a key, watched: they are shown as they are, and what each batch changes of them is told.

import { ask, empty } from "./app.js";
import { el, icon, put } from "./dom.js";
import { written } from "./exact.js";
import { clock, number } from "./format.js";
import { Live, freshSign } from "./live.js";
import { field } from "./parts.js";
import { rowTable } from "./values.js";

const ROWS_MOST = 500;
const TOLD_MOST = 30;

export class Watch {
  constructor(address, described) {
    Object.assign(this, { address, key: described.key, parts: null, live: null, rows: new Map() });
    this.input = el("input", { type: "text", id: "watched", autocomplete: "off", spellcheck: "false", "aria-describedby": "watched-help" });
    this.sign = el("div", { class: "watch-sign" });
    this.table = el("div", { class: "table-wrap" }, empty("Nothing is watched yet", "Give a key, or choose the eye beside a row."));
    this.cut = el("p", { class: "muted small more", hidden: true }, `These are the first ${number(ROWS_MOST)} rows of more. What changes is told of all of them; give more parts of the key to see others.`);
    this.told = el("ol", { class: "told-list", "aria-label": "What changed", role: "log" });
    this.content = this.make();
  }

  make() {
    const begin = (event) => {
      event.preventDefault();
      const parts = this.input.value.split("/").map((part) => part.trim());
      this.parts = parts.filter((part, index) => part || index < parts.length - 1);
      this.begin();
    };
    const names = this.key.map(({ name }) => name).join(" / ");
    const form = el("form", { class: "questions", onsubmit: begin }, field("watched", `Key: ${names}`, this.input), el("button", { class: "button primary" }, icon("eye"), "Watch"), this.sign);
    const help = el("p", { class: "muted small help", id: "watched-help" }, "The key’s first parts with / between them. Every batch that changes one of these rows is told as it comes.");
    return [el("div", { class: "card-body roomy" }, form, help), this.table, this.cut, this.told];
  }

  /** These parts of a key are what is watched as soon as this is seen. */
  choose(parts) {
    this.end();
    this.parts = parts;
    this.input.value = parts.join(" / ");
  }

  /** This is seen: what was chosen is watched. */
  seen() {
    if (this.parts && !this.live) this.begin();
  }

  begin() {
    this.end();
    put(this.table, empty("…", ""));
    put(this.told);
    const key = this.parts.map((part) => ["key", part]);
    const [changes, rows] = [["pulse", 1], ["limit", ROWS_MOST]].map((first) => new URLSearchParams([first, ...key]));
    this.live = new Live({
      address: `${this.address}/changes?${changes}`,
      changed: (told, kind) => this.change(told, kind),
      poll: async (signal) => {
        const found = await ask(`${this.address}/rows?${rows}`, { signal, exact: true });
        this.change({ ...found, first: true, last: true, more: Boolean(found.cursor) }, "snapshot");
        return { stamp: found.stamp };
      },
    }).start();
    put(this.sign, freshSign(this.live));
  }

  /** This is not seen any more, or something else is watched. */
  end() {
    this.live?.stop();
    this.live = null;
    put(this.sign);
  }

  /** One page of a batch, which is whole with its last one. */
  change({ stamp, rows = [], changed = [], removed = [], first, last, more }, kind) {
    if (first) Object.assign(this, { rows: new Map(), isCut: more, batch: null });
    this.batch ??= { rows: 0, changed: new Set(), removed: 0 };
    for (const row of [...rows, ...changed]) this.keep(row);
    for (const key of removed) this.rows.delete(this.id(key));
    for (const row of changed) this.batch.changed.add(this.id(row));
    this.batch.rows += rows.length;
    this.batch.removed += removed.length;
    if (!last) return;
    const { batch } = this;
    this.batch = null;
    if (kind === "changes" && !batch.changed.size && !batch.removed) return; // a later batch with the same rows
    this.show(batch.changed);
    this.tell(stamp, kind === "snapshot" ? begunWith(batch.rows, more) : changedBy(batch));
  }

  keep(row) {
    const id = this.id(row);
    if (this.rows.size < ROWS_MOST || this.rows.has(id)) this.rows.set(id, row);
    else this.isCut = true;
  }

  show(changed) {
    const rows = [...this.rows.values()];
    put(this.table, rows.length ? rowTable(this.key, rows, { marked: (row) => changed.has(this.id(row)) }) : empty("No row has this key", "If one comes, it appears here."));
    this.cut.hidden = !this.isCut;
  }

  tell(stamp, what) {
    this.told.prepend(el("li", { class: "num" }, el("span", { class: "muted" }, clock(Date.now())), ` batch ${number(stamp.batch)}: ${what}`));
    while (this.told.children.length > TOLD_MOST) this.told.lastChild.remove();
  }

  id(row) {
    return written(this.key.map(({ name }) => row[name]));
  }
}

function begunWith(count, more) {
  return `${number(count)} ${count === 1 ? "row" : "rows"}${more ? " and more" : ""} to begin with`;
}

function changedBy({ changed, removed }) {
  return [changed.size ? `${number(changed.size)} changed` : "", removed ? `${number(removed)} left` : ""].filter(Boolean).join(", ");
}
