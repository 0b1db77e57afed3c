// The control room: the path of an event, drawn as it runs, and of each view what its job, its state and its replica do.

import { ask, begin, empty, failure, send } from "./app.js";
import { Chart, spark } from "./chart.js";
import { el, icon, put, say, svg } from "./dom.js";
import { age, bytes, clock, moment, number, rough, took } from "./format.js";
import { freshSign } from "./live.js";
import { Savepoints } from "./savepoints.js";

const POLL_MS = 1_000;
const AUDIT_MS = 3_000;
const SAMPLES = 60;
const OVER_S = 5; // what a rate is the mean of
const LATE_MS = 4_000; // what was not heard for so long is old
const SKEW_MOST = 2; // the largest partition, over the mean
const PARTS = [
  ["ask", "ask the source", 2],
  ["plan", "plan", 4],
  ["log", "write the plan down", 6],
  ["work", "work and sinks", 1],
  ["commit", "commit", 3],
];
const JOB = {
  running: ["Running", "good"],
  idle: ["Idle", "good"],
  holding: ["Holding", "warn"],
  stopped: ["Stopped", ""],
  failed: ["Failed", "bad"],
  down: ["Down", "bad"],
  unknown: ["Not ours", ""],
};
const main = document.getElementById("main");

/** What was heard of the server, and how long ago. */
class Heard extends EventTarget {
  constructor() {
    super();
    this.status = null;
    this.servers = [];
    this.samples = [];
    this.heardMs = 0;
    this.problem = null;
  }

  async look() {
    try {
      const [status, { servers = [] }] = await Promise.all([ask("/v1/status"), ask("/v1/servers").catch(() => ({}))]);
      Object.assign(this, { status, servers, heardMs: Date.now(), problem: null });
      const ages = Object.fromEntries(status.views.map(({ view, replica }) => [view, replica.stamp?.age_ms ?? 0]));
      this.samples.push({ ms: Date.parse(status.time), end: status.journal?.end ?? 0, positions: positions(status), ages });
      this.samples = this.samples.slice(-SAMPLES);
    } catch (error) {
      this.problem = error;
    }
    this.dispatchEvent(new Event("fresh"));
  }

  fresh() {
    if (!this.heardMs) return { kind: "none", text: "Connecting", detail: "Nothing has been heard yet" };
    const oldMs = Date.now() - this.heardMs;
    if (oldMs < LATE_MS) return { kind: "live", text: "Live", detail: `Heard at ${clock(this.heardMs)}` };
    return { kind: "lost", text: `No connection · ${age(oldMs)} old`, detail: `As of ${moment(this.heardMs)}` };
  }

  /** So many a second, over the last seconds; null before there are two looks. */
  rate(value) {
    return between(this.samples.at(-1), this.samples.findLast((one) => one.ms <= this.samples.at(-1).ms - OVER_S * 1_000) ?? this.samples[0], value);
  }

  /** The rates between all looks in a row. */
  rates(value) {
    return this.samples.slice(1).map((one, index) => between(one, this.samples[index], value) ?? 0);
  }
}

function between(now, before, value) {
  if (!before || now === before) return null;
  return Math.max(0, (1_000 * (value(now) - value(before))) / (now.ms - before.ms));
}

/** How many events each view has read. */
function positions(status) {
  return Object.fromEntries(status.views.map(({ view, replica }) => [view, eventsIn(replica.stamp?.position)]));
}

function eventsIn(position) {
  return (position ?? "").split(",").reduce((sum, part) => sum + Number(part.split(":").at(-1) || 0), 0);
}

class Room {
  constructor() {
    this.heard = new Heard();
    this.chosen = decodeURIComponent(location.hash.slice(1));
    this.trouble = el("div");
    this.path = el("ol", { class: "path", "aria-label": "The path of an event" });
    this.sinks = el("dl", { class: "sinks" });
    this.leaders = el("dl", { class: "leaders" });
    this.findings = el("div");
    this.tabs = el("div", { class: "tabs", role: "group", "aria-label": "View" });
    this.batches = new Chart();
    this.rows = new Chart();
    this.facts = el("dl", { class: "tiles" });
    this.partitions = el("div");
    this.operators = el("div", { class: "table-wrap" });
    this.servers = el("div", { class: "table-wrap" });
    this.last = el("p", { class: "muted small num" });
    this.savepoints = new Savepoints();
    this.element = this.make();
  }

