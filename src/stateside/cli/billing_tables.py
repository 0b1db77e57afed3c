"""The output of billing's commands for people: plain text in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stateside.billing.money import format_micros
from stateside.cli.tables import columns
from stateside.core.clock import age_text

if TYPE_CHECKING:
    from stateside.billing.plans.plan import PlanVersion

Row = Sequence[str]


def bill_text(answer: Mapping[str, Any]) -> str:
    """A bill: a heading for each period, its lines below, the totals at the end."""
    parts = []
    for period in answer["periods"]:
        charged = format_micros(period["charged_micros"], period["currency"])
        numbers = ", ".join(document["number"] for document in period["documents"])
        parts.append(f"{period['period']}  {period['state']}  {charged}{f'  ({numbers})' if numbers else ''}")
        parts.append(_lines(period))
    totals = (format_micros(total["charged_micros"], total["currency"]) for total in answer["totals"])
    parts += [f"all periods: {total}" for total in totals]
    return "\n".join([*(parts or [f"{answer['customer']} has no bill."]), *archive_text(answer)])


def _lines(of: Mapping[str, Any]) -> str:
    """The lines of a period or a document, and their rounding: the charges add up to the total."""
    currency = of["currency"]
    rows = [
        (
            f"  {line['type']}",
            line["plan"],
            f"{line['quantity']:,}",
            f"{line['events']:,} events",
            format_micros(line["charged_micros"], currency),
        )
        for line in of["lines"]
    ]
    if of["rounding_micros"]:
        rows.append(("  rounding", "", "", "", format_micros(of["rounding_micros"], currency)))
    return columns(rows, "llrrr")


def explained_text(answer: Mapping[str, Any]) -> str:
    """Events with the amount that each added."""
    rows = [
        (
            str(event["offset"]),
            event["time"],
            event["type"],
            event["plan"],
            f"{event['quantity']:,}",
            format_micros(event["amount_micros"], answer["currency"]),
            event["document"] or "",
            event["id"],
        )
        for event in answer["events"]
    ]
    head = f"{answer['customer']}, {answer['period']}, {answer['state']}: {answer['events_behind']:,} events make "
    head += format_micros(answer["amount_micros"], answer["currency"])
    names = ("offset", "time", "type", "plan", "quantity", "added", "late, in", "id")
    more = [] if answer["cursor"] is None else [f"There are more: --after {answer['cursor']}"]
    return "\n".join([head, columns([names, *rows], "rlllrrll"), *more, stamp_text(answer["stamp"])])


def documents_text(documents: Sequence[Mapping[str, Any]], *, lines: bool = False) -> str:
    """Invoices and notes, a line each, or with their lines."""
    if not documents:
        return "There are no invoices."
    rows = [
        (
            document["number"],
            document["kind"],
            document["customer"],
            document["period"],
            format_micros(document["charged_micros"], document["currency"]),
            f"corrects {document['corrects']}" if document["corrects"] else "",
        )
        for document in documents
    ]
    below = [_lines(document) for document in documents] if lines else []
    return "\n".join([columns(rows, "llllrl"), *below])


def totals_text(answer: Mapping[str, Any]) -> str:
    """Totals by currency and type, then by currency; columns and rows both add up."""
    names = ("", "type", "quantity", "events", "open", "charged", "total")
    rows = []
    for all_types in answer["currencies"]:
        types = [total for total in answer["totals"] if total["currency"] == all_types["currency"]]
        rows += [_total(total, total["type"], f"{total['quantity']:,}") for total in types]
        rounding = format_micros(all_types["rounding_micros"])
        rows += [(all_types["currency"], "rounding", "", "", "", rounding, rounding)] * bool(
            all_types["rounding_micros"]
        )
        rows.append(_total(all_types, "all", ""))
    if not rows:
        return "\n".join([f"Nothing was used in {answer['period']}.", *archive_text(answer)])
    return "\n".join([columns([names, *rows], "llrrrrr"), *archive_text(answer)])


def _total(total: Mapping[str, Any], name: str, quantity: str) -> Row:
    amounts = (format_micros(total[part]) for part in ("open_micros", "charged_micros", "total_micros"))
    return (total["currency"], name, quantity, f"{total['events']:,}", *amounts)


def dead_letters_text(answer: Mapping[str, Any]) -> str:
    """The counts, and a page of dead letters."""
    counts = ", ".join(f"{reason} {count:,}" for reason, count in answer["reasons"].items())
    rows = [
        (str(letter["offset"]), letter["reason"], letter["entity"], letter["type"], letter["time"], letter["id"])
        for letter in answer["dead_letters"]
    ]
    head = f"{answer['count']:,} dead letters{f': {counts}' if counts else ''}"
    more = [] if answer["cursor"] is None else [f"There are more: --after {answer['cursor']}"]
    return "\n".join([head, *([columns(rows, "rlllll")] if rows else []), *more, stamp_text(answer["stamp"])])


def plans_text(versions: Sequence[PlanVersion]) -> str:
    """Versions, a line each."""
    from stateside.serving.stamp import iso_time

    if not versions:
        return "No plan is published yet."
    rows = [
        (each.id, f"from {iso_time(each.effective_us)}", each.currency, f"by {each.cycle.kind}", each.cycle.time_zone)
        for each in versions
    ]
    return columns(rows, "lllll")


def archive_text(answer: Mapping[str, Any]) -> list[str]:
    """The stamp, and the missing documents if their storage is away."""
    archive = answer["archive"]
    if archive["state"] != "away":
        return [stamp_text(answer["stamp"])]
    known, unknown = archive["age_ms"], archive["unknown"]
    told = "none of them is known" if known is None else f"they are {age_text(known)} old, as of {archive['as_of']}"
    missing = "" if unknown is None else f"; periods that ended {_range(unknown)} are missing"
    return [f"The storage of the invoices is away: {told}{missing}.", stamp_text(answer["stamp"])]


def _range(unknown: Mapping[str, Any]) -> str:
    after = "" if unknown["after"] is None else f"after {unknown['after']} and "
    return f"{after}up to {unknown['up_to']}"


def stamp_text(stamp: Mapping[str, Any]) -> str:
    """The stamp in a line."""
    return f"at batch {stamp['batch']}, position {stamp['position']}, {age_text(stamp['age_ms'])} old"
