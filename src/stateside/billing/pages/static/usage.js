// Usage and periods, as people call them.

import { bytes, date, day, duration, number } from "./format.js";

const NAMES = { call: "Calls", message: "Messages", data: "Data", package: "Package", fee: "Fee", credit: "Credit" };
const SLOTS = { call: "s1", message: "s2", data: "s3", package: "s4", fee: "s6", credit: "s5" };

/** `package:weekend` is “Package: weekend”. */
export function typeName(type) {
  const [usage, name] = type.split(":");
  return name ? `${NAMES[usage] ?? usage}: ${name}` : (NAMES[usage] ?? usage);
}

/** The class that gives a type its colour. */
export function slotOf(type) {
  return SLOTS[type.split(":")[0]] ?? "s6";
}

/** How much of it, in its unit. */
export function quantity({ type, quantity: amount }) {
  switch (type.split(":")[0]) {
    case "call":
      return duration(amount);
    case "data":
      return bytes(amount);
    case "message":
      return `${number(amount)} ${amount === 1 ? "message" : "messages"}`;
    case "credit":
      return "";
    default:
      return `${number(amount)} ×`;
  }
}

/** “January 2026”, or the days where the period is no calendar month. */
export function periodName(period) {
  const isMonth = /^\d{4}-\d{2}$/.test(period.period);
  if (isMonth) return date(`${period.period}-15T12:00:00Z`, "UTC", { month: "long", year: "numeric" });
  return periodSpan(period, { day: "numeric", month: "short", year: "numeric" });
}

/** The first and the last day. */
export function periodSpan(period, options = { day: "numeric", month: "short" }) {
  const first = date(period.period_start, period.time_zone, options);
  const last = date(new Date(period.period_end) - 1, period.time_zone, options);
  return first === last ? first : `${first} – ${last}`;
}

/** What a label says of the cycle: `2026-01@31` and `2026-02@31` are alike, so are `2026-W03` and `2026-W04`. */
export function cycleOf(label) {
  return label.replace(/^\d{4}-W?\d{2}/, (found) => (found.includes("W") ? "week" : "month")).replace(/-\d{2}$/, " day");
}

/** `2026-01` is “January 2026”; a month that begins on another day has the day behind it. */
export function labelName(label) {
  const [month, anchor] = label.split("@");
  if (!/^\d{4}-\d{2}$/.test(month)) return label;
  return periodName({ period: month }) + (anchor ? `, from day ${Number(anchor)}` : "");
}

/** The same where there is little room: “Jan”. */
export function shortName(label) {
  const month = label.slice(0, 7);
  return /^\d{4}-\d{2}(@|$)/.test(label) ? day(`${month}-15`, { month: "short" }) : label.slice(5);
}
