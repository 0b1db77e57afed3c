// Signing in: the token goes to the server, which keeps it in a cookie that no script can read.

import { ask, decoded, Problem, send, showTheme } from "./app.js";
import { el, icon, put } from "./dom.js";

const token = el("input", {
  id: "token",
  type: "password",
  name: "token",
  autocomplete: "current-password",
  required: true,
  spellcheck: "false",
  "aria-describedby": "token-help",
});
const keep = el("input", { type: "checkbox", id: "keep" });
const told = el("div", { role: "alert" });
const button = el("button", { class: "button primary wide", type: "submit" }, "Sign in");

showTheme();
put(
  document.getElementById("main"),
  el(
    "form",
    { class: "card sign-in", novalidate: true, onsubmit: signIn },
    el("div", { class: "lock" }, icon("lock")),
    el("h1", {}, "Sign in"),
    el("p", { class: "muted" }, "with the token that you were given."),
    el("div", { class: "field" }, el("label", { class: "title", for: "token" }, "Token"), token),
    el("p", { class: "muted small", id: "token-help" }, "It begins with “ey” and has two dots in it."),
    el("label", { class: "check", for: "keep" }, keep, "Stay signed in on this device"),
    told,
    button,
  ),
);
token.focus();
ask("/v1/session").then((session) => session.signed_in && location.replace(lead()));

async function signIn(event) {
  event.preventDefault();
  put(told);
  if (!token.value.trim()) return refuse("Paste your token first.");
  button.disabled = true;
  try {
    await send("/v1/session", "POST", { token: token.value.trim(), keep: keep.checked });
    location.replace(lead());
  } catch (error) {
    refuse(error instanceof Problem ? `${error.message}. ${error.nextStep}.` : "The server does not answer. Try again in a moment.");
  } finally {
    button.disabled = false;
  }
}

function refuse(text) {
  put(told, el("p", { class: "notice bad" }, icon("alert"), text));
  token.setAttribute("aria-invalid", "true");
  token.focus();
  token.select();
}

/** Back to the page that sent us here; never to another site, however its address is written: the browser reads it first. */
function lead() {
  const back = decoded(location.hash.slice(1));
  if (!back.startsWith("/") || !URL.canParse(back, location.origin)) return "/";
  const to = new URL(back, location.origin);
  return to.origin === location.origin ? to.href : "/";
}
