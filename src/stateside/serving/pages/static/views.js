// The views of any job: their rows by key, by filter and page by page, one key watched live, SQL, and what a view is.

import { ask, begin, decoded, empty, failure } from "./app.js";
import { el, icon, put, say } from "./dom.js";
import { moment, number } from "./format.js";
import { Looked, freshSign } from "./live.js";
import { Rows } from "./rows.js";
import { SqlBox } from "./sql.js";
import { Watch } from "./watch.js";

const main = document.getElementById("main");

async function showViews() {
  const { views, note } = await ask("/v1/views");
  const about = note ? el("p", { class: "notice warn" }, icon("alert"), note) : null;
  const served = views.filter(({ state }) => state !== "refused");
  if (views.length === 1 && served.length === 1) return showView(views[0].view);
  const items = views.map(({ view, state, why }) => {
    const chip = el("span", { class: `chip ${{ running: "good", idle: "good", holding: "warn", failed: "bad", down: "bad", refused: "warn" }[state] ?? ""}` }, state === "unknown" ? "not ours" : state);
    const content = [el("strong", {}, view), chip, why ? el("span", { class: "muted small why" }, why) : null];
    return el("li", {}, state === "refused" ? el("div", { class: "view-row" }, content) : el("a", { class: "view-row", href: `/views/${encodeURIComponent(view)}` }, content));
  });
  const list = items.length ? el("ul", {}, items) : empty("There is no view here yet", "It appears as soon as the job has declared it.");
  return put(main, el("div", { class: "page-head" }, el("h1", {}, "Views")), about, el("section", { class: "card view-list" }, list));
}

async function showView(name) {
  try {
    const described = await ask(`/v1/views/${encodeURIComponent(name)}`);
    const page = new ViewPage(name, described);
    put(main, page.element);
    page.start();
  } catch (error) {
    put(main, el("div", { class: "page-head" }, el("h1", {}, name)), failure(error, "This view cannot be shown"));
  }
}

class ViewPage {
  constructor(name, described) {
    Object.assign(this, { name, described, address: `/v1/views/${encodeURIComponent(name)}` });
    this.looked = new Looked((signal) => ask(this.address, { signal }).then((found) => this.heard(found)));
    this.rows = new Rows(this.address, described, (key) => this.watchKey(key));
    this.watch = new Watch(this.address, described);
    this.tabs = { rows: ["Rows", this.rows.content], watch: ["Watch", this.watch.content], schema: ["Schema", this.makeSchema()] };
    if (session.roles.includes("sql")) this.tabs.sql = ["SQL", this.makeSql()];
    this.element = this.make();
  }

  make() {
    this.about = el("p", { class: "num" });
    this.buttons = Object.entries(this.tabs).map(([key, [title]]) =>
      el("button", { role: "tab", id: `tab-${key}`, "aria-controls": `panel-${key}`, "data-tab": key, onclick: () => this.open(key) }, title),
    );
    const list = el("div", { role: "tablist", class: "tablist", "aria-label": "What to do with this view" }, this.buttons);
    list.addEventListener("keydown", (event) => this.move(event));
    this.panels = Object.entries(this.tabs).map(([key, [, content]]) =>
      el("section", { role: "tabpanel", id: `panel-${key}`, "aria-labelledby": `tab-${key}`, class: "card", hidden: true }, content),
    );
    const sign = freshSign(this.looked, (fresh) => this.element?.classList.toggle("stale", ["lost", "paused", "old"].includes(fresh.kind)));
    const head = el("div", { class: "page-head" }, el("div", {}, el("h1", {}, this.name), this.about), sign);
    return el("div", { class: "stack" }, head, list, this.panels);
  }

  start() {
    this.heard(this.described);
    this.looked.start();
    const [tab] = location.hash.slice(1).split("/");
    this.open(tab in this.tabs ? tab : "rows");
    this.rows.look();
  }

  heard(described) {
    const { stamp, rows, application } = described;
    const count = rows === null ? "" : `${number(rows)} ${rows === 1 ? "row" : "rows"} · `;
    say(this.about, `${count}batch ${number(stamp.batch)} · position ${stamp.position}${application ? ` · ${application}` : ""}`);
    if (!this.panels[0].hidden) this.rows.heard(stamp.batch);
    return described;
  }

  open(key) {
    for (const button of this.buttons) {
      const chosen = button.dataset.tab === key;
      button.setAttribute("aria-selected", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
    for (const panel of this.panels) panel.hidden = panel.id !== `panel-${key}`;
    history.replaceState(null, "", `#${key}`);
    if (key === "sql") this.sql.ask();
    if (key === "watch") this.watch.seen();
    else this.watch.end(); // its stream is one of the few that a browser has open
  }

  watchKey(key) {
    this.watch.choose(key);
    this.open("watch");
  }

  move(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const at = this.buttons.indexOf(document.activeElement);
    const next = this.buttons[(at + by + this.buttons.length) % this.buttons.length];
    next.focus();
    next.click();
  }

  makeSql() {
    const { key, columns } = this.described;
    const [of, by] = [columns.find(({ type }) => ["long", "integer", "double"].includes(type))?.name, key[0].name];
    const name = /^[a-z_]\w*$/.test(this.name) ? this.name : `"${this.name}"`;
    const examples = of ? [["the largest", `SELECT * FROM ${name} ORDER BY "${of}" DESC LIMIT 20`], [`by ${by}`, `SELECT "${by}", sum("${of}") AS "${of}", count(*) AS rows\nFROM ${name} GROUP BY 1 ORDER BY 2 DESC LIMIT 20`]] : [];
    this.sql = new SqlBox({ statement: `FROM ${name} LIMIT 20`, examples });
    return el("div", { class: "card-body roomy" }, this.sql.element);
  }

  makeSchema() {
    const { key, columns, rollups, application, stamp } = this.described;
    const row = (kind) => ({ name, type, made_of: of }) => el("tr", {}, el("th", { scope: "row", class: "mono" }, name), el("td", { class: "mono" }, type), el("td", {}, kind), el("td", { class: "mono wrap muted" }, of ?? ""));
    const head = el("tr", {}, ["Column", "Type", "Part", "Made of"].map((text) => el("th", { scope: "col" }, text)));
    const table = el("table", {}, el("thead", {}, head), el("tbody", {}, key.map(row("key")), columns.map(row("value"))));
    const facts = [
      ["Application", application || "none"],
      ["Rollups", rollups.length ? rollups.map((by) => by.join(", ") || "total").join("; ") : "none"],
      ["Position", stamp.position],
      ["Watermark", Date.parse(stamp.watermark) > 0 ? moment(stamp.watermark) : "none yet"],
      ["Age is counted from", stamp.age_basis],
      ["Replica", stamp.replica + (stamp.share ? `, share ${stamp.share}` : "")],
    ];
    return [el("div", { class: "table-wrap top-table" }, table), el("dl", { class: "schema-facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "mono" }, value))))];
  }
}

const session = await begin();
const named = decoded(location.pathname.split("/")[2] ?? "");
try {
  await (named ? showView(named) : showViews());
} catch (error) {
  put(main, failure(error, "Views cannot be listed"));
}
