// Business: what all customers together owe and were charged, period by period, and a box for questions of one's own.

import { ask, begin, empty } from "./app.js";
import { showArchived } from "./archived.js";
import { Chart } from "./chart.js";
import { el, put } from "./dom.js";
import { money, moment, number, roughMoney, roundingOf } from "./format.js";
import { Looked, freshSign } from "./live.js";
import { PaceChart, paceTile } from "./pace.js";
import { body, card, refresh, replace, row, table, trouble } from "./parts.js";
import { corrections, topCustomers } from "./questions.js";
import { SqlBox } from "./sql.js";
import { cycleOf, labelName, quantity, shortName, slotOf, typeName } from "./usage.js";

const KINDS = { "credit-note": "credit note", "debit-note": "debit note", invoice: "late invoice" };
const DEEP_MS = 10_000; // between two looks at what is asked by SQL
const PACE_OLD_MS = 60_000; // a pace of an older batch tells from then on what it is of
const main = document.getElementById("main");

class BusinessPage {
  constructor() {
    Object.assign(this, { periods: null, away: false, chosen: location.hash.slice(1), currency: null, deepMs: 0, deepOf: "" });
    this.looked = new Looked((signal) => this.look(signal));
    this.trouble = el("div");
    this.archived = el("div");
    this.period = el("select", { id: "period", onchange: () => this.choose() });
    this.money = el("select", { id: "money", onchange: () => this.choose() });
    this.tiles = el("dl", { class: "kpis" });
    this.chart = new Chart();
    this.revenue = body(this.chart.element, legend());
    this.pace = new PaceChart();
    this.types = el("div", { class: "table-wrap" });
    this.customers = el("div", { class: "table-wrap" }, waiting());
    this.corrections = el("div", { class: "table-wrap" }, waiting());
    this.letters = el("div");
    this.sql = new SqlBox({
      statement: "SELECT type, sum(amount_micros) / 1e6 AS amount, sum(events) AS events\nFROM bill GROUP BY type ORDER BY amount DESC",
      examples: [
        ["by plan", "SELECT plan, sum(amount_micros) / 1e6 AS amount, count(DISTINCT customer) AS customers\nFROM bill GROUP BY plan ORDER BY amount DESC"],
        ["invoices by period", "SELECT period, sum(charged_micros) / 1e6 AS charged, count(*) AS documents\nFROM archive.documents GROUP BY period ORDER BY period"],
        ["dead letters", "SELECT reason, count(*) AS letters FROM archive.dead_letters GROUP BY reason ORDER BY letters DESC"],
      ],
    });
    this.element = this.make();
  }

  make() {
    const sign = freshSign(this.looked, (fresh) => this.element?.classList.toggle("stale", this.away || ["lost", "paused", "old"].includes(fresh.kind)));
    const chosen = el("div", { class: "choose" }, el("label", { class: "hidden", for: "period" }, "Period"), this.period, el("label", { class: "hidden", for: "money" }, "Currency"), this.money, sign);
    return el(
      "div",
      { class: "stack" },
      el("div", { class: "page-head" }, el("h1", {}, "Business"), chosen),
      this.trouble,
      this.archived,
      el("section", { class: "card", "aria-label": "At a glance" }, this.tiles),
      el("div", { class: "grid two" }, card("Day by day", this.pace.element), card("Revenue by period", this.revenue)),
      el("div", { class: "grid two" }, card("Top customers", this.customers), el("div", { class: "column" }, card("By type", this.types), card("Corrections", this.corrections))),
      card("Dead letters", this.letters),
      card("Ask something else", body(this.sql.element)),
    );
  }

  /** Ask for the totals, and now and then for the rest; what the sign tells of. */
  async look(signal) {
    try {
      const found = await ask("/v1/periods", { signal });
      Object.assign(this, { periods: found.periods, plans: found.plans, stamp: found.stamp });
      this.away = showArchived(this.archived, found.archive);
      this.show();
      trouble(this.trouble, null);
      if (Date.now() - this.deepMs > DEEP_MS || this.deepOf !== this.key()) this.lookDeeper();
      const { views } = await ask("/v1/views", { signal });
      return { stamp: found.stamp, job: views.find(({ view }) => view === "bill") };
    } catch (error) {
      trouble(this.trouble, error, this.periods ? "The totals cannot be brought up to date" : "The totals cannot be shown");
      throw error;
    }
  }

  choose() {
    this.chosen = this.period.value;
    this.currency = this.money.value;
    history.replaceState(null, "", `#${this.chosen}`);
    this.show();
    this.lookAtPace();
    this.lookDeeper();
  }

  /** What is chosen: an answer of something else is not shown. */
  key() {
    return `${this.now?.period} ${this.currency}`;
  }

