// The live demo: the auditor's scoreboard, buttons that break parts, and the story of what happened.

import { begin } from "./app.js";
import { el, put, say } from "./dom.js";
import { Faults } from "./faults.js";
import { number } from "./format.js";
import { Heard } from "./heard.js";
import { freshSign } from "./live.js";
import { body, card, refresh } from "./parts.js";

const POLL_MS = 1_000;
const main = document.getElementById("main");

class DemoPage {
  constructor() {
    this.heard = new Heard();
    this.tiles = el("dl", { class: "kpis" });
    this.verdict = el("p", { class: "verdict", role: "status" });
    this.story = el("ol", { class: "story", "aria-live": "polite" });
    this.faults = new Faults((state) => this.show(state));
    const links = [["My bill", "/bill/c0"], ["Business", "/business"], ["Control room", "/control"]];
    this.element = el(
      "div",
      { class: "stack" },
      el("div", { class: "page-head" }, el("h1", {}, "Live demo"), freshSign(this.heard, () => {})),
      el("section", { class: "card", "aria-label": "Scoreboard" }, this.tiles, this.verdict),
      this.faults.element,
      el(
        "div",
        { class: "grid two" },
        card("What happened", body(this.story)),
        card("Watch it", body(el("ul", { class: "watch-it" }, links.map(([title, href]) => el("li", {}, el("a", { href }, title)))))),
      ),
    );
  }

  start() {
    const loop = async () => {
      if (!document.hidden) await this.heard.look();
      setTimeout(loop, POLL_MS);
    };
    setInterval(() => this.heard.dispatchEvent(new Event("fresh")), POLL_MS);
    loop();
    this.faults.start();
  }

  show({ score, requests, failed, story }) {
    const found = [
      ["Events", number(score.events), ""],
      ["Lost", number(score.lost), score.lost ? "bad" : "good"],
      ["Doubled", number(score.doubled), score.doubled ? "bad" : "good"],
      ["Uneven bills", number(score.uneven), score.uneven ? "bad" : "good"],
      ["Requests", number(requests), ""],
      ["Failed", number(failed), failed ? "bad" : "good"],
    ];
    const tile = ([name, value, kind]) => el("div", {}, el("dt", {}, name), el("dd", { class: `num ${kind}` }, value));
    refresh(this.tiles, found, () => found.map(tile));
    say(this.verdict, score.periods ? `${score.ok ? "Everything adds up" : "It does not add up"}: ${number(score.bills)} bills of months that have ended, recomputed from the journal by the auditor.` : "The auditor judges when the first month has ended.");
    refresh(this.story, story, () => [...story].reverse().map((line) => el("li", {}, line)));
  }
}

await begin();
const page = new DemoPage();
put(main, page.element);
page.start();
