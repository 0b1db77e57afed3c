// My bill: the amount as it runs, what it is made of, its course and a forecast, and all earlier periods.

import { ask, begin, empty, failure } from "./app.js";
import { Chart } from "./chart.js";
import { el, icon, put, say } from "./dom.js";
import { showEvents } from "./events.js";
import { aboutMoney, date, day, money, moneyParts, moment, number, roughMoney } from "./format.js";
import { Live, freshSign } from "./live.js";
import { quantity, periodName, periodSpan, slotOf, typeName } from "./usage.js";

const BILL_MS = 400; // between two questions for the bill, at least
const COURSE_MS = 3_000;
const LOOK_MS = 5_000; // a note may come for a closed period without any change of an open one
const REFUSED = [400, 403, 404]; // it would be the same the next time
const SPOKEN_MS = 20_000; // screen readers are told a new amount no more often

const main = document.getElementById("main");
const opened = new Set(); // periods

async function showBill(customer) {
  const address = `/v1/customers/${encodeURIComponent(customer)}`;
  const page = new BillPage(customer, address);
  put(main, page.element);
  await page.start();
}

class BillPage {
  constructor(customer, address) {
    Object.assign(this, { customer, address, bill: null, course: null, billAskedMs: 0, courseAskedMs: 0, spokenMs: 0 });
    this.live = new Live({
      address: `/v1/views/bill/changes?key=${encodeURIComponent(customer)}&pulse=1`,
      changed: () => this.due(),
      poll: async () => {
        const [bill, { views }] = await Promise.all([this.askBill(), ask("/v1/views")]);
        return { stamp: bill.stamp, job: views.find(({ view }) => view === "bill") };
      },
    });
    this.trouble = el("div");
    this.amount = el("p", { class: "amount skeleton", id: "amount" }, "0.00");
    this.asOf = el("p", { class: "as-of", hidden: true });
    this.spoken = el("p", { class: "hidden", role: "status" });
    this.eyebrow = el("h2", { class: "eyebrow" }, "This period so far");
    this.facts = el("dl", { class: "facts" });
    this.types = el("div", { class: "types" });
    this.chart = new Chart();
    this.days = this.makeDays();
    this.periods = el("div");
    this.how = el("div", { class: "card-body small" });
    this.element = this.make();
  }

  make() {
    const sign = freshSign(this.live, (fresh) => this.showFresh(fresh));
    const plan = (this.plan = el("p", {}, this.customer));
    const hero = el("div", { class: "hero-main" }, this.eyebrow, this.amount, this.asOf, this.spoken, this.facts, this.days);
    const own = session.where.customer === this.customer;
    return el(
      "div",
      { class: "stack" },
      el("div", { class: "page-head" }, el("div", {}, el("h1", {}, own ? "My bill" : "Bill"), plan), sign),
      this.trouble,
      el("section", { class: "card hero", "aria-label": "This period" }, hero, this.types),
      this.periods,
      el("details", { class: "card how" }, el("summary", { class: "card-head" }, el("h2", {}, "How this is made"), icon("down")), this.how),
    );
  }

  makeDays() {
    this.table = el("div", { class: "table-wrap", id: "course-table", hidden: true });
    this.chartBody = el("div", {}, this.chart.element, this.table);
    const toggle = el("button", { class: "button quiet slim", "aria-expanded": "false", "aria-controls": "course-table" }, "As a table");
    toggle.addEventListener("click", () => {
      this.table.hidden = !this.table.hidden;
      toggle.setAttribute("aria-expanded", String(!this.table.hidden));
    });
    const legend = el("div", { class: "legend" }, el("span", { class: "key so-far" }, "so far"), el("span", { class: "key forecast" }, "forecast"));
    return el("section", { class: "days", hidden: true, "aria-label": "Day by day" }, this.chartBody, el("div", { class: "legend" }, legend, toggle));
  }

  async start() {
    await this.look();
    if (this.refused) return;
    this.live.start();
    setInterval(() => this.tick(), 1_000);
  }

  /** Something changed: until it is shown, what is shown is old. */
  due() {
    this.live.behindMs ??= Date.now();
    this.look();
  }

  tick() {
    const batch = this.live.stamp?.batch;
    const moved = batch !== undefined && batch !== this.bill?.stamp.batch && Date.now() - this.billAskedMs > LOOK_MS;
    if (!document.hidden && (moved || this.live.behindMs || !this.bill)) this.look();
  }

