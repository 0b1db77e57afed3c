"""Money: sums are exact, in whole micros (millionths of a currency's unit).

Amounts are rounded where they are charged: each line of a bill is rounded once to the currency's minor unit, and so is
the total, the exact sum of the lines. The difference between the total and the rounded lines is a separate line, the
*rounding*: lines + rounding = total, to the cent, on every bill and document.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, get_args

from stateside.core.errors import CurrencyUnknown, MoneyOverflow

MICROS_PER_UNIT: Final = 1_000_000
MICROS_DIGITS: Final = 6

Rounding = Literal["half-even", "half-up", "down", "up"]
ROUNDINGS: Final[tuple[Rounding, ...]] = get_args(Rounding)

TOTAL_ROUNDING: Final[Rounding] = "half-even"  # of a total over plans with different rules

_AMOUNT_MICROS_MAX: Final = 2**63 - 1
_AMOUNT_MICROS_MIN: Final = -(2**63)

# The minor digits of the currencies in use, by ISO 4217.
_CURRENCIES: Final = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF",
    2: "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY COP CRC "
    "CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD "
    "KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO "
    "NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL "
    "THB TJS TMT TOP TRY TTD TWD TZS UAH USD UYU UZS VES WST XCD YER ZAR ZMW",
    3: "BHD IQD JOD KWD LYD OMR TND",
}
DIGITS: Final = {currency: digits for digits, names in _CURRENCIES.items() for currency in names.split()}


def minor_digits(currency: str) -> int:
    """The number of decimals of a currency; CurrencyUnknown for an unknown code."""
    if currency not in DIGITS:
        raise CurrencyUnknown(
            f"{currency!r} is no currency", next_step="Write its three letters of ISO 4217, like EUR or JPY"
        )
    return DIGITS[currency]


def round_micros(amount_micros: int, currency: str, rule: Rounding) -> int:
    """The amount rounded to whole minor units of its currency, in micros.

    `half-even`: to the nearest, a half to the even one. `half-up`: to the nearest, a half away from zero. `down`:
    towards zero. `up`: away from zero. All rules are symmetric: -x rounds to the negative of x rounded.
    """
    minor_micros = 10 ** (MICROS_DIGITS - minor_digits(currency))
    whole, rest = divmod(abs(amount_micros), minor_micros)
    rounded = (whole + _goes_up(rule, whole, rest, minor_micros)) * minor_micros
    return checked(-rounded if amount_micros < 0 else rounded)


def total_rounding(rules: Iterable[Rounding]) -> Rounding:
    """The rule for the total of lines: the common rule of the lines' plans, or `TOTAL_ROUNDING` if the plans differ."""
    found = set(rules)
    return found.pop() if len(found) == 1 else TOTAL_ROUNDING


def format_micros(amount_micros: int, currency: str | None = None) -> str:
    """An amount for people, `1,234.50 EUR`: the currency's decimals, or more where needed to show the exact amount.

    Without a currency: at least two decimals, and no currency code.
    """
    digits = 2 if currency is None else minor_digits(currency)
    sign = "-" if amount_micros < 0 else ""
    units, micros = divmod(abs(amount_micros), MICROS_PER_UNIT)
    decimals = f"{micros:06d}".rstrip("0").ljust(digits, "0")
    return f"{sign}{units:,}{'.' if decimals else ''}{decimals}{'' if currency is None else f' {currency}'}"


def checked(amount_micros: int) -> int:
    """The amount itself; MoneyOverflow if it exceeds 64 bits."""
    if not _AMOUNT_MICROS_MIN <= amount_micros <= _AMOUNT_MICROS_MAX:
        raise MoneyOverflow(
            f"The amount of {amount_micros} micros is larger than any that can be stored",
            next_step="Look for absurd prices or quantities: nothing was stored",
        )
    return amount_micros


def _goes_up(rule: Rounding, whole: int, rest: int, minor_micros: int) -> bool:
    """Whether a positive amount of `whole` minor units and `rest` micros rounds up."""
    match rule:
        case "down":
            return False
        case "up":
            return rest > 0
        case "half-up":
            return 2 * rest >= minor_micros
        case "half-even":
            return 2 * rest > minor_micros or (2 * rest == minor_micros and whole % 2 == 1)
