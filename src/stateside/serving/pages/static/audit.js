// The card of the audit: starting one is safe, it recomputes every bill from the journal and changes nothing.

import { ask, send } from "./app.js";
import { el, say } from "./dom.js";
import { moment } from "./format.js";
import { refresh, trouble } from "./parts.js";

const LOOK_MS = 3_000;
const CHIPS = { true: ["Everything adds up", "good"], false: ["It does not add up", "bad"], null: ["It did not come to an end", "warn"] };
const NONE = "None has been started here. An audit recomputes every bill from the journal and compares; it changes nothing.";

export class Audit {
  constructor() {
    this.button = el("button", { class: "button slim", onclick: () => this.look("POST") }, "Start an audit");
    this.text = el("div", { class: "card-body", role: "status" }, "…");
    this.element = el("section", { class: "card", "aria-label": "Audit" }, el("div", { class: "card-head" }, el("h2", {}, "Audit"), this.button), this.text);
  }

  start() {
    this.look();
    setInterval(() => document.hidden || this.look(), LOOK_MS);
  }

  /** Ask how the audit is, or start one. */
  async look(method = "GET") {
    try {
      const { running, last } = await (method === "GET" ? ask("/v1/audit") : send("/v1/audit", "POST"));
      this.button.disabled = running;
      say(this.button, running ? "An audit runs …" : "Start an audit");
      this.show(last);
    } catch (error) {
      trouble(this.text, error, method === "GET" ? "The audit cannot be shown" : "The audit was not started");
    }
  }

  show(last) {
    refresh(this.text, last, () => {
      if (!last) return el("p", { class: "muted" }, NONE);
      const [text, kind] = CHIPS[last.ok];
      return [el("p", {}, el("span", { class: `chip ${kind}` }, text), ` ${moment(last.ended)}`), el("pre", { class: "audit-text", tabindex: "0" }, last.text)];
    });
  }
}
