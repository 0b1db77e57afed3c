// What management's page asks by SQL, over open bills and documents alike.

import { send } from "./app.js";

const TOP = 10;
const NOTES = 8;

/** The customers with the largest amounts of a period: [customer, micros, events]. `plans` are its own, in this currency. */
export function topCustomers({ period_ends: ends }, currency, plans) {
  return rowsOf(
    `SELECT customer, sum(micros)::BIGINT AS micros, sum(n)::BIGINT AS n FROM (
       SELECT customer, amount_micros AS micros, events AS n FROM bill WHERE list_contains($ends, period_end) AND list_contains($plans, plan)
       UNION ALL SELECT customer, line.amount_micros, line.events FROM (
         SELECT customer, unnest(lines) AS line FROM archive.documents WHERE list_contains($ends, period_end) AND currency = $currency
       ) WHERE list_contains($plans, line.plan)
     ) GROUP BY customer ORDER BY micros DESC, customer LIMIT ${TOP}`,
    { ends: times(ends), plans: texts(plans), currency: text(currency) },
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
const texts = (values) => `[${values.map(text).join(", ")}]::VARCHAR[]`;
const times = (values) => `[${values.map((value) => `TIMESTAMPTZ ${text(value)}`).join(", ")}]`;