  make() {
    const sign = freshSign(this.heard, (fresh) => this.element?.classList.toggle("stale", fresh.kind === "lost"));
    const legend = el("div", { class: "legend" }, PARTS.map(([, name, slot]) => el("span", { class: `s${slot}` }, el("span", { class: "swatch" }), name)));
    this.view = el(
      "div",
      { class: "stack" },
      el(
        "div",
        { class: "grid two" },
        card("Time of each batch", this.batches.element, legend, this.last),
        card("Events of each batch", this.rows.element),
      ),
      el("div", { class: "grid two" }, card("View", this.facts), card("Partitions of the state", this.partitions)),
      wide("Operators with state", this.operators),
      this.savepoints.element,
    );
    return el(
      "div",
      { class: "stack" },
      el("div", { class: "page-head" }, el("h1", {}, "Control room"), sign),
      this.trouble,
      el("section", { class: "card", "aria-label": "Path" }, el("div", { class: "path-card", tabindex: "0", role: "region", "aria-label": "Stations" }, this.path), this.sinks, this.leaders),
      this.findings,
      this.tabs,
      this.view,
      wide("Servers", this.servers),
      session.application === "billing" ? this.makeAudit() : null,
    );
  }

  makeAudit() {
    this.auditButton = el("button", { class: "button slim", onclick: () => this.lookAtAudit("POST") }, "Start an audit");
    this.auditText = el("div", { class: "card-body", role: "status" }, "…");
    return el("section", { class: "card", "aria-label": "Audit" }, el("div", { class: "card-head" }, el("h2", {}, "Audit"), this.auditButton), this.auditText);
  }

  /** Ask how the audit is, or start one. It recomputes every bill from the journal, and changes nothing. */
  async lookAtAudit(method = "GET") {
    try {
      const { running, last } = await (method === "GET" ? ask("/v1/audit") : send("/v1/audit", "POST"));
      this.auditButton.disabled = running;
      say(this.auditButton, running ? "An audit runs …" : "Start an audit");
      const chips = { true: ["Everything adds up", "good"], false: ["It does not add up", "bad"], null: ["It did not come to an end", "warn"] };
      const key = JSON.stringify(last);
      if (this.auditText.dataset.key === key) return;
      this.auditText.dataset.key = key;
      put(this.auditText, last ? [el("p", {}, el("span", { class: `chip ${chips[last.ok][1]}` }, chips[last.ok][0]), ` ${moment(last.ended)}`), el("pre", { class: "audit-text", tabindex: "0" }, last.text)] : el("p", { class: "muted" }, "None has been started here. An audit recomputes every bill from the journal and compares; it changes nothing."));
    } catch (error) {
      delete this.auditText.dataset.key;
      put(this.auditText, failure(error, "The audit cannot be shown"));
    }
  }

  async start() {
    this.heard.addEventListener("fresh", () => this.show());
    const loop = async () => {
      if (!document.hidden) await this.heard.look();
      setTimeout(loop, POLL_MS);
    };
    setInterval(() => this.heard.dispatchEvent(new Event("fresh")), POLL_MS);
    if (this.auditButton) {
      this.lookAtAudit();
      setInterval(() => document.hidden || this.lookAtAudit(), AUDIT_MS);
    }
    await loop();
  }

  show() {
    const { status, problem } = this.heard;
    put(this.trouble, problem ? failure(problem, status ? "The server is not heard any more" : "The status cannot be shown") : null);
    if (!status) return;
    const view = status.views.find((each) => each.view === this.chosen) ?? status.views[0];
    this.showTabs(status.views, view);
    this.showPath(status, view);
    this.showLeaders(status.leadership);
    this.showFindings(status);
    this.showServers();
    this.view.hidden = !view;
    if (!view) return;
    this.showBatches(view);
    this.showFacts(view);
    this.showPartitions(view);
    this.showOperators(view);
    this.savepoints.element.hidden = view.job.state === "unknown"; // another’s job, or one that never ran
    if (view.job.state !== "unknown") this.savepoints.show(view.view);
  }

