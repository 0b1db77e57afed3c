// The control room: the path of an event, drawn as it runs, and of each view what its job, its state and its replica do.

import { begin, decoded, empty } from "./app.js";
import { Audit } from "./audit.js";
import { Batches } from "./batches.js";
import { el, icon, put } from "./dom.js";
import { age, bytes, moment, number } from "./format.js";
import { Heard } from "./heard.js";
import { freshSign } from "./live.js";
import { body, card, facts, refresh, row, table, trouble } from "./parts.js";
import { JOB, Path } from "./path.js";
import { Savepoints } from "./savepoints.js";

const POLL_MS = 1_000;
const main = document.getElementById("main");

class Room {
  constructor(faults) {
    this.heard = new Heard();
    this.faults = faults; // in a live demo
    this.chosen = decoded(location.hash.slice(1));
    this.trouble = el("div");
    this.path = new Path();
    this.findings = el("div");
    this.tabs = el("div", { class: "tabs", role: "group", "aria-label": "View" });
    this.batches = new Batches();
    this.facts = el("dl", { class: "tiles" });
    this.partitions = el("div");
    this.operators = el("div", { class: "table-wrap" });
    this.servers = el("div", { class: "table-wrap" });
    this.savepoints = new Savepoints();
    this.audit = session.application === "billing" ? new Audit() : null;
    this.element = this.make();
  }

  make() {
    const sign = freshSign(this.heard, (fresh) => this.element?.classList.toggle("stale", fresh.kind === "lost"));
    this.view = el(
      "div",
      { class: "stack" },
      this.batches.element,
      el("div", { class: "grid two" }, card("View", body(this.facts)), card("Partitions of the state", body(this.partitions))),
      card("Operators with state", this.operators),
      this.savepoints.element,
    );
    return el(
      "div",
      { class: "stack" },
      el("div", { class: "page-head" }, el("h1", {}, "Control room"), sign),
      this.trouble,
      this.path.element,
      this.faults?.element,
      this.findings,
      this.tabs,
      this.view,
      card("Servers", this.servers),
      this.audit?.element,
    );
  }

  async start() {
    this.heard.addEventListener("fresh", () => this.show());
    const loop = async () => {
      if (!document.hidden) await this.heard.look();
      setTimeout(loop, POLL_MS);
    };
    setInterval(() => this.heard.dispatchEvent(new Event("fresh")), POLL_MS);
    this.audit?.start();
    this.faults?.start();
    await loop();
  }

  show() {
    const { status, problem } = this.heard;
    trouble(this.trouble, problem, status ? "The server is not heard any more" : "The status cannot be shown");
    if (!status) return;
    const view = status.views.find((each) => each.view === this.chosen) ?? status.views[0];
    this.showTabs(status.views, view);
    this.path.show(this.heard, view);
    this.showFindings();
    this.showServers();
    this.view.hidden = !view;
    if (!view) return;
    this.batches.show(view.batches);
    this.showFacts(view);
    this.showPartitions(view);
    this.showOperators(view);
    this.savepoints.element.hidden = view.job.state === "unknown"; // another’s job, or one that never ran
    if (view.job.state !== "unknown") this.savepoints.show(view.view);
  }

  showTabs(views, chosen) {
    this.tabs.hidden = views.length < 2;
    const choose = (view) => {
      this.chosen = view;
      history.replaceState(null, "", `#${encodeURIComponent(view)}`);
      this.show();
    };
    const tab = ({ view }) => el("button", { class: "button slim", "data-key": view, "aria-pressed": String(view === chosen.view), onclick: () => choose(view) }, view);
    refresh(this.tabs, [views.map(({ view }) => view), chosen?.view], () => views.map(tab));
  }

  showFindings() {
    const found = this.heard.findings;
    const kinds = { critical: "bad", warning: "warn", notice: "" };
    const item = (one) => el("li", { class: `notice ${kinds[one.severity]}`, "data-code": one.code }, icon("alert"), el("div", {}, el("p", {}, el("strong", {}, one.evidence)), el("p", {}, `${one.meaning} ${one.next_step}`)));
    refresh(this.findings, found, () => (found.length ? el("ul", { class: "findings" }, found.map(item)) : null));
  }

