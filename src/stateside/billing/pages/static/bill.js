// My bill: the amount as it runs, what it is made of, its course and a forecast, and all earlier periods.

import { ask, begin, decoded, empty } from "./app.js";
import { showArchived } from "./archived.js";
import { showChoice } from "./choice.js";
import { Days } from "./days.js";
import { el, icon, put, say } from "./dom.js";
import { showEvents } from "./events.js";
import { aboutMoney, date, money, moneyParts, moment, number } from "./format.js";
import { ANSWER_MS_MAX, Live, freshSign } from "./live.js";
import { facts, refresh, trouble } from "./parts.js";
import { periodsCard } from "./periods.js";
import { periodName, periodSpan, quantity, slotOf, typeName } from "./usage.js";

const COURSE_MS = 3_000;
const REFUSED = [400, 403, 404]; // it would be the same the next time
const SPOKEN_MS = 20_000; // screen readers are told a new amount no more often

const main = document.getElementById("main");

async function showBill(customer) {
  const address = `/v1/customers/${encodeURIComponent(customer)}`;
  const page = new BillPage(customer, address);
  put(main, page.element);
  await page.start();
}

class BillPage {
  constructor(customer, address) {
    Object.assign(this, { customer, address, bill: null, streamed: null, course: null, courseAskedMs: 0, spokenMs: 0 });
    this.live = new Live({
      address: `${address}/bill/changes`,
      parse: JSON.parse, // as the bill itself is read
      changed: (told, kind) => this.take((this.streamed = kind === "snapshot" ? told : changedBy(told, this.streamed))),
      poll: async (signal) => {
        const [bill, { views }] = await Promise.all([this.askBill(signal), ask("/v1/views", { signal })]);
        return { stamp: bill.stamp, job: views.find(({ view }) => view === "bill") };
      },
    });
    this.trouble = el("div");
    this.archived = el("div");
    this.amount = el("p", { class: "amount skeleton", id: "amount" }, "0.00");
    this.asOf = el("p", { class: "as-of", hidden: true });
    this.spoken = el("p", { class: "hidden", role: "status" });
    this.eyebrow = el("h2", { class: "eyebrow" }, "This period so far");
    this.facts = el("dl", { class: "facts" });
    this.types = el("div", { class: "types" });
    this.days = new Days();
    this.periods = el("div");
    this.how = el("div", { class: "card-body small" });
    this.element = this.make();
  }

  make() {
    this.sign = freshSign(this.live, (fresh) => this.showFresh(fresh));
    const plan = (this.plan = el("p", {}, this.customer));
    const hero = el("div", { class: "hero-main" }, this.eyebrow, this.amount, this.asOf, this.spoken, this.facts, this.days.element);
    const own = session.where.customer === this.customer;
    return el(
      "div",
      { class: "stack" },
      el("div", { class: "page-head" }, el("div", {}, el("h1", {}, own ? "My bill" : "Bill"), plan), this.sign),
      this.trouble,
      this.archived,
      el("section", { class: "card hero", "aria-label": "This period" }, hero, this.types),
      this.periods,
      el("details", { class: "card how" }, el("summary", { class: "card-head" }, el("h2", {}, "How this is made"), icon("down")), this.how),
    );
  }

  async start() {
    await this.askBill(AbortSignal.timeout(ANSWER_MS_MAX)).catch((error) => (this.refused = REFUSED.includes(error.status)));
    this.sign.hidden = this.refused; // nothing is fresh, and nothing will be
    if (this.refused) return;
    this.live.start();
    setInterval(() => this.tick(), 1_000);
  }

  tick() {
    if (!document.hidden && this.course?.stamp.batch !== this.bill?.stamp.batch) this.lookAtCourse();
  }

  async askBill(signal) {
    try {
      const bill = await ask(`${this.address}/bill`, { signal });
      this.take(bill);
      return bill;
    } catch (error) {
      trouble(this.trouble, error, this.bill ? "The bill cannot be brought up to date" : "The bill cannot be shown");
      throw error;
    }
  }

  /** Show a bill, unless it is of an earlier batch than the one that is shown: of another worker, a moment behind. */
  take(bill) {
    if (isBefore(bill.stamp, this.bill?.stamp)) return;
    this.bill = bill;
    this.live.hear(bill.stamp);
    this.show();
    trouble(this.trouble, null);
    this.lookAtCourse();
  }

