// What a server said of itself and of the others, look by look, and how fast things went between the looks.

import { ask } from "./app.js";
import { age, moment } from "./format.js";
import { ANSWER_MS_MAX, freshOf } from "./live.js";

const SAMPLES = 60;
const OVER_S = 5; // what a rate is the mean of
const LATE_MS = 4_000; // what was not heard for so long is old
const WORST = ["lost", "paused", "old", "none", "commit", "live"]; // of several views the sign tells of the worst

/** What was heard of the server, and how long ago. */
export class Heard extends EventTarget {
  constructor() {
    super();
    this.status = null;
    this.findings = [];
    this.servers = []; // null: they cannot be listed
    this.samples = [];
    this.heardMs = 0;
    this.problem = null;
  }

  async look() {
    try {
      const signal = AbortSignal.timeout(ANSWER_MS_MAX);
      const asked = [ask("/v1/status", { signal }), ask("/v1/findings", { signal }), ask("/v1/servers", { signal }).catch(() => ({ servers: null }))];
      const [status, { findings }, { servers }] = await Promise.all(asked);
      Object.assign(this, { status, findings, servers, heardMs: Date.now(), problem: null });
      const ages = Object.fromEntries(status.views.map(({ view, replica }) => [view, replica.stamp?.age_ms ?? 0]));
      const rows = Object.fromEntries(status.views.map(({ view, replica }) => [view, replica.rows ?? 0]));
      this.samples.push({ ms: Date.parse(status.time), end: status.journal?.end ?? 0, positions: positions(status), ages, rows });
      this.samples = this.samples.slice(-SAMPLES);
    } catch (error) {
      this.problem = error;
    }
    this.dispatchEvent(new Event("fresh"));
  }

  fresh() {
    if (!this.heardMs) return { kind: "none", text: "Connecting", detail: "Nothing has been heard yet" };
    const oldMs = Date.now() - this.heardMs;
    if (oldMs >= LATE_MS) return { kind: "lost", text: `No connection · ${age(oldMs)} old`, detail: `As of ${moment(this.heardMs)}` };
    const { views: all } = this.status;
    const declared = all.filter(({ job }) => job.state !== "removed"); // what is no longer declared gets older for ever
    const views = (declared.length ? declared : all).map((view) => [view.view, this.freshOf(view)]);
    if (!views.length) return { kind: "none", text: "No view yet", detail: "Nothing is answered here" };
    const [name, worst] = views.reduce((found, one) => (WORST.indexOf(one[1].kind) < WORST.indexOf(found[1].kind) ? one : found));
    return worst.kind === "live" || views.length === 1 ? worst : { ...worst, text: `${name}: ${worst.text}` };
  }

  /** How fresh the answers of one view are: live as long as its job runs, and they are a few seconds old. */
  freshOf({ job, replica }) {
    if (!replica.stamp) return { kind: "none", text: "No answers yet", detail: "The replica is being loaded, or there is no batch" };
    return freshOf({ stamp: replica.stamp, job, heardMs: this.heardMs });
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

/** At how many events a position stands. */
export function eventsIn(position) {
  return (position ?? "").split(",").reduce((sum, part) => sum + Number(part.split(":").at(-1) || 0), 0);
}
