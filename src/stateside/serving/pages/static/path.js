// The path of an event, drawn as it runs: its stations, the sinks, and who leads.

import { spark } from "./chart.js";
import { el, put, say, svg } from "./dom.js";
import { age, bytes, number, rough } from "./format.js";
import { eventsIn } from "./heard.js";
import { facts, refresh } from "./parts.js";

/** What a job does: as it is called, and the kind of its chip. */
export const JOB = {
  running: ["Running", "good"],
  idle: ["Idle", "good"],
  holding: ["Holding", "warn"],
  stopped: ["Stopped", ""],
  failed: ["Failed", "bad"],
  down: ["Down", "bad"],
  removed: ["Removed", ""],
  unknown: ["Not ours", ""],
};

const FRESH = { live: ["Live", "good"], old: ["Stale", "warn"], paused: ["Stale", "bad"], lost: ["Stale", "bad"] };

export class Path {
  constructor() {
    this.stations = el("ol", { class: "path", "aria-label": "The path of an event" });
    this.sinks = el("dl", { class: "sinks" });
    this.leaders = el("dl", { class: "leaders" });
    const region = el("div", { class: "path-card", tabindex: "0", role: "region", "aria-label": "Stations" }, this.stations);
    this.element = el("section", { class: "card", "aria-label": "Path" }, region, this.sinks, this.leaders);
  }

  show(heard, view) {
    const stations = stationsOf(heard, view);
    if (!this.drawn) {
      this.drawn = stations.map(({ name }) => new Station(name));
      put(this.stations, this.drawn.map((station) => station.element));
    }
    stations.forEach((station, index) => this.drawn[index].show(station));
    this.showSinks(view);
    this.showLeaders(heard.status.leadership);
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
}

/** One station of the path. What it shows changes every second; its elements stay. */
class Station {
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
    refresh(this.rows, rows, () => facts(rows));
    this.element.classList.toggle("flows", Boolean(flow));
    put(this.spark, values.length > 1 ? spark(values) : svg("svg", { class: "spark", viewBox: "0 0 120 32" }));
  }
}

/** What each station shows: its number, what stands below it, how that went lately, and whether anything flows. */
function stationsOf(heard, view) {
  const { status } = heard;
  const ofView = (one) => one.positions[view.view] ?? 0;
  const read = view ? heard.rate(ofView) : null;
  return [
    journalStation(heard),
    { ...pipelineStation(status, view, read), values: view ? heard.rates(ofView) : [], flow: read },
    { ...checkpointStation(status, view), flow: read },
    { ...replicaStation(heard, view), flow: read },
    { ...answersStation(heard, view), flow: read },
  ];
}

function journalStation(heard) {
  const { journal } = heard.status;
  const ends = { values: heard.rates((one) => one.end), flow: heard.rate((one) => one.end) };
  if (!journal) return { name: "Journal", main: "elsewhere", unit: "", rows: [["", "another job’s source"]], ...ends };
  if (journal.end == null) return { name: "Journal", chip: ["Away", "bad"], main: "–", unit: "", rows: [["", journal.trouble]], ...ends };
  const onKafka = journal.bytes == null; // where an offset is told, which Kafka's own marks count in, and no size
  const where = onKafka ? ["kept by", "Kafka"] : ["on disk", bytes(journal.bytes)];
  return { name: "Journal", main: number(journal.end), unit: onKafka ? "offset" : "events", rows: [["appended", perSecond(ends.flow)], where], ...ends };
}

function pipelineStation({ journal }, view, read) {
  const stamp = view?.replica.stamp;
  const waiting = journal?.end != null && stamp ? counted(Math.max(0, journal.end - eventsIn(stamp.position)), "event", "events") : "not known";
  const heartbeat = view?.job.heard_ms == null ? "none" : `${age(view.job.heard_ms)} ago`;
  return { name: "Pipeline", chip: JOB[view?.job.state] ?? ["No view yet", ""], main: perSecond(read), unit: "", rows: [["waiting", waiting], ["heartbeat", heartbeat]] };
}

function checkpointStation(status, view) {
  const stamp = view?.replica.stamp;
  const newest = view?.batches.at(-1);
  const committed = stamp ? `${age(Date.parse(status.time) - Date.parse(stamp.committed))} ago` : "–";
  return {
    name: "Checkpoint",
    main: stamp ? number(stamp.batch + (view.replica.lag_batches ?? 0)) : "–",
    unit: "batch",
    rows: [["last batch took", newest ? age(newest.duration_ms) : "–"], ["committed", committed]],
    values: view?.batches.map((batch) => batch.duration_ms),
  };
}

function replicaStation(heard, view) {
  const { stamp, lag_batches: lag, rows } = view?.replica ?? {};
  const behind = lag == null ? "not known" : counted(lag, "batch", "batches");
  const values = view ? heard.samples.map((one) => one.rows[view.view] ?? 0) : [];
  return { name: "Replica", main: stamp ? number(stamp.batch) : "–", unit: "batch", rows: [["behind", behind], ["rows", rows == null ? "not known" : number(rows)]], values };
}

function answersStation(heard, view) {
  const stamp = view?.replica.stamp;
  const servers = heard.servers?.filter((server) => !view || server.views[view.view]);
  const values = view ? heard.samples.map((one) => one.ages[view.view] ?? 0) : [];
  const kind = view ? heard.freshOf(view).kind : "none";
  return { name: "Answers", chip: FRESH[kind], main: stamp ? age(stamp.age_ms) : "–", unit: "old", rows: [["servers", servers ? number(servers.length) : "not known"], ["counted from", stamp?.age_basis ?? "–"]], values };
}

function counted(count, one, several) {
  return `${number(count)} ${count === 1 ? one : several}`;
}

function perSecond(rate) {
  return rate === null ? "…" : `${rate < 10 ? number(rate, { maximumFractionDigits: 1 }) : rough(rate)}/s`;
}