  showTabs(views, chosen) {
    this.tabs.hidden = views.length < 2;
    const key = JSON.stringify([views.map(({ view, job }) => [view, job.state]), chosen?.view]);
    if (this.tabs.dataset.key === key) return;
    this.tabs.dataset.key = key;
    const choose = (view) => {
      this.chosen = view;
      history.replaceState(null, "", `#${encodeURIComponent(view)}`);
      this.show();
    };
    put(this.tabs, views.map(({ view }) => el("button", { class: "button slim", "aria-pressed": String(view === chosen.view), onclick: () => choose(view) }, view)));
  }

  showPath(status, view) {
    const { heard } = this;
    const appended = heard.rate((one) => one.end);
    const read = view ? heard.rate((one) => one.positions[view.view] ?? 0) : null;
    const stamp = view?.replica.stamp;
    const lag = status.journal && stamp ? Math.max(0, status.journal.end - eventsIn(stamp.position)) : null;
    const [jobText, jobKind] = JOB[view?.job.state] ?? ["No view yet", ""];
    const newest = view?.batches.at(-1);
    const mine = heard.servers.filter((server) => !view || server.views[view.view]);
    const nodes = [
      { name: "Journal", main: status.journal ? number(status.journal.end) : "elsewhere", unit: status.journal ? "events" : "", rows: status.journal ? [["appended", perSecond(appended)], ["on disk", bytes(status.journal.bytes)]] : [["", "another job’s source"]], values: heard.rates((one) => one.end), flow: appended },
      { name: "Pipeline", chip: [jobText, jobKind], main: perSecond(read), unit: "", rows: [["waiting", lag === null ? "not known" : `${number(lag)} ${lag === 1 ? "event" : "events"}`], ["heartbeat", view?.job.heard_ms == null ? "none" : `${took(view.job.heard_ms)} ago`]], values: view ? heard.rates((one) => one.positions[view.view] ?? 0) : [], flow: read },
      { name: "Checkpoint", main: stamp ? number(stamp.batch + (view.replica.lag_batches ?? 0)) : "–", unit: "batch", rows: [["last batch took", newest ? took(newest.duration_ms) : "–"], ["committed", stamp ? `${age(Date.parse(status.time) - Date.parse(stamp.committed))} ago` : "–"]], values: view?.batches.map((batch) => batch.duration_ms) ?? [], flow: read },
      { name: "Replica", main: stamp ? number(stamp.batch) : "–", unit: "batch", rows: [["behind", view?.replica.lag_batches == null ? "not known" : `${view.replica.lag_batches} ${view.replica.lag_batches === 1 ? "batch" : "batches"}`], ["rows", number(view?.replica.rows ?? 0)]], values: view?.batches.map((batch) => batch.operators[0]?.rows ?? 0) ?? [], flow: read },
      { name: "Answers", main: stamp ? took(stamp.age_ms) : "–", unit: "old", rows: [["servers", number(mine.length)], ["counted from", stamp?.age_basis ?? "–"]], values: view ? heard.samples.map((one) => one.ages[view.view] ?? 0) : [], flow: read },
    ];
    if (!this.nodes) {
      this.nodes = nodes.map((node) => new Node(node.name));
      put(this.path, this.nodes.map((node) => node.element));
    }
    nodes.forEach((node, index) => this.nodes[index].show(node));
    this.showSinks(view);
  }

  showSinks(view) {
    const tables = view?.tables ?? [];
    this.sinks.hidden = !tables.length;
    const shown = tables.map(({ table, rows, bytes: size, trouble }) => el("div", {}, el("dt", {}, table.replaceAll("_", " ")), el("dd", { class: "num" }, trouble ? el("span", { class: "chip bad" }, "away") : `${number(rows)} rows, ${bytes(size)}`)));
    put(this.sinks, el("div", { class: "sinks-name" }, el("dt", {}, "Sinks"), el("dd", { class: "hidden" }, "exactly once")), shown);
  }

