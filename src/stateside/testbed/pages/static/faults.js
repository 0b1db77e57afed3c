// What can be broken in a live demo: a button for each part, as in its terminal's menu.

import { ask, send } from "./app.js";
import { el } from "./dom.js";
import { refresh, trouble } from "./parts.js";

const LOOK_MS = 1_000;

export class Faults {
  constructor(onState = () => {}) {
    this.onState = onState;
    this.buttons = el("div", { class: "tabs", role: "group", "aria-label": "Parts" });
    this.trouble = el("div");
    this.element = el(
      "section",
      { class: "card", "aria-label": "Break something" },
      el("div", { class: "card-head" }, el("h2", {}, "Break something"), el("span", { class: "muted" }, "reads go on, and every sum stays right")),
      el("div", { class: "card-body" }, this.buttons, this.trouble),
    );
  }

  async start() {
    if (!document.hidden) await this.look();
    setTimeout(() => this.start(), LOOK_MS);
  }

  async look() {
    try {
      const state = await ask("/v1/demo");
      trouble(this.trouble, null, "");
      this.show(state.actions);
      this.onState(state);
    } catch (error) {
      trouble(this.trouble, error, "The demo does not answer");
    }
  }

  show(actions) {
    const button = ({ name, label, broken }) =>
      el("button", { class: `button${broken ? " primary" : ""}`, "data-key": name, onclick: () => this.act(name) }, label);
    refresh(this.buttons, actions, () => actions.map(button));
  }

  async act(action) {
    try {
      await send("/v1/demo/actions", "POST", { action });
      await this.look();
    } catch (error) {
      trouble(this.trouble, error, "That was not done");
    }
  }
}
