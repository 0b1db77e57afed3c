// The card of a view's savepoints: taking one is safe while the job runs; restoring one is for the command.

import { ask, empty, failure, send } from "./app.js";
import { el, say } from "./dom.js";
import { bytes, moment, number } from "./format.js";
import { body, refresh, replace, row, table } from "./parts.js";

const LOOK_MS = 10_000;

export class Savepoints {
  constructor() {
    this.view = null;
    this.lookedMs = 0;
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
    if (view !== this.view) Object.assign(this, { view, lookedMs: 0 });
    if (!this.busy && Date.now() - this.lookedMs > LOOK_MS) this.look();
  }

  take() {
    return this.look("POST");
  }

  async look(method = "GET") {
    if (this.busy) return;
    const { view } = this;
    this.busy = true;
    this.lookedMs = Date.now();
    this.button.disabled = method === "POST";
    say(this.button, method === "POST" ? "One is being taken …" : "Take a savepoint");
    try {
      const address = `/v1/views/${encodeURIComponent(view)}/savepoints`;
      const { savepoints } = await (method === "POST" ? send(address, "POST") : ask(address));
      if (view === this.view) this.showList(savepoints);
    } catch (error) {
      replace(this.list, body(failure(error, method === "POST" ? "No savepoint was taken" : "The savepoints cannot be shown")));
    } finally {
      this.busy = false;
      this.button.disabled = false;
      say(this.button, "Take a savepoint");
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