  /** Who leads the application, and who would take over; nothing where it runs without a lease. */
  showLeaders(told) {
    this.leaders.hidden = !told;
    if (!told) return;
    const { epoch, leader, standbys, lease_ms: leaseMs } = told;
    const shown = (text, kind, { identity, host, pid, heard_ms: heardMs }) => {
      const late = heardMs == null || heardMs > leaseMs;
      const chip = el("span", { class: `chip ${late ? "warn" : kind}` }, late ? `not heard${heardMs == null ? "" : ` for ${age(heardMs)}`}` : text);
      return el("div", {}, el("dt", {}, identity), el("dd", { title: `Process ${pid} on ${host}` }, chip));
    };
    put(
      this.leaders,
      el("div", { class: "sinks-name" }, el("dt", {}, "Leadership"), el("dd", { class: "num muted" }, `epoch ${number(epoch)}`)),
      leader ? shown("leads", "good", leader) : el("div", {}, el("dt", {}, "nobody"), el("dd", {}, el("span", { class: "chip bad" }, "leads"))),
      standbys.map((standby) => shown("stands by", "", standby)),
    );
  }

  showFindings(status) {
    const found = [...leaderFindings(status.leadership), ...status.views.flatMap((view) => findings(view, status))];
    const key = JSON.stringify(found);
    if (this.findings.dataset.key === key) return;
    this.findings.dataset.key = key;
    put(
      this.findings,
      found.length ? el("ul", { class: "findings" }, found.map(([kind, title, text]) => el("li", { class: `notice ${kind}` }, icon("alert"), el("div", {}, el("p", {}, el("strong", {}, title)), el("p", {}, text))))) : null,
    );
  }

  showBatches(view) {
    const batches = view.batches;
    const none = "Spark’s reports of batches appear here; of a job that is not ours there are none.";
    for (const chart of [this.batches, this.rows]) {
      if (batches.length) delete chart.element.parentElement.dataset.none;
      else chart.element.parentElement.dataset.none = none;
    }
    if (!batches.length) return;
    const first = batches[0].batch;
    const bases = batches.map(() => 0);
    const series = PARTS.map(([part, , slot]) => ({
      slot,
      bars: true,
      stacked: true,
      points: batches.map((batch, index) => {
        const point = [index, batch.parts_ms[part], bases[index]];
        bases[index] += batch.parts_ms[part];
        return point;
      }),
    }));
    const ticks = batches.map((batch, index) => ({ at: index, text: number(batch.batch) })).filter(({ at }) => at % 10 === 0);
    const x = { min: -0.5, max: Math.max(20, batches.length) - 0.5, ticks };
    const newest = batches.at(-1);
    this.batches.draw({
      label: `Time of the last ${batches.length} batches, from batch ${first} on. The newest took ${took(newest.duration_ms)}.`,
      height: 190,
      x,
      y: { format: (value) => took(value) },
      series,
      stops: batches.map((batch, index) => ({
        x: index,
        y: bases[index],
        title: `Batch ${number(batch.batch)}: ${took(batch.duration_ms)}`,
        rows: [...PARTS.map(([part, name]) => [name, took(batch.parts_ms[part])]), ["at", clock(batch.time)]],
      })),
    });
    this.rows.draw({
      label: `Events of the last ${batches.length} batches. The newest had ${number(newest.rows)}.`,
      height: 252,
      x,
      y: { format: (value) => rough(value), whole: true },
      series: [{ slot: 1, bars: true, points: batches.map((batch, index) => [index, batch.rows]) }],
      stops: batches.map((batch, index) => ({
        x: index,
        y: batch.rows,
        title: `Batch ${number(batch.batch)}`,
        rows: [["events", number(batch.rows)], ["a second", batch.rows_per_s == null ? "–" : rough(batch.rows_per_s)], ["at", clock(batch.time)]],
      })),
    });
    const slowest = batches.reduce((most, batch) => (batch.duration_ms > most.duration_ms ? batch : most));
    const mean = batches.reduce((sum, batch) => sum + batch.duration_ms, 0) / batches.length;
    say(this.last, `${batches.length} ${batches.length === 1 ? "batch" : "batches"}: ${took(mean)} in the mean, batch ${number(slowest.batch)} took longest with ${took(slowest.duration_ms)}`);
  }

