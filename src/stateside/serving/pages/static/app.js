// What all pages do first: find out who looks, show the pages that are for them, and ask questions.

import { el, icon, put } from "./dom.js";
import { parsed } from "./exact.js";

/** An answer that is a problem document, as an error. */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || `The server answered with ${status}`);
    this.status = status;
    this.code = String(document.type || "").replace("urn:stateside:problem:", "");
    this.nextStep = document.next_step || "";
  }
}

/** Ask the server; the answer's document, with every digit of its numbers if `exact`.
 *
 * Throws a Problem, or another error if nobody answers, or not before the `signal`.
 */
export async function ask(address, { exact = false, ...options } = {}) {
  const response = await fetch(address, { credentials: "same-origin", cache: "no-store", ...options });
  if (response.status === 401 && location.pathname !== "/sign-in") return toSignIn();
  if (!response.ok) throw await problemOf(response);
  return exact ? parsed(await response.text()) : response.json();
}

export async function problemOf(response) {
  let document = {};
  try {
    document = await response.json();
  } catch {
    // a proxy's own page
  }
  return new Problem(response.status, document);
}

export function send(address, method, document, options = {}) {
  const body = document === undefined ? {} : { body: JSON.stringify(document) };
  return ask(address, { method, headers: { "content-type": "application/json" }, ...body, ...options });
}

/** What a part of an address says; nothing, if that cannot be told. */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

/** Begin a page: who looks, or off to sign in. */
export async function begin() {
  showTheme();
  let session;
  try {
    session = await ask("/v1/session");
  } catch (error) {
    put(document.getElementById("main"), failure(error, "This page cannot be shown"));
    throw error;
  }
  if (!session.signed_in) return toSignIn();
  showSession(session);
  return session;
}

/** Nobody is signed in, or not any more; nothing goes on here. */
function toSignIn() {
  const back = location.pathname + location.hash;
  location.replace(back === "/" ? "/sign-in" : `/sign-in#${encodeURIComponent(back)}`);
  return new Promise(() => {});
}

function showSession(session) {
  const here = `/${location.pathname.split("/")[1]}`;
  const links = session.pages.map(({ address, title }) =>
    el("a", { href: address, "aria-current": address === here ? "page" : null }, titleFor(title, session)),
  );
  if (session.pages.length > 1) put(document.getElementById("nav"), links);
  if (session.open) return;
  const leave = el(
    "button",
    { class: "button quiet square", title: "Sign out", "aria-label": "Sign out", onclick: signOut },
    icon("out"),
  );
  document.getElementById("who").prepend(el("span", { class: "who-name", title: session.name }, session.name));
  document.getElementById("who").append(leave);
}

/** What is mine to a customer is one of many to others. */
function titleFor(title, session) {
  return title === "My bill" && !session.where.customer ? "Bills" : title;
}

async function signOut() {
  document.getElementById("still")?.remove();
  try {
    await send("/v1/session", "DELETE");
    location.assign("/sign-in");
  } catch (error) {
    const still = failure(error, "You are still signed in", "Sign out again in a moment.");
    document.getElementById("main").prepend(el("div", { id: "still" }, still));
  }
}

/** The button that changes between dark and light. */
export function showTheme() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const button = el("button", { class: "button quiet square", type: "button" });
  const show = () => {
    const title = isDark() ? "Light colours" : "Dark colours";
    button.title = title;
    button.setAttribute("aria-label", title);
    put(button, icon(isDark() ? "sun" : "moon"));
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("stateside-theme", root.dataset.theme);
    } catch {
      // for this page only, then
    }
    show();
  });
  system.addEventListener("change", show);
  show();
  document.getElementById("who").append(button);
}

/** What went wrong, for people: what, and what to do next; `then` is that where the server is away. */
export function failure(error, title = "This did not work", then = "It may be starting again. This page tries again by itself.") {
  const away = !(error instanceof Problem);
  const what = away ? "The server does not answer." : error.message;
  const next = away ? then : error.nextStep;
  return el(
    "div",
    { class: "notice bad", role: "alert" },
    icon("alert"),
    el("div", {}, el("p", {}, el("strong", {}, title)), el("p", {}, what), next ? el("p", {}, next) : null),
  );
}

/** Something that there is nothing of, and why that is so. */
export function empty(title, text) {
  return el("div", { class: "empty" }, el("strong", {}, title), text);
}