  /** Ask for the days, one question at a time and not too often, and show them if they are still those of the open period. */
  async lookAtCourse() {
    const current = this.current();
    this.days.element.hidden = !current;
    if (!current || this.onCourse || Date.now() - this.courseAskedMs < COURSE_MS) return;
    Object.assign(this, { courseAskedMs: Date.now(), onCourse: true });
    try {
      const which = new URLSearchParams({ period: current.period, currency: current.currency });
      this.course = await ask(`${this.address}/bill/course?${which}`, { signal: AbortSignal.timeout(ANSWER_MS_MAX) });
      if (!this.courseOf(this.current())) return;
      this.days.show(this.course);
      this.showFacts(this.current());
    } catch (error) {
      this.course = null;
      this.days.fail(error);
    } finally {
      this.onCourse = false;
    }
  }

  /** The days and the forecast of a period, if they are known. */
  courseOf(period) {
    const { course } = this;
    return course && course.period === period?.period && course.currency === period.currency ? course : null;
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
    this.periods.classList.toggle("stale", showArchived(this.archived, this.bill.archive));
    refresh(this.periods, periods, () => periodsCard(this.address, periods));
    this.showHow();
  }

  showCurrent(current) {
    if (!current) {
      say(this.eyebrow, this.bill.periods.length ? "Nothing open" : "No bill yet");
      this.amount.hidden = true;
      const text = this.bill.periods.length ? "Nothing has been used in a period that is still open." : "Nothing has been used so far.";
      refresh(this.facts, text, () => el("div", {}, el("dd", {}, text)));
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
    const course = this.courseOf(current);
    const { now, forecast_micros: forecast, period_end: end } = course ?? {};
    const left = now ? Math.ceil((new Date(end) - new Date(now)) / 86_400_000) : null;
    const closes = left === null ? "" : left > 0 ? `, ${left} ${left === 1 ? "day" : "days"} left` : ", over";
    const last = date(new Date(current.period_end) - 1, current.time_zone);
    const found = [
      ["Period", `${periodSpan(current)}${closes}`],
      [`Forecast for ${last}`, course ? (forecast === null ? "too early to say" : `about ${aboutMoney(forecast, current.currency)}`) : "…"],
      ["Events", number(current.events)],
    ];
    refresh(this.facts, found, () => facts(found));
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
    refresh(this.types, [lines, current?.rounding_micros], () => {
      if (!lines.length) return empty("Nothing used yet", "Calls, messages and data appear here as they come in.");
      const most = Math.max(1, ...lines.map(({ charged_micros: micros }) => Math.abs(micros)));
      const rounding = current.rounding_micros ? roundingRow(current) : null;
      return el("ul", {}, lines.map((line) => this.typeRow(current, line, most, several)), rounding);
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

  showHow() {
    const { stamp } = this.bill;
    const found = [
      ["Batch", number(stamp.batch)],
      ...(stamp.position.startsWith("~") ? [] : [["Position in the journal", stamp.position]]), // opaque: for machines
      ["Closed up to (watermark)", new Date(stamp.watermark) > 0 ? moment(stamp.watermark) : "nothing yet"],
      ["Committed", moment(stamp.committed)],
      ["Answered by", stamp.replica],
    ];
    const text = "Each number is the sum of its events: choose one to see them. Open periods and invoices come from the same rows, so nothing is computed in two ways.";
    put(this.how, el("p", { class: "muted" }, text), el("dl", { class: "stamp" }, found.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "mono" }, value)))));
  }
}

/** The bill with what a batch changed of it: whole periods, as the server computed them. */
function changedBy({ stamp, archive, totals, changed, removed }, bill) {
  const others = new Map(bill.periods.map((period) => [keyOf(period), period]));
  for (const period of removed) others.delete(keyOf(period));
  for (const period of changed) others.set(keyOf(period), period);
  const periods = [...others.entries()].sort(([one], [other]) => (one < other ? -1 : 1)).map(([, period]) => period);
  return { ...bill, stamp, archive, totals, periods };
}

/** What a period is known by; in this order they stand. */
function keyOf({ period, period_end: end, currency }) {
  return [end, period, currency].join(" ");
}

/** What the lines, each rounded by itself, lack to the amount. */
function roundingRow({ rounding_micros: micros, currency }) {
  return el("li", {}, el("div", { class: "type-row rounding" }, el("span", { class: "type-name" }, "Rounding"), el("span", { class: "type-amount num" }, money(micros, currency, { sign: true }))));
}

/** Whether a stamp is of an earlier batch than another one; nobody knows of two replicas, of which one may have been rolled back. */
function isBefore(stamp, other) {
  return stamp.replica === other?.replica && stamp.batch < other.batch;
}

const session = await begin();
const named = decoded(location.pathname.split("/")[2] ?? "");
const customer = named || session.where.customer || "";
if (customer) await showBill(customer);
else await showChoice(main);
