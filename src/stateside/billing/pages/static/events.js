// The very events behind a number, page by page.

import { ask, empty, failure } from "./app.js";
import { el, icon, put } from "./dom.js";
import { money, moment, number } from "./format.js";
import { periodName, quantity } from "./usage.js";

const PAGE = 50;

/** Open a sheet with the events of one type in a period of the bill at `address`. */
export function showEvents(address, period, { type, title }) {
  const sheet = new Events(address, period, type);
  const close = el("button", { class: "button quiet slim", onclick: () => sheet.dialog.close() }, "Close");
  const heading = el("div", {}, el("h2", { id: "events-title" }, `${title}, ${periodName(period)}`), sheet.sum);
  sheet.dialog = el("dialog", { class: "sheet card", "aria-labelledby": "events-title" }, el("div", { class: "card-head" }, heading, close), sheet.body, sheet.foot);
  sheet.dialog.addEventListener("close", () => sheet.dialog.remove());
  sheet.dialog.addEventListener("click", (event) => event.target === sheet.dialog && sheet.dialog.close());
  document.body.append(sheet.dialog);
  sheet.dialog.showModal();
  sheet.more();
}

class Events {
  constructor(address, period, type) {
    Object.assign(this, { address, period, type, after: null, shown: 0, added: 0n });
    this.rows = el("tbody");
    const names = ["When", "Event", "Quantity", "Added"];
    const head = el("tr", {}, names.map((name, index) => el("th", { scope: "col", class: index > 1 ? "right" : null }, name)));
    this.table = el("table", {}, el("thead", {}, head), this.rows);
    this.body = el("div", { class: "table-wrap sheet-body", tabindex: "0", role: "region", "aria-label": "Events" }, this.table);
    this.sum = el("p", { class: "muted small num" }, "…");
    this.button = el("button", { class: "button", onclick: () => this.more() }, "Show more");
    this.foot = el("div", { class: "sheet-foot", role: "status" });
  }

  async more() {
    this.button.disabled = true;
    const { period, type } = this;
    const which = { period: period.period, currency: period.currency, type, limit: PAGE };
    const asked = new URLSearchParams(this.after === null ? which : { ...which, after: this.after });
    try {
      const page = await ask(`${this.address}/bill/explain?${asked}`);
      this.show(page);
    } catch (error) {
      put(this.foot, failure(error, "The events cannot be shown"), this.button);
    } finally {
      this.button.disabled = false;
    }
  }

  show({ events, cursor, currency }) {
    this.after = cursor;
    this.rows.append(...events.map((event) => this.row(event, currency)));
    this.shown += events.length;
    this.added += events.reduce((sum, event) => sum + BigInt(event.amount_micros), 0n);
    const all = cursor === null ? "all of them, adding up to" : "these add up to";
    this.sum.textContent = `${number(this.shown)} ${this.shown === 1 ? "event" : "events"}: ${all} ${money(this.added, currency, { exact: true })}`;
    if (!this.shown) return put(this.foot, empty("No events", "There is nothing of this type."));
    return put(this.foot, cursor === null ? el("span", { class: "muted small" }, "That is all.") : this.button);
  }

  row(event, currency) {
    const late = event.late ? el("span", { class: "chip warn", title: `Came too late; ${event.document} has it` }, icon("file"), event.document) : null;
    return el(
      "tr",
      {},
      el("td", { class: "nowrap num" }, moment(event.time, this.period.time_zone)),
      el("td", {}, el("span", { class: "mono id" }, event.id), " ", late),
      el("td", { class: "right" }, quantity(event)),
      el("td", { class: "right" }, money(event.amount_micros, currency, { exact: true })),
    );
  }
}
