// Numbers, money and times, as the reader's language writes them.

const LOCALES = navigator.languages?.length ? [...navigator.languages] : ["en"];
const made = new Map();

function kept(key, make) {
  if (!made.has(key)) made.set(key, make());
  return made.get(key);
}

/** Micros, which are whole numbers, as a decimal text: no amount ever becomes a binary fraction. */
function decimal(micros) {
  const whole = BigInt(micros);
  const digits = (whole < 0n ? -whole : whole).toString().padStart(7, "0");
  return `${whole < 0n ? "-" : ""}${digits.slice(0, -6)}.${digits.slice(-6)}`;
}

function currencyFormat(currency, options = {}) {
  return kept(`${currency} ${JSON.stringify(options)}`, () => {
    const all = { style: "currency", currency, currencyDisplay: "narrowSymbol", ...options };
    return new Intl.NumberFormat(LOCALES, all);
  });
}

/** An amount of money. Amounts of a fraction of the smallest coin are shown with up to six digits if `exact`. */
export function money(micros, currency, { exact = false, sign = false } = {}) {
  const options = { ...(exact ? { maximumFractionDigits: 6 } : {}), ...(sign ? { signDisplay: "exceptZero" } : {}) };
  return currencyFormat(currency, options).format(decimal(micros));
}

/** The amount in whole coins, as it is shown, still in micros. */
function shownMicros(micros, currency) {
  const coin = 10n ** BigInt(6 - currencyFormat(currency).resolvedOptions().maximumFractionDigits);
  const whole = BigInt(micros);
  const up = ((whole < 0n ? -whole : whole) * 2n + coin) / (2n * coin);
  return (whole < 0n ? -up : up) * coin;
}

/** What shown amounts lack to a shown total, in micros: a line of its own, so that what is shown adds up. */
export function roundingOf(total, amounts, currency) {
  return amounts.reduce((left, micros) => left - shownMicros(micros, currency), shownMicros(total, currency));
}

/** The same in parts, so that each can have its own size. */
export function moneyParts(micros, currency) {
  return currencyFormat(currency).formatToParts(decimal(micros));
}

/** A rough amount for the axis of a chart. */
export function roughMoney(micros, currency) {
  return currencyFormat(currency, { notation: "compact", maximumFractionDigits: 1, minimumFractionDigits: 0 }).format(
    Number(micros) / 1e6,
  );
}

/** A whole amount, for what is only estimated. */
export function aboutMoney(micros, currency) {
  return currencyFormat(currency, { maximumFractionDigits: 0, minimumFractionDigits: 0 }).format(Number(micros) / 1e6);
}

export function number(value, options = {}) {
  return kept(`n ${JSON.stringify(options)}`, () => new Intl.NumberFormat(LOCALES, options)).format(value);
}

export function rough(value) {
  return number(value, { notation: "compact", maximumFractionDigits: 1 });
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function bytes(value) {
  let unit = 0;
  let left = Number(value);
  while (Math.abs(left) >= 1000 && unit < UNITS.length - 1) {
    left /= 1000;
    unit += 1;
  }
  return `${number(left, { maximumFractionDigits: unit ? (left < 10 ? 2 : 1) : 0 })} ${UNITS[unit]}`;
}

/** Seconds, as people say them. */
export function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 ? ` ${s % 60} s` : ""}`;
  const minutes = Math.floor((s % 3600) / 60);
  return `${number(Math.floor(s / 3600))} h${minutes ? ` ${minutes} min` : ""}`;
}

const LONGER = [
  [2 * 86_400_000, 86_400_000, "d"],
  [2 * 3_600_000, 3_600_000, "h"],
  [100_000, 60_000, "min"],
];

/** How old something is, or how long it took: 850 ms, 78.0 s, 2 min, 5 h, 3 d. The same rule as `age_text` in Python. */
export function age(ms) {
  const [, size, unit] = LONGER.find(([from]) => ms >= from) ?? [];
  if (size) return `${number(Math.floor(ms / size))} ${unit}`;
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  return `${number(Math.floor(ms / 100) / 10, { minimumFractionDigits: 1, maximumFractionDigits: 1 })} s`;
}

export function date(time, zone, options = { day: "numeric", month: "short" }) {
  const all = { timeZone: zone, ...options };
  return kept(`d ${JSON.stringify(all)}`, () => new Intl.DateTimeFormat(LOCALES, all)).format(new Date(time));
}

export function clock(time) {
  return date(time, undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** Date and time; the year only if it is not this one. */
export function moment(time, zone) {
  const options = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" };
  const at = new Date(time);
  const thisYear = at.getFullYear() === new Date().getFullYear();
  return date(time, zone, thisYear ? options : { ...options, year: "numeric" });
}

/** A day like 2026-01-31, whatever the zone. */
export function day(text, options = { day: "numeric", month: "short" }) {
  return date(`${text}T12:00:00Z`, "UTC", options);
}
