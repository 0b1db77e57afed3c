// Staying up to date: a stream of changes, or questions every few seconds where streams do not get through; and the
// sign that tells how fresh it all is. A number that may be old never looks new: the sign counts by itself, and what it
// has not heard for a while it takes for old.

import { el, say } from "./dom.js";
import { parsed } from "./exact.js";
import { age, clock, moment } from "./format.js";

const LIVE_MS = 5_000; // what is no older counts as live
const SILENCE_MS = 4_000; // a stream tells something every second; after this it counts as broken
const POLL_MS = 2_000;
export const ANSWER_MS_MAX = 10_000; // what has not been answered by then is asked again
const AGAIN_MS = 3_000;
const STANDS_STILL = {
  holding: "Job is waiting",
  stopped: "Job is stopped",
  failed: "Job has failed",
  down: "Job is down",
  removed: "View was removed",
};

/** Follows a stream of changes. `changed(told, kind)` is called with every snapshot and all changes; of a snapshot in pages
 * the first one is told with `first`, the last one with `last`. `poll(signal)` gives a stamp, and the job's state.
 * `parse` reads the stream's JSON.
 *
 * A page that nobody sees has no stream open: browsers keep few connections to one server, and all tabs share them.
 */
export class Live extends EventTarget {
  constructor({ address, changed, poll, parse = parsed }) {
    super();
    Object.assign(this, { address, changed, poll, parse, stamp: null, job: null });
    this.heardMs = 0; // when anything was heard last,
    this.streamMs = 0; // when by the stream,
    this.openedMs = 0; // and when that was opened
    this.asks = new Asking();
    this.stopped = new AbortController();
  }

  start() {
    this.open();
    this.timer = setInterval(() => this.tick(), 1_000);
    const { signal } = this.stopped;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.source.close() : this.open()), { signal });
    return this;
  }

  /** Nothing is told from now on. */
  stop() {
    clearInterval(this.timer);
    this.stopped.abort();
    this.source.close();
  }

  open() {
    this.source?.close();
    this.openedMs = this.streamMs = Date.now();
    const source = (this.source = new EventSource(this.address));
    let midway = false; // whether more pages of a snapshot are to come
    for (const kind of ["open", "reset"]) source.addEventListener(kind, () => (midway = false));
    source.addEventListener("snapshot", (event) => {
      const told = this.told(event);
      const first = !midway;
      midway = !told.last;
      this.changed({ ...told, first }, "snapshot");
    });
    source.addEventListener("changes", (event) => this.changed(this.told(event), "changes"));
    source.addEventListener("pulse", (event) => this.told(event));
    for (const kind of ["cut", "end"]) source.addEventListener(kind, () => source.close());
    this.show();
  }

  told(event) {
    const told = this.parse(event.data);
    this.streamMs = Date.now();
    this.hear(told.stamp, told.job);
    return told;
  }

  /** Note what a stamp says, as of now. */
  hear(stamp, job) {
    this.heardMs = Date.now();
    this.stamp = stamp;
    if (job) this.job = job;
    this.show();
  }

  tick() {
    const nowMs = Date.now();
    if (!document.hidden && nowMs - this.streamMs > SILENCE_MS) this.doWithout(nowMs);
    this.show();
  }

  /** Ask instead of listening, and try to listen again beside it. */
  async doWithout(nowMs) {
    if (this.source.readyState === EventSource.CLOSED && nowMs - this.openedMs > AGAIN_MS) {
      this.open();
      this.streamMs = 0; // it has still to prove itself
    }
    const found = await this.asks.ask((signal) => this.poll(AbortSignal.any([signal, this.stopped.signal])));
    if (found && !this.stopped.signal.aborted) this.hear(found.stamp, found.job);
  }

  show() {
    this.dispatchEvent(new Event("fresh"));
  }

  fresh() {
    return freshOf(this);
  }
}

/** Follows a view by asking every two seconds, where no rows need be told. `look(signal)` gives a stamp, and the job's state. */
export class Looked extends EventTarget {
  constructor(look) {
    super();
    Object.assign(this, { look, stamp: null, job: null, heardMs: 0, asks: new Asking() });
  }

  start() {
    this.tick();
    this.timer = setInterval(() => this.tick(), 1_000);
    return this;
  }

  stop() {
    clearInterval(this.timer);
  }

  async tick() {
    this.dispatchEvent(new Event("fresh"));
    if (document.hidden) return;
    const found = await this.asks.ask((signal) => this.look(signal));
    if (found) Object.assign(this, { stamp: found.stamp, job: found.job, heardMs: Date.now() });
    this.dispatchEvent(new Event("fresh"));
  }

  fresh() {
    return freshOf(this);
  }
}

/** Asks every two seconds, and never twice at a time. */
class Asking {
  constructor() {
    Object.assign(this, { askedMs: 0, busy: false });
  }

  /** What was answered; undefined if it is not time, or nothing is answered, by which all that is shown gets older. */
  async ask(question) {
    if (this.busy || Date.now() - this.askedMs < POLL_MS) return undefined;
    Object.assign(this, { askedMs: Date.now(), busy: true });
    try {
      return await question(AbortSignal.timeout(ANSWER_MS_MAX));
    } catch {
      return undefined;
    } finally {
      this.busy = false;
    }
  }
}

/** How fresh what is shown is, by the stamp and the job's state that were heard last: { kind, text, detail, asOf }. */
export function freshOf(heard) {
  const { stamp, job } = heard;
  if (!stamp) return { kind: "none", text: "Connecting", detail: "Nothing has been heard yet" };
  const nowMs = Date.now();
  const oldMs = stamp.age_ms + Math.max(0, nowMs - heard.heardMs);
  const asOf = moment(nowMs - oldMs);
  if (nowMs - heard.heardMs > LIVE_MS) {
    return { kind: "lost", text: `No connection · ${age(oldMs)} old`, detail: `As of ${asOf}`, asOf };
  }
  if (job && STANDS_STILL[job.state]) {
    const why = job.why ? `: ${job.why}` : "";
    const since = job.heard_ms == null ? "" : ` since ${moment(heard.heardMs - job.heard_ms)}`;
    return { kind: "paused", text: `${STANDS_STILL[job.state]} · ${age(oldMs)} old`, detail: `${STANDS_STILL[job.state]}${since}${why}. As of ${asOf}`, asOf };
  }
  if (stamp.age_basis === "commit") {
    return { kind: "commit", text: `Last batch ${age(oldMs)} ago`, detail: `As of ${asOf}. Whether more waits is not known`, asOf };
  }
  if (oldMs <= LIVE_MS) return { kind: "live", text: "Live", detail: `Nothing newer waited at ${clock(nowMs - oldMs)}` };
  return { kind: "old", text: `${age(oldMs)} old`, detail: `As of ${asOf}`, asOf };
}

/** The sign. Screen readers are told when it changes its kind, not every second. */
export function freshSign(live, seen = () => {}) {
  const text = el("span", { "aria-hidden": "true" }, "Connecting");
  const told = el("span", { class: "hidden", role: "status" });
  const sign = el("div", { class: "fresh", "data-kind": "none" }, el("span", { class: "fresh-dot" }), text, told);
  const show = () => {
    const fresh = live.fresh();
    if (sign.dataset.kind !== fresh.kind) {
      sign.dataset.kind = fresh.kind;
      told.textContent = `${fresh.text}. ${fresh.detail}`;
    }
    say(text, fresh.text);
    sign.title = fresh.detail;
    seen(fresh);
  };
  live.addEventListener("fresh", show);
  show();
  return sign;
}
