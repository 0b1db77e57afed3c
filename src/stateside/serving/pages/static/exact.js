// JSON whose whole numbers stay what they are: a long may have more digits than a JavaScript number holds, and such a
// one is a BigInt here. Browsers that do not tell how a number was written round it, as they always do.

const WHOLE = /^-?\d+$/;

/** The value of a JSON text. */
export function parsed(text) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    return WHOLE.test(context?.source ?? "") ? BigInt(context.source) : value;
  });
}

/** The JSON text of a value, digit by digit. */
export function written(value) {
  return JSON.stringify(value, (_, each) => (typeof each === "bigint" ? JSON.rawJSON(String(each)) : each));
}

/** Whether a value is a number, of whatever size. */
export function isNumber(value) {
  return typeof value === "number" || typeof value === "bigint";
}