  show() {
    const { periods } = this;
    const currencies = [...new Set(periods.flatMap((period) => period.currencies.map(({ currency }) => currency)))];
    this.currency = currencies.includes(this.currency) ? this.currency : currencies[0];
    this.now = periods.find(({ period }) => period === this.chosen) ?? periods.at(-1);
    options(this.period, [...periods].reverse().map(({ period }) => [period, labelName(period)]), this.now?.period);
    options(this.money, currencies.map((currency) => [currency, currency]), this.currency);
    this.money.hidden = currencies.length < 2;
    this.period.hidden = !this.now;
    if (this.shown !== this.key()) for (const place of [this.customers, this.corrections]) replace(place, waiting());
    this.shown = this.key();
    if (!this.now) return this.showNothing();
    if (!this.revenue.contains(this.chart.element)) put(this.revenue, this.chart.element, legend());
    this.showTiles();
    this.showPace();
    this.showRevenue();
    this.showTypes();
    return undefined;
  }

  showNothing() {
    refresh(this.tiles, "nothing", () => el("div", {}, el("dt", {}, "All periods"), el("dd", { class: "num" }, "–"), el("dd", { class: "small muted" }, "nothing has been used yet")));
    const places = [this.pace.element, this.revenue, this.customers, this.types, this.corrections];
    for (const place of places) refresh(place, "nothing", () => empty("Nothing yet", "This fills with the first event of a customer."));
  }

  of(period) {
    const none = { open_micros: 0, charged_micros: 0, total_micros: 0, events: 0 };
    return period?.currencies.find(({ currency }) => currency === this.currency) ?? none;
  }

  /** The periods that can be compared with the chosen one: months with months that begin on the same day. */
  alike() {
    return this.periods.filter(({ period }) => cycleOf(period) === cycleOf(this.now.period));
  }

  /** The one before the chosen one; undefined without any. */
  before() {
    const alike = this.alike();
    return alike[alike.indexOf(this.now) - 1];
  }

  /** What is known of the chosen period's pace: { pace, error, asOf }. */
  paceNow() {
    if (this.paces?.of !== this.now.period) return {};
    const { pace, error, stamp, heardMs } = this.paces;
    const ofMs = heardMs - (stamp?.age_ms ?? 0);
    const old = pace && stamp.batch !== this.stamp.batch && Date.now() - ofMs > PACE_OLD_MS;
    return { pace, error, asOf: old ? ofMs : null };
  }

  showPace() {
    const before = this.before();
    this.pace.show(this.paceNow(), this.currency, { now: labelName(this.now.period), before: before ? labelName(before.period) : "" });
  }