  showFacts(view) {
    const { stamp, bytes: size, rows, trouble } = view.replica;
    const closed = stamp && Date.parse(stamp.watermark) > 0;
    const facts = [
      ["Job", (JOB[view.job.state] ?? [view.job.state])[0] + (view.job.why ? `: ${view.job.why}` : "")],
      ["Watermark", closed ? moment(stamp.watermark) : "none yet"],
      ["Behind the clock", closed ? age(Date.now() - Date.parse(stamp.watermark)) : "–"],
      ["Position", stamp?.position ?? "–"],
      ["Source’s end", view.job.source_end ?? "not known"],
      ["Rows in the replica", number(rows ?? 0)],
      ["Its size", bytes(size)],
      ["Replica", trouble ? `does not move on: ${trouble}` : (stamp?.replica ?? "not loaded yet")],
    ];
    put(this.facts, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, value))));
  }

  showPartitions(view) {
    const key = JSON.stringify(view.partitions);
    if (this.partitions.dataset.key === key) return;
    this.partitions.dataset.key = key;
    if (!view.partitions.length) return put(this.partitions, empty("Not on this machine’s disk", "Sizes are told of local checkpoints."));
    const groups = Map.groupBy(view.partitions, ({ operator }) => operator);
    return put(
      this.partitions,
      [...groups].map(([operator, partitions]) => {
        const most = Math.max(1, ...partitions.map(({ bytes: size }) => size));
        const sum = partitions.reduce((total, { bytes: size }) => total + size, 0);
        const skew = (most * partitions.length) / Math.max(1, sum);
        const bars = partitions.map(({ partition, bytes: size }) => {
          const bar = el("span", { class: "partition", title: `partition ${partition}: ${bytes(size)}` });
          bar.style.height = `${Math.max(4, (100 * size) / most)}%`;
          return bar;
        });
        const text = `${partitions.length} partitions, ${bytes(sum)}; the largest has ${number(skew, { maximumFractionDigits: 2 })} times the mean`;
        return el("figure", { class: "partitions" }, el("div", { class: "partition-bars", role: "img", "aria-label": text }, bars), el("figcaption", { class: "small muted" }, el("strong", {}, `Operator ${operator}`), ` ${text}`));
      }),
    );
  }

  showOperators(view) {
    const operators = view.batches.at(-1)?.operators ?? [];
    const names = ["Operator", "Rows", "Changed", "Left", "Came too late", "Memory"];
    const rows = operators.map((one) =>
      el("tr", {}, el("th", { scope: "row" }, one.name), [one.rows, one.updated, one.removed, one.late].map((value) => el("td", { class: "right" }, number(value))), el("td", { class: "right" }, bytes(one.bytes))),
    );
    table(this.operators, names, rows, "No report yet", "Of a job that is not ours there is none.");
  }

  showServers() {
    const rows = this.heard.servers.map((server) => {
      const held = Object.entries(server.views ?? {});
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, server.name),
        el("td", { class: "mono" }, server.url),
        el("td", {}, held.map(([view, { share }]) => el("span", { class: "chip" }, share ? `${view} ${share}` : view))),
        el("td", { class: "right" }, held.map(([, { batch }]) => number(batch)).join(", ")),
        el("td", { class: "right" }, held.map(([, { age_ms: old }]) => took(old)).join(", ")),
      );
    });
    table(this.servers, ["Server", "Address", "Views and shares", "Batch", "Age"], rows, "No server has announced itself", "They do so every second.");
  }
}

/** One station of the path. What it shows changes every second; its elements stay. */
class Node {
  constructor(name) {
    this.chip = el("span", { class: "chip", hidden: true });
    this.main = el("span", { class: "node-main num" });
    this.unit = el("span", { class: "node-unit" });
    this.rows = el("dl", { class: "node-rows" });
    this.spark = el("div", { class: "node-spark" });
    this.element = el("li", { class: "node" }, el("div", { class: "node-head" }, el("h2", {}, name), this.chip), el("p", { class: "node-value" }, this.main, this.unit), this.rows, this.spark);
  }

