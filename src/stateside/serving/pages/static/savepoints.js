// The card of a view's savepoints: taking one is safe while the job runs; restoring one is for the command.

import { ask, empty, send } from "./app.js";
import { el, say } from "./dom.js";
import { bytes, moment, number } from "./format.js";
import { body, refresh, replace, row, table, trouble } from "./parts.js";

const LOOK_MS = 10_000;

export class Savepoints {
  constructor() {
    Object.assign(this, { view: null, lookedMs: 0, asked: 0 });
    this.button = el("button", { class: "button slim", onclick: () => this.take() }, "Take a savepoint");
    this.list = el("div", { class: "table-wrap", role: "status" }, empty("…", ""));
    this.element = el(
      "section",
      { class: "card", "aria-label": "Savepoints" },
      el("div", { class: "card-head" }, el("h2", {}, "Savepoints"), this.button),
      this.list,
      el("p", { class: "muted small more" }, "A savepoint is the job’s state after one batch. The job goes on while one is taken. To begin again from one, stop the job, and run ", el("code", {}, "stateside savepoint restore NAME"), "."),
    );
  }

  /** Shown for this view, whose savepoints are looked at now and then. */
  show(view) {
    if (view !== this.view) {
      Object.assign(this, { view, lookedMs: 0 });
      replace(this.list, empty("…", ""));
    }
    if (!this.button.disabled && Date.now() - this.lookedMs > LOOK_MS) this.showWhat(ask(this.address()), "The savepoints cannot be shown");
  }

  async take() {
    this.button.disabled = true;
    say(this.button, "One is being taken …");
    await this.showWhat(send(this.address(), "POST"), "No savepoint was taken");
    this.button.disabled = false;
    say(this.button, "Take a savepoint");
  }

  address() {
    return `/v1/views/${encodeURIComponent(this.view)}/savepoints`;
  }

  /** Show what is answered, if it is of this view still and nothing else was asked meanwhile. */
  async showWhat(answer, title) {
    const { view } = this;
    const asked = ++this.asked;
    const isWanted = () => view === this.view && asked === this.asked;
    this.lookedMs = Date.now();
    try {
      const { savepoints } = await answer;
      if (isWanted()) this.showList(savepoints);
    } catch (error) {
      if (isWanted()) trouble(this.list, error, title, body);
    }
  }

  showList(savepoints) {
    refresh(this.list, savepoints, () => {
      if (!savepoints.length) return empty("No savepoint yet", "Take one before you change the job, or its version of Spark.");
      const rows = savepoints
        .toReversed()
        .map((one) => row([one.name, "mono"], moment(one.taken), [one.position, "mono"], [number(one.batch), "right"], [bytes(one.bytes), "right"]));
      return table(["Name", "Taken", "Position", "Batch", "Size"], rows);
    });
  }
}
