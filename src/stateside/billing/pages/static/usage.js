// Usage and periods, as people call them.

import { bytes, date, duration, number } from "./format.js";

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
