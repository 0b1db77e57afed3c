// The earlier periods of a bill: draft, sealed or corrected, with their documents and what they are made of.

import { empty } from "./app.js";
import { el, icon } from "./dom.js";
import { showEvents } from "./events.js";
import { money, number } from "./format.js";
import { card, row, table } from "./parts.js";
import { periodName, periodSpan, quantity, slotOf, typeName } from "./usage.js";

const CHIPS = { draft: ["Draft", "accent"], sealed: ["Sealed", "good"], corrected: ["Corrected", "warn"] };
const TITLES = { invoice: "Invoice", "credit-note": "Credit note", "debit-note": "Debit note" };
const opened = new Set(); // periods; they stay open when the card is made anew

/** All of them, as a card; `address` is the customer's. */
export function periodsCard(address, periods) {
  const none = () => empty("None yet", "When a period is over its invoice appears here.");
  return card("Earlier periods", periods.length ? el("ul", { class: "periods" }, periods.map((period) => periodItem(address, period))) : none());
}

function periodItem(address, period) {
  const { currency } = period;
  const [text, kind] = CHIPS[period.state];
  const title = el("span", { class: "period-title" }, el("strong", {}, periodName(period)), el("span", { class: "muted small" }, periodSpan(period)));
  const summary = el(
    "summary",
    { "data-key": `period ${period.period} ${currency}` },
    title,
    el("span", { class: `chip ${kind}` }, text),
    el("span", { class: "period-amount num" }, money(period.charged_micros, currency)),
    icon("down"),
  );
  const key = `${period.period} ${currency}`;
  const details = el("details", { open: opened.has(key) }, summary, periodBody(address, period));
  details.addEventListener("toggle", () => (details.open ? opened.add(key) : opened.delete(key)));
  return el("li", {}, details);
}

function periodBody(address, period) {
  const { currency, documents } = period;
  const lines = period.lines.map((line) =>
    el(
      "tr",
      { class: slotOf(line.type) },
      el("th", { scope: "row" }, el("span", { class: "swatch" }), typeName(line.type)),
      el("td", { class: "right" }, quantity(line)),
      el("td", { class: "right" }, eventsButton(address, period, line)),
      el("td", { class: "right" }, money(line.charged_micros, currency)),
    ),
  );
  const micros = period.rounding_micros;
  const rounding = micros ? [row("Rounding", ["", "right"], ["", "right"], [money(micros, currency, { sign: true }), "right"])] : [];
  const total = row(el("strong", {}, "Total"), ["", "right"], [number(period.events), "right"], [el("strong", {}, money(period.charged_micros, currency)), "right"]);
  const amounts = el("div", { class: "table-wrap" }, table(["Type", "Quantity", "Events", "Amount"], [...lines, ...rounding, total]));
  const papers = documents.map((document) => paper(document, currency));
  const open = period.state === "draft" ? el("p", { class: "muted small grace" }, "The period is over. Events that were on their way may still come in; then it is sealed.") : null;
  return el("div", { class: "period-body" }, open, papers.length ? el("ul", { class: "papers" }, papers) : null, amounts);
}

function eventsButton(address, period, line) {
  return el(
    "button",
    {
      class: "button quiet slim",
      "data-key": `events ${period.period} ${line.type} ${line.plan}`,
      "aria-label": `${number(line.events)} events of ${typeName(line.type)} in ${periodName(period)}: show them`,
      onclick: () => showEvents(address, period, { type: line.type, title: typeName(line.type) }),
    },
    number(line.events),
  );
}

function paper(document, currency) {
  const { number: name, kind, charged_micros: micros, corrects, events, late } = document;
  const title = TITLES[kind] ?? kind;
  const count = `${number(events)} ${events === 1 ? "event" : "events"} that came too late`;
  const why = corrects ? `corrects ${corrects}: ${count}` : late ? `made of ${count}` : "";
  return el(
    "li",
    {},
    el("a", { class: "button slim", href: `/v1/invoices/${name}.pdf`, target: "_blank", "data-key": name, "aria-label": `${title} ${name} as PDF` }, icon("file"), name),
    el("span", {}, title, why ? el("span", { class: "muted" }, ` ${why}`) : null),
    el("span", { class: "num paper-amount" }, money(micros, currency, { sign: Boolean(corrects) })),
  );
}