  showTiles() {
    const { currency } = this;
    const now = this.of(this.now);
    const before = this.before();
    const tiles = [
      [labelName(this.now.period), money(now.total_micros, currency), now.open_micros ? `${money(now.open_micros, currency)} of it still open` : "closed"],
      before ? paceTile(this.paceNow(), currency, labelName(before.period)) : ["Against the period before", "–", "there is none"],
      ["Sealed", money(now.charged_micros, currency), "on invoices and notes"],
      ["Events", number(now.events), "behind these amounts"],
    ];
    refresh(this.tiles, tiles, () => tiles.map(([name, value, note]) => el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, value), el("dd", { class: "small muted" }, note))));
  }

  showRevenue() {
    const { currency } = this;
    const shown = this.alike().slice(-24);
    const point = (name) => shown.map((period, index) => [index, this.of(period)[name]]);
    const sealed = point("charged_micros");
    const open = point("open_micros").map(([index, value]) => [index, value, sealed[index][1]]);
    this.chart.draw({
      label: `Revenue of ${shown.length} periods; the newest has ${money(this.of(shown.at(-1)).total_micros, currency)}. The arrow keys lead from one to the next.`,
      height: 240,
      x: { min: -0.5, max: Math.max(6, shown.length) - 0.5, ticks: shown.map((period, index) => ({ at: index, text: shortName(period.period) })) },
      y: { format: (value) => roughMoney(value, currency) },
      series: [
        { slot: 1, bars: true, points: sealed },
        { slot: 3, bars: true, points: open },
      ],
      stops: shown.map((period, index) => {
        const { total_micros: amount, charged_micros: closed, open_micros: still } = this.of(period);
        return { x: index, y: amount, title: labelName(period.period), rows: [["all", money(amount, currency)], ["sealed", money(closed, currency)], ["open", money(still, currency)]] };
      }),
    });
  }

  showTypes() {
    const { currency } = this;
    const totals = this.now.totals.filter((total) => total.currency === currency).sort((a, b) => b.total_micros - a.total_micros);
    const { total_micros: sum } = this.of(this.now);
    const all = Math.max(1, sum);
    refresh(this.types, [totals, sum], () => {
      const rounding = roundingOf(sum, totals.map((total) => total.total_micros), currency);
      const rows = totals.map((total) =>
        el("tr", { class: slotOf(total.type) }, el("th", { scope: "row" }, el("span", { class: "typed" }, el("span", { class: "swatch" }), typeName(total.type))), el("td", { class: "right" }, quantity(total)), el("td", { class: "right" }, money(total.total_micros, currency)), el("td", { class: "right muted" }, percentOf(total.total_micros, all))),
      );
      if (rounding) rows.push(row("Rounding", ["", "right"], [money(rounding, currency, { sign: true }), "right"], ["", "right"]));
      rows.push(row(el("strong", {}, "Total"), ["", "right"], [el("strong", {}, money(sum, currency)), "right"], ["", "right"]));
      return table(["Type", "Quantity", "Amount", "Share"], rows);
    });
  }

  /** What is asked by SQL: the largest bills and the corrections; and the dead letters. */
  async lookDeeper() {
    if (this.deeper) return;
    const key = this.key();
    Object.assign(this, { deeper: true, deepMs: Date.now(), deepOf: key });
    this.lookAtPace();
    const ofPeriod = [
      [this.customers, () => this.lookAtCustomers()],
      [this.corrections, () => this.lookAtCorrections()],
    ];
    const parts = [...(this.now ? ofPeriod : []), [this.letters, () => this.lookAtLetters()]];
    await Promise.all(parts.map(([place, look]) => this.part(place, look)));
    this.deeper = false;
    if (key !== this.key()) this.lookDeeper(); // something else was chosen meanwhile
  }

  async lookAtPace() {
    const period = this.now?.period;
    if (!period || this.pacing === period) return; // it may take seconds, for which nothing else waits
    this.pacing = period;
    const found = await ask(`/v1/periods/${encodeURIComponent(period)}/pace`).catch((error) => ({ error }));
    if (this.pacing === period) this.pacing = undefined;
    if (period !== this.now?.period) return;
    this.paces = { of: period, heardMs: Date.now(), ...found };
    this.showTiles();
    this.showPace();
  }

  async part(place, look) {
    const key = this.key();
    const isWanted = () => key === this.key();
    try {
      const made = await look();
      if (isWanted()) refresh(place, made.key, () => made.shown());
    } catch (error) {
      if (isWanted()) trouble(place, error, "This cannot be shown", body);
    }
  }

  async lookAtCustomers() {
    const { now, currency } = this;
    const rows = await topCustomers(now, currency, Object.keys(now.plans).filter((plan) => this.plans[plan] === currency));
    const all = Math.max(1, this.of(now).total_micros);
    const item = ([customer, micros, events]) => {
      const link = el("a", { href: `/bill/${encodeURIComponent(customer)}` }, customer);
      return row([link, "name"], [number(events), "right"], [money(micros, currency), "right"], [percentOf(micros, all), "right muted"]);
    };
    const none = () => empty("No customers", "Nobody has used anything in this period.");
    return { key: [rows, all, currency], shown: () => (rows.length ? table(["Customer", "Events", "Amount", "Share"], rows.map(item)) : none()) };
  }

  async lookAtCorrections() {
    const { currency } = this;
    const rows = await corrections(currency);
    const item = ([period, kind, count, events, micros]) => {
      const documents = `${number(count)} ${KINDS[kind] ?? kind}${count === 1 ? "" : "s"}`;
      return row(labelName(period), documents, [number(events), "right"], [money(micros, currency, { sign: true }), "right"]);
    };
    const none = () => empty("No corrections", "No event came after its period was closed.");
    return { key: [rows, currency], shown: () => (rows.length ? table(["Period", "Documents", "Late events", "Changed by"], rows.map(item)) : none()) };
  }

  async lookAtLetters() {
    const found = await ask("/v1/dead-letters?limit=5");
    const shown = () => {
      if (!found.count) return empty("No dead letters", "Every event met the rules.");
      const chips = Object.entries(found.reasons).map(([reason, count]) => el("li", { class: "chip warn num" }, `${number(count)} ${reason.replaceAll("-", " ")}`));
      const rows = found.dead_letters.map((letter) => el("tr", { title: moment(letter.time) }, el("th", { scope: "row" }, letter.entity), el("td", {}, letter.type), el("td", { class: "wrap" }, letter.detail ?? letter.reason)));
      const more = found.count > rows.length ? el("p", { class: "muted small more" }, `The first ${number(rows.length)} of ${number(found.count)}. The statement “dead letters” below counts them all; stateside billing dead-letters replay brings them in again.`) : null;
      return [el("ul", { class: "reasons", "aria-label": "By reason" }, chips), el("div", { class: "table-wrap" }, table(["Customer", "Type", "Why"], rows)), more];
    };
    return { key: [found.count, found.dead_letters], shown };
  }
}

function legend() {
  const keys = [[1, "sealed"], [3, "still open"]];
  return el("div", { class: "legend" }, keys.map(([slot, name]) => el("span", { class: `s${slot}` }, el("span", { class: "swatch" }), name)));
}

function waiting() {
  return el("div", { class: "empty" }, "…");
}

function options(select, found, chosen) {
  refresh(select, found, () => found.map(([value, title]) => el("option", { value }, title)));
  if (chosen !== undefined) select.value = chosen;
}

function percentOf(part, all) {
  if (part > 0 && part / all < 0.001) return `< ${number(0.001, { style: "percent", maximumFractionDigits: 1 })}`;
  return number(part / all, { style: "percent", maximumFractionDigits: 1 });
}

await begin();
const page = new BusinessPage();
put(main, page.element);
page.looked.start();