  /** Ask for the bill, one question at a time and not too often, and show it. */
  async look() {
    if (this.looking) return;
    this.looking = true;
    try {
      await new Promise((done) => setTimeout(done, Math.max(0, this.billAskedMs + BILL_MS - Date.now())));
      const behindMs = this.live.behindMs;
      await this.askBill();
      if (this.live.behindMs === behindMs) this.live.behindMs = undefined;
      put(this.trouble);
      await this.lookAtCourse();
    } catch (error) {
      this.refused = !this.bill && REFUSED.includes(error.status);
      put(this.trouble, failure(error, this.bill ? "The bill cannot be brought up to date" : "The bill cannot be shown"));
    } finally {
      this.looking = false;
    }
  }

  async askBill() {
    this.billAskedMs = Date.now();
    const bill = await ask(`${this.address}/bill`);
    if (this.bill && bill.stamp.batch < this.bill.stamp.batch) return bill; // another worker, a moment behind
    this.bill = bill;
    this.live.hear(bill.stamp);
    this.show();
    return bill;
  }

  async lookAtCourse() {
    const current = this.current();
    this.days.hidden = !current;
    if (!current || Date.now() - this.courseAskedMs < COURSE_MS) return;
    this.courseAskedMs = Date.now();
    try {
      const which = new URLSearchParams({ period: current.period, currency: current.currency });
      this.course = await ask(`${this.address}/bill/course?${which}`);
      put(this.chartBody, this.chart.element, this.table);
      this.showCourse();
    } catch (error) {
      this.course = null;
      put(this.chartBody, failure(error, "The days cannot be shown"));
    }
  }

  /** The period that is open: the newest draft. */
  current() {
    return this.bill?.periods.findLast(({ state }) => state === "draft");
  }

  show() {
    const current = this.current();
    const periods = this.bill.periods.filter((period) => period !== current).reverse();
    this.amount.classList.remove("skeleton");
    this.showCurrent(current);
    this.showTypes(current);
    refresh(this.periods, JSON.stringify(periods), () => this.makePeriods(periods));
    this.showHow();
  }

  showCurrent(current) {
    if (!current) {
      say(this.eyebrow, this.bill.periods.length ? "Nothing open" : "No bill yet");
      this.amount.hidden = true;
      const text = this.bill.periods.length ? "Nothing has been used in a period that is still open." : "Nothing has been used so far.";
      put(this.facts, el("div", {}, el("dd", {}, text)));
      return;
    }
    this.amount.hidden = false;
    const plans = [...new Set(current.lines.map((line) => line.plan.split("@")[0]))];
    say(this.plan, `${this.customer} · plan ${plans.join(", ")}`);
    say(this.eyebrow, `${periodName(current)}, so far`);
    const parts = moneyParts(current.charged_micros, current.currency);
    const text = parts.map(({ value }) => value).join("");
    if (this.amount.dataset.text !== text) {
      this.amount.dataset.text = text;
      this.amount.dataset.long = text.length > 11 ? "yes" : "no";
      put(this.amount, parts.map(({ type, value }) => el("span", { class: `part-${type}` }, value)));
      this.speak(text);
    }
    this.showFacts(current);
  }