  showFacts(view) {
    const { stamp, bytes: size, rows, trouble } = view.replica;
    const closed = stamp && Date.parse(stamp.watermark) > 0;
    const found = [
      ["Job", (JOB[view.job.state] ?? [view.job.state])[0] + (view.job.why ? `: ${view.job.why}` : "")],
      ["Watermark", closed ? moment(stamp.watermark) : "none yet"],
      ["Behind the clock", closed ? age(Date.now() - Date.parse(stamp.watermark)) : "–"],
      ["Position", stamp?.position ?? "–"],
      ["Source’s end", view.job.source_end ?? "not known"],
      ["Rows in the replica", rows === null ? "–" : number(rows)],
      ["Its size", bytes(size)],
      ["Replica", trouble ? `does not move on: ${trouble}` : (stamp?.replica ?? "not loaded yet")],
    ];
    put(this.facts, facts(found));
  }

  showPartitions({ partitions }) {
    refresh(this.partitions, partitions, () => {
      if (!partitions.length) return empty("Not on this machine’s disk", "Sizes are told of local checkpoints.");
      return [...Map.groupBy(partitions, ({ operator }) => operator)].map(([operator, its]) => partitionBars(operator, its));
    });
  }

  showOperators(view) {
    const names = ["Operator", "Rows", "Changed", "Left", "Came too late", "Memory"];
    const { operator, rows: replicated } = view.replica;
    const kept = (one, index) => (one.rows !== null ? number(one.rows) : index === operator && replicated !== null ? `${number(replicated)} in the replica` : "not counted");
    const rows = (view.batches.at(-1)?.operators ?? []).map((one, index) =>
      row(one.name, [kept(one, index), "right"], ...[one.updated, one.removed, one.late].map((value) => [number(value), "right"]), [bytes(one.bytes), "right"]),
    );
    put(this.operators, rows.length ? table(names, rows) : empty("No report yet", "Of a job that is not ours there is none."));
  }

  showServers() {
    if (!this.heard.servers) return put(this.servers, empty("The servers cannot be listed", "This page asks again every second."));
    const rows = this.heard.servers.map(({ name, url, views = {} }) => {
      const held = Object.entries(views);
      const shares = held.map(([view, { share }]) => el("span", { class: "chip" }, share ? `${view} ${share}` : view));
      const of = (told) => [held.map(([, each]) => told(each)).join(", "), "right"];
      return row(name, [url, "mono"], el("span", {}, shares), of(({ batch }) => number(batch)), of(({ age_ms: old }) => age(old)));
    });
    const names = ["Server", "Address", "Views and shares", "Batch", "Age"];
    return put(this.servers, rows.length ? table(names, rows) : empty("No server has announced itself", "They do so every second."));
  }
}

/** The sizes of an operator's partitions, side by side. */
function partitionBars(operator, partitions) {
  const most = Math.max(1, ...partitions.map(({ bytes: size }) => size));
  const sum = partitions.reduce((total, { bytes: size }) => total + size, 0);
  const skew = (most * partitions.length) / Math.max(1, sum);
  const bars = partitions.map(({ partition, bytes: size }) => {
    const bar = el("span", { class: "partition", title: `partition ${partition}: ${bytes(size)}` });
    bar.style.height = `${Math.max(4, (100 * size) / most)}%`;
    return bar;
  });
  const text = `${partitions.length} partitions, ${bytes(sum)}; the largest has ${number(skew, { maximumFractionDigits: 2 })} times the mean`;
  const caption = el("figcaption", { class: "small muted" }, el("strong", {}, `Operator ${operator}`), ` ${text}`);
  return el("figure", { class: "partitions" }, el("div", { class: "partition-bars", role: "img", "aria-label": text }, bars), caption);
}

const session = await begin();
const demo = session.pages.some(({ address }) => address === "/demo");
const room = new Room(demo ? new (await import("./faults.js")).Faults() : null);
put(main, room.element);
await room.start();
