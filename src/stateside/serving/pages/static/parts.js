// Parts that pages are put together from: cards, tables, and places that are made anew when what they show changes.

import { el, put } from "./dom.js";

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

/** Names and values, for a `dl`. */
export function facts(found) {
  return found.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, value)));
}

/** Make what stands in an element anew, if the key says that it is something else. The focus stays, by `data-key`. */
export function refresh(element, key, make) {
  const sign = JSON.stringify(key);
  if (element.dataset.sign === sign) return;
  element.dataset.sign = sign;
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  put(element, make());
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** Put something else into an element that is refreshed: the next time it is made anew, whatever the key is. */
export function replace(element, ...children) {
  delete element.dataset.sign;
  put(element, children);
}