  show({ chip, main: text, unit, rows, values = [], flow }) {
    say(this.main, text);
    say(this.unit, unit);
    this.chip.hidden = !chip;
    if (chip) {
      say(this.chip, chip[0]);
      this.chip.className = `chip ${chip[1]}`;
    }
    const key = JSON.stringify(rows);
    if (this.rows.dataset.key !== key) {
      this.rows.dataset.key = key;
      put(this.rows, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, value))));
    }
    this.element.classList.toggle("flows", Boolean(flow));
    put(this.spark, values.length > 1 ? spark(values) : svg("svg", { class: "spark", viewBox: "0 0 120 32" }));
  }
}

/** What an operator should look at: [kind, title, text]. */
function findings({ view, job, replica, batches, partitions }, status) {
  const found = [];
  const why = job.why ? ` ${job.why}.` : "";
  if (job.state === "down") found.push(["bad", `The job of ${view} is down`, `Its last heartbeat came ${age(job.heard_ms)} ago. Answers go on, and get older. Start it again with stateside run.`]);
  if (job.state === "failed") found.push(["bad", `The job of ${view} has failed`, `${why} Mend the cause, and start it again with stateside run.`]);
  if (job.state === "holding") found.push(["warn", `The job of ${view} waits`, `${why} It goes on by itself as soon as it can.`]);
  if (replica.trouble) found.push(["bad", `The replica of ${view} does not move on`, replica.trouble]);
  if (replica.lag_batches > 3) found.push(["warn", `The replica of ${view} is ${replica.lag_batches} batches behind`, "It applies them as fast as it can; if this stays so, the server’s machine is too busy."]);
  if (!replica.stamp) found.push(["warn", `${view} cannot be answered yet`, "Its replica is being loaded, or it has no batch."]);
  const sizes = Map.groupBy(partitions, ({ operator }) => operator);
  for (const [operator, some] of sizes) {
    const total = some.reduce((sum, { bytes: size }) => sum + size, 0);
    const skew = (Math.max(...some.map(({ bytes: size }) => size)) * some.length) / Math.max(1, total);
    if (skew > SKEW_MOST && total > 1e6) found.push(["warn", `The state of ${view} is skewed`, `The largest partition of operator ${operator} has ${number(skew, { maximumFractionDigits: 1 })} times the mean: its task takes longer than all others.`]);
  }
  const late = batches.slice(-10).reduce((sum, batch) => sum + batch.operators.reduce((all, one) => all + one.late, 0), 0);
  if (late && status.journal) found.push(["", `${number(late)} rows of the last batches came too late for ${view}`, "Billing makes notes of such events; other views drop them, as Spark does."]);
  return found;
}

/** The same of who leads and who stands by. */
function leaderFindings(told) {
  if (!told) return [];
  const { leader, standbys, lease_ms: leaseMs } = told;
  const ready = standbys.some((standby) => standby.heard_ms <= leaseMs);
  const next = ready ? "A standby takes over in a moment." : "Nobody stands by: start one with stateside run --standby.";
  if (!leader) return [["bad", "Nobody leads", `The last leader has stopped. ${next}`]];
  if (leader.heard_ms == null || leader.heard_ms > leaseMs) return [["bad", `The leader ${leader.identity} is not heard`, `It was killed, paused or cut off. ${next}`]];
  return ready ? [] : [["", "Nobody stands by", `If ${leader.identity} ends, nobody takes over. Start another one with stateside run --standby.`]];
}

function perSecond(rate) {
  return rate === null ? "…" : `${rate < 10 ? number(rate, { maximumFractionDigits: 1 }) : rough(rate)}/s`;
}

function card(title, ...content) {
  return el("section", { class: "card", "aria-label": title }, el("div", { class: "card-head" }, el("h2", {}, title)), el("div", { class: "card-body" }, content));
}

function wide(title, content) {
  return el("section", { class: "card", "aria-label": title }, el("div", { class: "card-head" }, el("h2", {}, title)), content);
}

function table(container, names, rows, title, text) {
  const right = (index) => (rows[0]?.children[index]?.classList.contains("right") ? "right" : null);
  const head = el("tr", {}, names.map((name, index) => el("th", { scope: "col", class: right(index) }, name)));
  put(container, rows.length ? el("table", {}, el("thead", {}, head), el("tbody", {}, rows)) : empty(title, text));
}

const session = await begin();
const room = new Room();
put(main, room.element);
await room.start();