  showFacts(current) {
    const { now, forecast_micros: forecast, period_end: end } = this.course ?? {};
    const left = now ? Math.ceil((new Date(end) - new Date(now)) / 86_400_000) : null;
    const closes = left === null ? "" : left > 0 ? `, ${left} ${left === 1 ? "day" : "days"} left` : ", over";
    const last = date(new Date(current.period_end) - 1, current.time_zone);
    const facts = [
      ["Period", `${periodSpan(current)}${closes}`],
      [`Forecast for ${last}`, this.course ? (forecast === null ? "too early to say" : `about ${aboutMoney(forecast, current.currency)}`) : "…"],
      ["Events", number(current.events)],
    ];
    const key = JSON.stringify(facts);
    if (this.facts.dataset.key === key) return;
    this.facts.dataset.key = key;
    put(this.facts, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, value))));
  }

  speak(text) {
    if (Date.now() - this.spokenMs < SPOKEN_MS) return;
    this.spokenMs = Date.now();
    this.spoken.textContent = `${text} so far`;
  }

  showFresh(fresh) {
    const stale = ["old", "paused", "lost"].includes(fresh.kind);
    this.element?.classList.toggle("stale", stale);
    this.asOf.hidden = !stale;
    this.asOf.dataset.kind = fresh.kind;
    if (stale) say(this.asOf, `as of ${fresh.asOf}; it may be more by now`);
  }

  showTypes(current) {
    const lines = [...(current?.lines ?? [])].sort((a, b) => b.charged_micros - a.charged_micros);
    const several = new Set(lines.map(({ plan }) => plan)).size > 1;
    refresh(this.types, JSON.stringify(lines), () => {
      if (!lines.length) return empty("Nothing used yet", "Calls, messages and data appear here as they come in.");
      const most = Math.max(1, ...lines.map(({ charged_micros: micros }) => Math.abs(micros)));
      return el("ul", {}, lines.map((line) => this.typeRow(current, line, most, several)));
    });
  }

  typeRow(current, line, most, several) {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${(100 * Math.abs(line.charged_micros)) / most}%`;
    const name = typeName(line.type) + (several ? ` · ${line.plan}` : "");
    return el(
      "li",
      { class: slotOf(line.type) },
      el(
        "button",
        {
          class: "type-row",
          "data-key": `${line.type} ${line.plan}`,
          onclick: () => showEvents(this.address, current, { type: line.type, title: name }),
        },
        el("span", { class: "type-name" }, name, el("span", { class: "hidden" }, " ")),
        el("span", { class: "type-amount num" }, money(line.charged_micros, current.currency)),
        el("span", { class: "track", "aria-hidden": "true" }, bar),
        el("span", { class: "type-quantity num" }, quantity(line)),
        el("span", { class: "type-events num" }, `${number(line.events)} ${line.events === 1 ? "event" : "events"}`),
        el("span", { class: "hidden" }, ". Show the events"),
      ),
    );
  }

  showCourse() {
    const { course } = this;
    if (!course || !this.current()) return;
    const { currency } = course;
    let sum = 0;
    const stops = course.days.map(({ day: text, amount_micros: added, events }, index) => {
      sum += added;
      const rows = [["so far", money(sum, currency)], ["on this day", money(added, currency)], ["events", number(events)]];
      return { x: index + 1, y: sum, title: day(text, { weekday: "short", day: "numeric", month: "long" }), rows };
    });
    const points = [[0, 0], ...stops.map(({ x, y }) => [x, y])];
    const length = course.days_in_period;
    const forecast = course.forecast_micros;
    const series = [{ slot: 1, points, area: true }];
    if (forecast !== null && points.length <= length) {
      series.push({ slot: 6, points: [points.at(-1), [length, forecast]], dashed: true });
      stops.push({ x: length, y: forecast, slot: 6, title: "At the end of the period", rows: [["forecast", `about ${aboutMoney(forecast, currency)}`]] });
    }
    const first = course.days[0]?.day ?? "";
    const ticks = Array.from({ length }, (_, index) => ({ at: index + 1, text: shifted(first, index) })).filter((_, index) => index % 7 === 0 || length < 9);
    this.chart.draw({
      label: `What each day added: ${money(sum, currency)} after ${course.days.length} of ${length} days. The arrow keys lead from day to day.`,
      height: 200,
      x: { min: 0, max: length, ticks },
      y: { format: (value) => roughMoney(value, currency) },
      series,
      stops,
    });
    this.showTable();
    this.showFacts(this.current());
  }

  showTable() {
    const { course } = this;
    const rows = course.days.map((each) =>
      el("tr", {}, el("th", { scope: "row" }, day(each.day)), el("td", { class: "right" }, number(each.events)), el("td", { class: "right" }, money(each.amount_micros, course.currency))),
    );
    const head = el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Day"), el("th", { scope: "col", class: "right" }, "Events"), el("th", { scope: "col", class: "right" }, "Added")));
    put(this.table, el("table", {}, el("caption", { class: "hidden" }, "What each day added"), head, el("tbody", {}, rows)));
  }

  makePeriods(periods) {
    const head = el("div", { class: "card-head" }, el("h2", {}, "Earlier periods"));
    if (!periods.length) return el("section", { class: "card" }, head, empty("None yet", "When a period is over its invoice appears here."));
    return el("section", { class: "card", "aria-label": "Earlier periods" }, head, el("ul", { class: "periods" }, periods.map((period) => this.period(period))));
  }

  period(period) {
    const { currency, state, documents } = period;
    const chips = { draft: ["Draft", "accent"], sealed: ["Sealed", "good"], corrected: ["Corrected", "warn"] };
    const [text, kind] = chips[state];
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
    const details = el("details", { open: opened.has(key) }, summary, this.periodBody(period, documents));
    details.addEventListener("toggle", () => (details.open ? opened.add(key) : opened.delete(key)));
    return el("li", {}, details);
  }

  periodBody(period, documents) {
    const { currency } = period;
    const lines = period.lines.map((line) =>
      el(
        "tr",
        { class: slotOf(line.type) },
        el("th", { scope: "row" }, el("span", { class: "swatch" }), typeName(line.type)),
        el("td", { class: "right" }, quantity(line)),
        el("td", { class: "right" }, this.eventsButton(period, line)),
        el("td", { class: "right" }, money(line.charged_micros, currency)),
      ),
    );
    const names = ["Type", "Quantity", "Events", "Amount"];
    const head = el("tr", {}, names.map((name, index) => el("th", { scope: "col", class: index ? "right" : null }, name)));
    const table = el("div", { class: "table-wrap" }, el("table", {}, el("thead", {}, head), el("tbody", {}, lines)));
    const papers = documents.map((document) => this.paper(document, currency));
    const open = period.state === "draft" ? el("p", { class: "muted small grace" }, "The period is over. Events that were on their way may still come in; then it is sealed.") : null;
    return el("div", { class: "period-body" }, open, papers.length ? el("ul", { class: "papers" }, papers) : null, table);
  }

  eventsButton(period, line) {
    return el(
      "button",
      {
        class: "button quiet slim",
        "data-key": `events ${period.period} ${line.type} ${line.plan}`,
        "aria-label": `${number(line.events)} events of ${typeName(line.type)} in ${periodName(period)}: show them`,
        onclick: () => showEvents(this.address, period, { type: line.type, title: typeName(line.type) }),
      },
      number(line.events),
    );
  }

  paper(document, currency) {
    const { number: name, kind, charged_micros: micros, corrects, events, late } = document;
    const titles = { invoice: "Invoice", "credit-note": "Credit note", "debit-note": "Debit note" };
    const count = `${number(events)} ${events === 1 ? "event" : "events"} that came too late`;
    const why = corrects ? `corrects ${corrects}: ${count}` : late ? `made of ${count}` : "";
    return el(
      "li",
      {},
      el("a", { class: "button slim", href: `/v1/invoices/${name}.pdf`, target: "_blank", "data-key": name, "aria-label": `${titles[kind] ?? kind} ${name} as PDF` }, icon("file"), name),
      el("span", {}, titles[kind] ?? kind, why ? el("span", { class: "muted" }, ` ${why}`) : null),
      el("span", { class: "num paper-amount" }, money(micros, currency, { sign: Boolean(corrects) })),
    );
  }

  showHow() {
    const { stamp } = this.bill;
    const facts = [
      ["Batch", number(stamp.batch)],
      ["Position in the journal", stamp.position],
      ["Closed up to (watermark)", new Date(stamp.watermark) > 0 ? moment(stamp.watermark) : "nothing yet"],
      ["Committed", moment(stamp.committed)],
      ["Answered by", stamp.replica],
    ];
    const text = "Each number is the sum of its events: choose one to see them. Open periods and invoices come from the same rows, so nothing is computed in two ways.";
    put(this.how, el("p", { class: "muted" }, text), el("dl", { class: "stamp" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "mono" }, value)))));
  }
}

/** Make a part anew if what it shows is something else, and leave the focus where it was. */
function refresh(container, sign, make) {
  if (container.dataset.sign === sign) return;
  container.dataset.sign = sign;
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  put(container, make());
  if (focused) container.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** The text of the day so many days after this one. */
function shifted(first, days) {
  const at = new Date(`${first}T12:00:00Z`);
  at.setUTCDate(at.getUTCDate() + days);
  return date(at, "UTC");
}

/** Whose bill: for those who may see everybody's. */
async function showChoice() {
  const input = el("input", { type: "text", id: "customer", autocomplete: "off", spellcheck: "false", list: "customers", required: true });
  const options = el("datalist", { id: "customers" });
  const some = el("ul", { class: "some" });
  const go = (event) => {
    event.preventDefault();
    if (input.value.trim()) location.assign(`/bill/${encodeURIComponent(input.value.trim())}`);
  };
  const form = el("form", { class: "choice", onsubmit: go }, el("label", { class: "title", for: "customer" }, "Customer"), el("div", { class: "choice-row" }, input, el("button", { class: "button primary" }, "Show")), options);
  put(main, el("div", { class: "page-head" }, el("div", {}, el("h1", {}, "Bills"), el("p", {}, "Whose bill do you want to see?"))), el("section", { class: "card choice-card" }, form, some));
  input.focus();
  try {
    const { rows } = await ask("/v1/views/bill/rows?limit=400&columns=customer");
    const names = [...new Set(rows.map((row) => row.customer))].slice(0, 40);
    put(options, names.map((name) => el("option", { value: name })));
    put(some, names.length ? names.map((name) => el("li", {}, el("a", { class: "button slim", href: `/bill/${encodeURIComponent(name)}` }, name))) : el("li", { class: "nobody" }, empty("No customer has an open bill", "Type a customer’s name to see earlier periods.")));
  } catch (error) {
    put(some, failure(error, "Customers cannot be listed"));
  }
}

const session = await begin();
const named = decodeURIComponent(location.pathname.split("/")[2] ?? "");
const customer = named || session.where.customer || "";
if (customer) await showBill(customer);
else await showChoice();
