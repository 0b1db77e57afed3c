// Parts that pages are put together from: cards, tables, and places that are made anew when what they show changes.

import { failure } from "./app.js";
import { el, put } from "./dom.js";
import { written } from "./exact.js";

/** A card with a title. */
export function card(title, ...content) {
  return el("section", { class: "card", "aria-label": title }, el("div", { class: "card-head" }, el("h2", {}, title)), content);
}

/** The room inside of a card. */
export function body(...content) {
  return el("div", { class: "card-body" }, content);
}

/** A table. A column's name stands where its cells do. */
export function table(names, rows, caption = null) {
  const right = (index) => (rows[0]?.children[index].classList.contains("right") ? "right" : null);
  const head = el("tr", {}, names.map((name, index) => el("th", { scope: "col", class: right(index) }, name)));
  return el("table", {}, caption ? el("caption", { class: "hidden" }, caption) : null, el("thead", {}, head), el("tbody", {}, rows));
}

/** A row of a table: its name, then its cells. Each is a content, or a content with a class: ["12", "right"]. */
export function row(...cells) {
  const [[name, kind], ...others] = cells.map((cell) => [cell].flat());
  return el("tr", {}, el("th", { scope: "row", class: kind }, name), others.map(([content, its]) => el("td", { class: its }, content)));
}

/** A field of a form: its title, and the input of this id. */
export function field(id, title, input) {
  return el("div", { class: "field" }, el("label", { class: "title", for: id }, title), input);
}

/** Names and values, for a `dl`. */
export function facts(found) {
  return found.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, value)));
}

/** Make what stands in an element anew, if the key says that it is something else. The focus stays, by `data-key`. */
export function refresh(element, key, make) {
  const sign = written(key);
  if (element.dataset.sign === sign) return;
  element.dataset.sign = sign;
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  put(element, make());
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** Say in an element what went wrong, if anything did, `around` which more may stand. Screen readers are told it once: as
 * long as the same is wrong nothing is made anew. */
export function trouble(element, error, title, around = (told) => told) {
  refresh(element, error ? [title, error.status ?? "away", error.status ? error.message : ""] : null, () => (error ? around(failure(error, title)) : null));
}

/** Put something else into an element that is refreshed: the next time it is made anew, whatever the key is. */
export function replace(element, ...children) {
  delete element.dataset.sign;
  put(element, children);
}
