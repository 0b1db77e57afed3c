"""The auditor's own money arithmetic: SQL macros over 128-bit integers, independent of the pipeline's.

    price(quantity, tiers)          micros of a quantity: the sum over the tiers, each tier's part rounded down
    rounded(amount, minor, rule)    the amount in micros, rounded to whole minor units by the plan's rule

A step is {above, below, micros, per}: in the part of the quantity above `above` and up to `below` (null: unlimited),
every `per` units cost `micros`.
"""

from __future__ import annotations

from typing import Final

ROUNDINGS: Final = ("half-even", "half-up", "down", "up")

TIERS_TYPE: Final = "struct(above bigint, below bigint, micros bigint, per bigint)[]"

MACROS: Final = """
    -- DuckDB divides towards zero; a part of a step is rounded down, below zero too.
    create or replace temp macro divided_down(a, b) as (a - ((a % b) + b) % b) // b;

    create or replace temp macro part(quantity, step) as
        greatest(least(quantity, coalesce(step.below, quantity)) - step.above, 0)::hugeint;

    create or replace temp macro price(quantity, tiers) as
        list_sum(list_transform(tiers, lambda s: divided_down(part(quantity, s) * s.micros, s.per::hugeint)))::hugeint;

    create or replace temp macro rounded(amount, minor, rule) as
        (case when amount < 0 then -1 else 1 end) * minor * (abs(amount) // minor + case
            when rule = 'up' then (abs(amount) % minor > 0)::int
            when rule = 'half-up' then (2 * (abs(amount) % minor) >= minor)::int
            when rule = 'half-even' and 2 * (abs(amount) % minor) = minor then (abs(amount) // minor) % 2
            when rule = 'half-even' then (2 * (abs(amount) % minor) > minor)::int
            else 0 end)::hugeint;
"""

_MINOR_DIGITS: Final = {  # by ISO 4217
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    2: """
        AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN BWP BYN BZD
        CAD CDF CHF CNY COP CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD
        HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL
        MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN
        QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL
        THB TJS TMT TOP TRY TTD TWD TZS UAH USD UYU UZS VES WST XCD YER ZAR ZMW
    """,
}
MINOR_MICROS: Final = {name: 10 ** (6 - digits) for digits, names in _MINOR_DIGITS.items() for name in names.split()}


def shown(amount_micros: int, currency: str) -> str:
    """An amount for people, with enough decimals to show it exactly."""
    units, micros = divmod(abs(amount_micros), 1_000_000)
    decimals = f"{micros:06d}".rstrip("0")
    decimals = decimals.ljust(2, "0") if decimals or MINOR_MICROS.get(currency) != 1_000_000 else ""
    return f"{'-' if amount_micros < 0 else ''}{units:,}{'.' if decimals else ''}{decimals} {currency}"
