// The views of any job: their rows by key, by filter and page by page, one key watched live, SQL, and what a view is.

import { ask, begin, empty, failure } from "./app.js";
import { el, icon, put, say } from "./dom.js";
import { clock, moment, number } from "./format.js";
import { Live, Looked, freshSign } from "./live.js";
import { body } from "./parts.js";
import { SqlBox } from "./sql.js";
import { cell } from "./values.js";

const PAGE = 25;
const TOLD_MOST = 30;
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
    Object.assign(this, { name, described, address: `/v1/views/${encodeURIComponent(name)}`, cursors: [], batch: null });
    this.looked = new Looked(() => ask(this.address).then((found) => this.heard(found)));
    this.tabs = { rows: ["Rows", this.makeRows()], watch: ["Watch", this.makeWatch()], schema: ["Schema", this.makeSchema()] };
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
    this.lookAtRows();
  }

  heard(described) {
    this.described = described;
    const { stamp, rows, application } = described;
    const count = rows === null ? "" : `${number(rows)} ${rows === 1 ? "row" : "rows"} · `;
    say(this.about, `${count}batch ${number(stamp.batch)} · position ${stamp.position}${application ? ` · ${application}` : ""}`);
    const first = !this.cursors.length && !this.panels?.[0].hidden;
    if (first && this.batch !== null && stamp.batch !== this.batch) this.lookAtRows();
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
    if (key !== "watch") this.unwatch();
  }

  move(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const at = this.buttons.indexOf(document.activeElement);
    const next = this.buttons[(at + by + this.buttons.length) % this.buttons.length];
    next.focus();
    next.click();
  }

  // Rows

  makeRows() {
    const { key, columns } = this.described;
    this.keys = key.map(({ name, type }) => el("input", { type: "text", id: `key-${name}`, placeholder: type, autocomplete: "off", spellcheck: "false" }));
    this.where = el("input", { type: "text", id: "where", placeholder: `${columns[0]?.name ?? key[0].name}>=100`, autocomplete: "off", spellcheck: "false", "aria-describedby": "where-help" });
    const all = [...key, ...columns].map(({ name }) => name);
    this.order = el("select", { id: "order" }, el("option", { value: "" }, "by key"), all.map((name) => [el("option", { value: name }, `${name}, least first`), el("option", { value: `-${name}` }, `${name}, greatest first`)]));
    this.rows = el("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": "Rows" });
    this.told = el("span", { class: "muted small num", role: "status" });
    this.back = el("button", { class: "button slim", disabled: true, onclick: () => this.turn(-1) }, "Back");
    this.next = el("button", { class: "button slim", disabled: true, onclick: () => this.turn(1) }, "Next");
    const fields = key.map(({ name }, index) => field(`key-${name}`, name, this.keys[index]));
    const more = [field("where", "Only rows with", this.where), field("order", "In the order", this.order)];
    const form = el("form", { class: "questions", onsubmit: (event) => this.first(event) }, fields, more, el("button", { class: "button primary" }, icon("search"), "Look up"));
    const help = el("p", { class: "muted small help", id: "where-help" }, "Give the key’s first parts, or none. A condition is a column, one of = != < <= > >= and a value; several with & between them.");
    return [el("div", { class: "card-body roomy" }, form, help), this.rows, el("div", { class: "rows-foot" }, this.told, el("span", {}, this.back, " ", this.next))];
  }

  first(event) {
    event?.preventDefault();
    this.cursors = [];
    this.lookAtRows();
  }

  turn(by) {
    if (by > 0) this.cursors.push(this.cursor);
    else this.cursors.pop();
    this.lookAtRows();
  }

  asked() {
    const asked = new URLSearchParams({ limit: PAGE });
    for (const part of this.parts()) asked.append("key", part);
    for (const condition of this.where.value.split("&").map((text) => text.trim())) if (condition) asked.append("where", condition);
    if (this.order.value) asked.set("order", this.order.value);
    if (this.cursors.length) asked.set("cursor", this.cursors.at(-1));
    return asked;
  }

  /** The key's first parts, up to the last one that is filled in. */
  parts() {
    const values = this.keys.map((input) => input.value);
    return values.slice(0, values.findLastIndex((value) => value !== "") + 1);
  }

  async lookAtRows() {
    try {
      const { stamp, rows, cursor } = await ask(`${this.address}/rows?${this.asked()}`);
      this.batch = stamp.batch;
      this.cursor = cursor;
      this.showRows(rows);
      const page = this.cursors.length ? `page ${this.cursors.length + 1}, ` : "";
      say(this.told, `${page}${number(rows.length)} ${rows.length === 1 ? "row" : "rows"} of batch ${number(stamp.batch)}${cursor ? "; there are more" : ""}`);
    } catch (error) {
      put(this.rows, body(failure(error, "These rows cannot be shown")));
      say(this.told, "");
      this.cursor = null;
    }
    this.back.disabled = !this.cursors.length;
    this.next.disabled = !this.cursor;
  }

  showRows(rows) {
    if (!rows.length) return put(this.rows, empty("No rows", this.parts().length || this.where.value ? "Nothing has this key and meets these conditions." : "This view is empty."));
    return put(this.rows, this.table(rows, (row) => el("td", { class: "right" }, this.watchButton(row))));
  }

  table(rows, ending = () => null, marked = () => false) {
    const keys = new Set(this.described.key.map(({ name }) => name));
    const names = Object.keys(rows[0]);
    const right = (name) => !keys.has(name) && rows.some((row) => typeof row[name] === "number");
    const head = el("tr", {}, names.map((name) => el("th", { scope: "col", class: right(name) ? "right" : null }, name)), ending(rows[0]) ? el("td", {}) : null);
    const lines = rows.map((row) => el("tr", { class: marked(row) ? "told" : null }, names.map((name) => cell(row[name], keys.has(name) ? "key" : "")), ending(row)));
    return el("table", {}, el("thead", {}, head), el("tbody", {}, lines));
  }

  watchButton(row) {
    const parts = this.described.key.map(({ name }) => row[name]);
    if (parts.some((part) => typeof part === "object")) return null;
    const watch = () => {
      this.watched.value = parts.join(" / ");
      this.watch(parts);
      this.open("watch");
    };
    return el("button", { class: "button quiet slim", "aria-label": `Watch ${parts.join(", ")}`, title: "Watch this row", onclick: watch }, icon("eye"));
  }

  // Watching

  makeWatch() {
    this.watched = el("input", { type: "text", id: "watched", autocomplete: "off", spellcheck: "false", "aria-describedby": "watched-help" });
    this.watchSign = el("div");
    this.watchRows = el("div", { class: "table-wrap" }, empty("Nothing is watched yet", "Give a key, or choose the eye beside a row."));
    this.watchTold = el("ol", { class: "told-list", "aria-label": "What changed", role: "log" });
    const begin = (event) => {
      event.preventDefault();
      const parts = this.watched.value.split("/").map((part) => part.trim());
      this.watch(parts.filter((part, index) => part || index < parts.length - 1));
    };
    const names = this.described.key.map(({ name }) => name).join(" / ");
    const form = el("form", { class: "questions", onsubmit: begin }, field("watched", `Key: ${names}`, this.watched), el("button", { class: "button primary" }, icon("eye"), "Watch"), this.watchSign);
    const help = el("p", { class: "muted small help", id: "watched-help" }, "The key’s first parts with / between them. Every batch that changes one of these rows is told as it comes.");
    return [el("div", { class: "card-body roomy" }, form, help), this.watchRows, this.watchTold];
  }

  watch(parts) {
    this.unwatch();
    const asked = new URLSearchParams({ pulse: 1 });
    for (const part of parts) asked.append("key", part);
    const rows = new Map();
    put(this.watchTold);
    this.live = new Live({
      address: `${this.address}/changes?${asked}`,
      changed: (stamp, told, kind) => this.told_(rows, stamp, told, kind),
      poll: async () => {
        const found = await ask(`${this.address}/rows?${asked.toString().replace("pulse=1", "limit=100")}`);
        this.told_(rows, found.stamp, found, "snapshot");
        return { stamp: found.stamp };
      },
    }).start();
    put(this.watchSign, freshSign(this.live));
    this.watchSign.className = "watch-sign";
  }

  unwatch() {
    this.live?.stop();
    this.live = null;
    put(this.watchSign);
  }

  told_(rows, stamp, { rows: all = [], changed = [], removed = [] }, kind) {
    if (kind === "snapshot") rows.clear();
    const id = (row) => JSON.stringify(this.described.key.map(({ name }) => row[name]));
    for (const row of [...all, ...changed]) rows.set(id(row), row);
    for (const key of removed) rows.delete(id(key));
    const fresh = new Set(changed.map(id));
    put(this.watchRows, rows.size ? this.table([...rows.values()], undefined, (row) => fresh.has(id(row))) : empty("No row has this key", "If one comes, it appears here."));
    const what = kind === "snapshot" ? `${number(rows.size)} ${rows.size === 1 ? "row" : "rows"} to begin with` : [changed.length ? `${number(changed.length)} changed` : "", removed.length ? `${number(removed.length)} left` : ""].filter(Boolean).join(", ");
    this.watchTold.prepend(el("li", { class: "num" }, el("span", { class: "muted" }, clock(Date.now())), ` batch ${number(stamp.batch)}: ${what}`));
    while (this.watchTold.children.length > TOLD_MOST) this.watchTold.lastChild.remove();
  }

  // SQL and schema

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

function field(id, title, input) {
  return el("div", { class: "field" }, el("label", { class: "title", for: id }, title), input);
}

const session = await begin();
const named = decodeURIComponent(location.pathname.split("/")[2] ?? "");
try {
  await (named ? showView(named) : showViews());
} catch (error) {
  put(main, failure(error, "Views cannot be listed"));
}
