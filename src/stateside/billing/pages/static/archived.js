// What an answer lacks of the invoices while their storage is away: told once, above the numbers that are old by it.

import { el, icon } from "./dom.js";
import { age, date, moment } from "./format.js";
import { refresh } from "./parts.js";

/** Show in `place` what `archive` says; nothing where all is there. Whether closed periods may be old. */
export function showArchived(place, archive) {
  const away = archive.state === "away";
  // Its age is told in words that change once a minute: screen readers are not told it every second.
  const key = away ? [archive.as_of, archive.unknown, archive.age_ms === null ? null : Math.floor(archive.age_ms / 60_000)] : null;
  refresh(place, key, () => (away ? notice(archive) : null));
  return away;
}

function notice({ as_of: asOf, age_ms: old, unknown }) {
  const known = asOf ? `Closed periods are shown as of ${moment(asOf)}, ${age(old)} ago. Corrections since then may be missing.` : "Closed periods cannot be shown.";
  const missing = asOf && unknown ? `Periods that ended from ${date(unknown.after)} to ${date(unknown.up_to)} are missing: they were sealed since.` : null;
  return el(
    "div",
    { class: "notice warn", role: "status" },
    icon("alert"),
    el("div", {}, el("p", {}, el("strong", {}, "The storage of the invoices is away")), el("p", {}, known), missing ? el("p", {}, missing) : null, el("p", {}, "What is open is up to date.")),
  );
}
