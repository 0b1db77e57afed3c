// What management's page asks by SQL, over open bills and documents alike.

import { send } from "./app.js";

const TOP = 10;
const NOTES = 8;

/**
 * The customers with the largest amounts of a period: [customer, micros, events]. `plans` are its own, in this currency.
 * Rows and lines count by their plan and end, as totals do: a day that ends with the month is none of it. What a document
 * rounds counts with its first line.
 */
export function topCustomers({ plans: ends }, currency, plans) {
  if (!plans.length) return [];
  return rowsOf(
    `SELECT customer, sum(micros)::BIGINT AS micros, sum(n)::BIGINT AS n FROM (
       SELECT customer, plan, period_end, amount_micros AS micros, events AS n FROM bill WHERE period_end IN ($ends)
       UNION ALL SELECT customer, line.plan, period_end, line.charged_micros, line.events FROM (
         SELECT customer, period_end, unnest(lines) AS line FROM archive.documents WHERE period_end IN ($ends) AND currency = $currency
       )
       UNION ALL SELECT customer, lines[1].plan, period_end, charged_micros - list_sum([line.charged_micros FOR line IN lines]), 0
       FROM archive.documents WHERE period_end IN ($ends) AND currency = $currency
     ) WHERE (plan, period_end) IN (VALUES $pairs) GROUP BY customer ORDER BY micros DESC, customer LIMIT ${TOP}`,
    {
      ends: plans.map((plan) => time(ends[plan])).join(", "),
      pairs: plans.map((plan) => `(${text(plan)}, ${time(ends[plan])})`).join(", "),
      currency: text(currency),
    },
  );
}

/** The newest corrections: [period, kind of document, how many, events, micros]. */
export function corrections(currency) {
  return rowsOf(
    `SELECT period, kind, count(*) AS n, sum(events)::BIGINT AS events, sum(charged_micros)::BIGINT AS micros
     FROM archive.documents WHERE currency = $currency AND (kind <> 'invoice' OR late)
     GROUP BY ALL ORDER BY period DESC, kind LIMIT ${NOTES}`,
    { currency: text(currency) },
  );
}

/** The rows of a statement, whose names are replaced by values that are written out. */
async function rowsOf(statement, values) {
  const sql = Object.entries(values).reduce((found, [name, value]) => found.replaceAll(`$${name}`, () => value), statement);
  return (await send("/v1/sql", "POST", { sql })).rows;
}

const text = (value) => `'${String(value).replaceAll("'", "''")}'`;
const time = (value) => `TIMESTAMPTZ ${text(value)}`;
