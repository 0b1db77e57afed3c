// Whose bill: for those who may see everybody's.

import { ask, empty, failure } from "./app.js";
import { el, put } from "./dom.js";

const ROWS = 400;
const NAMES = 40;

/** Let a customer be chosen, or typed. */
export async function showChoice(main) {
  const input = el("input", { type: "text", id: "customer", autocomplete: "off", spellcheck: "false", list: "customers", required: true });
  const options = el("datalist", { id: "customers" });
  const some = el("ul", { class: "some" });
  const go = (event) => {
    event.preventDefault();
    if (input.value.trim()) location.assign(`/bill/${encodeURIComponent(input.value.trim())}`);
  };
  const form = el("form", { class: "choice", onsubmit: go }, el("label", { class: "title", for: "customer" }, "Customer"), el("div", { class: "choice-row" }, input, el("button", { class: "button primary" }, "Show")), options);
  put(main, el("div", { class: "page-head" }, el("div", {}, el("h1", {}, "Bills"), el("p", {}, "Whose bill do you want to see?"))), el("section", { class: "card choice-card" }, form, some));
  input.focus();
  try {
    const { rows } = await ask(`/v1/views/bill/rows?limit=${ROWS}&columns=customer`);
    const names = [...new Set(rows.map((row) => row.customer))].slice(0, NAMES);
    put(options, names.map((name) => el("option", { value: name })));
    put(some, names.length ? names.map((name) => el("li", {}, el("a", { class: "button slim", href: `/bill/${encodeURIComponent(name)}` }, name))) : el("li", { class: "nobody" }, empty("No customer has an open bill", "Type a customer’s name to see earlier periods.")));
  } catch (error) {
    put(some, failure(error, "Customers cannot be listed"));
  }
}
