"""`stateside billing`: bills, invoices, totals, plans, dead letters, delivery, generator; and `stateside audit`."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from stateside.billing.money import format_micros
from stateside.cli.group import FILE, FOLDER
from stateside.cli.query import client_of, floor_of, floored
from stateside.cli.tables import bar, columns
from stateside.core.clock import age_text
from stateside.core.errors import RequestInvalid

if TYPE_CHECKING:
    from stateside.billing.plans.plan import PlanVersion
    from stateside.core.layout import Layout


_SHARE = click.FloatRange(0, 1)
_DIR = click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
_JSON = click.option("--json", "as_json", is_flag=True, help="The whole stamped answer, for machines.")


@click.command()
@click.option("--dir", "folder", type=FOLDER, help="Into the journal of this application's folder, which is empty.")
@click.option("--files", "files_folder", type=FOLDER, help="Into files of JSON lines in this folder.")
@click.option("--kafka", "servers", metavar="HOST:PORT", help="To a topic of this broker, with --topic.")
@click.option("--topic", help="With --kafka: which topic.")
@click.option("--customers", default=1_000, show_default=True, type=click.IntRange(1), help="How many there are.")
@click.option("--events", default=20, show_default=True, type=click.IntRange(1), help="Of each, a period.")
@click.option("--periods", default=3, show_default=True, type=click.IntRange(1), help="That close; one more is open.")
@click.option("--seed", default=1, show_default=True, help="Another seed makes other events.")
@click.option(
    "--delayed", default=0.15, show_default=True, type=_SHARE, help="Share that comes in within the grace time."
)
@click.option("--late", default=0.03, show_default=True, type=_SHARE, help="Share that comes too late.")
@click.option("--duplicate", default=0.01, show_default=True, type=_SHARE, help="Share that comes twice.")
@click.option("--bad", default=0.01, show_default=True, type=_SHARE, help="Share that must become dead letters.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Events a second; as fast as it can without.")
@click.option("--json", "as_json", is_flag=True, help="The report for machines.")
def generate(
    folder: Path | None,
    files_folder: Path | None,
    servers: str | None,
    topic: str | None,
    customers: int,
    events: int,
    periods: int,
    seed: int,
    delayed: float,
    late: float,
    duplicate: float,
    bad: float,
    rate: float | None,
    as_json: bool,
) -> None:
    """Generate customers who telephone, with their plans, into a journal, files or Kafka; report the expected outcome.

    The same settings make the same events. In every period of every customer the counted events add up to the same even
    amount, whatever comes late, twice or broken, so a wrong bill is visible at once. `stateside audit` proves the rest.
    """
    from stateside.billing.generator import Generator, Shares
    from stateside.billing.generator import generate as generate_events
    from stateside.billing.generator.output import to_files, to_journal, to_kafka
    from stateside.core.layout import Layout

    if sum(place is not None for place in (folder, files_folder, servers)) != 1 or (servers is None) != (topic is None):
        raise RequestInvalid("Say where to: --dir, or --files, or --kafka with --topic")
    shares = Shares(delayed=delayed, late=late, duplicate=duplicate, bad=bad)
    generator = Generator(seed, customers, events, periods, shares)
    if folder is not None:
        target = to_journal(Layout(folder).journal)
    elif files_folder is not None:
        target = to_files(files_folder)
    else:
        target = to_kafka(str(servers), str(topic))
    found = generate_events(generator, target, rate=rate).as_dict()
    click.echo(json.dumps(found, indent=2) if as_json else report_text(found))


def report_text(found: dict[str, object]) -> str:
    """The expected outcome, for people."""
    periods, events, letters = found["periods"], found["events"], found["dead_letters"]
    assert isinstance(periods, list)
    assert isinstance(events, dict)
    assert isinstance(letters, dict)
    rows = [
        (
            each["period"],
            "closes" if each["closes"] else "stays open",
            f"{each['customers']:,} customers",
            f"{each['events']:,} events",
            format_micros(each["charged_micros"], each["currency"]),
        )
        for each in periods
    ]
    kinds = ", ".join(f"{name} {count:,}" for name, count in events.items())
    reasons = ", ".join(f"{name} {count:,}" for name, count in letters.items())
    head = f"{found['journalled']:,} events: {kinds}"
    return "\n".join([head, f"dead letters: {reasons or 'none'}", columns(rows, "llrrr")])


@click.command()
@_DIR
def clock(folder: Path) -> None:
    """Append time's own events, until Ctrl-C or SIGTERM: recurring fees, and ticks that close periods.

    Run the clock beside the pipeline. A tick lets periods close on time although nobody uses anything. Every fee and
    tick is in the journal once, however often the command is stopped, killed or started twice.
    """
    from stateside.billing.operations.clock_events import run_clock
    from stateside.core.clock import SystemClock

    layout, stop = _layout(folder), _stop_signal()
    click.echo(f"The clock of {folder} runs.", err=True)
    run_clock(layout, SystemClock(), stop)


@click.group()
def billing() -> None:
    """Bills, invoices and related commands.

    \b
    Ask a server:       bill, explain, invoices, totals, dead-letters list and show
    Change the journal: plan publish, assign, dead-letters replay   (with the application's --dir)
    Run beside it:      clock, deliver
    Make a stream up:   generate

    docs/billing.md is the introduction: a plan, customers, bills, invoices, corrections, the audit.
    """


billing.add_command(clock)
billing.add_command(generate)


def _ask(url: Sequence[str], path: str, floor: Mapping[str, Any], **parameters: Any) -> dict[str, Any]:
    given = {name: value for name, value in parameters.items() if value is not None}
    with client_of(url) as client:
        return client.get(path, **floor, **given)


def _show(answer: Mapping[str, Any], as_json: bool, text: str) -> None:
    click.echo(json.dumps(answer, indent=2) if as_json else text)


Ask = Callable[..., None]


def _paged(command: Callable[..., None]) -> Callable[..., None]:
    """The flags of a command with a paged list; the command gets a function `ask` that requests and shows a page."""

    @click.option("--limit", type=click.IntRange(1, 1_000), help="How many events; 100 by default.")
    @click.option("--after", metavar="OFFSET", help="Go on after this one: the next page.")  # opaque for a scoped token
    @_JSON
    @floored
    @wraps(command)
    def paged(
        *,
        limit: int | None,
        after: str | None,
        as_json: bool,
        url: Sequence[str],
        min_position: str | None,
        wait_ms: int | None,
        max_age_ms: int | None,
        **chosen: Any,
    ) -> None:
        floor = floor_of(min_position, {"wait_ms": wait_ms, "max_age_ms": max_age_ms})

        def ask(path: str, text: Callable[[Mapping[str, Any]], str], **parameters: Any) -> None:
            answer = _ask(url, path, floor, **parameters, limit=limit, after=after)
            _show(answer, as_json, text(answer))

        command(**chosen, ask=ask)

    return paged


@billing.command()
@click.argument("customer")
@_JSON
@floored
def bill(customer: str, as_json: bool, url: Sequence[str], min_position: str | None, **floor: int | None) -> None:
    """Show a CUSTOMER's bill: every period, open or closed, with its lines.

    A `draft` is open: events still come in, also during the grace period after the period's end. `sealed` has an
    invoice; `corrected` has notes as well. Drafts show the invoice as if made now.
    """
    answer = _ask(url, f"/v1/customers/{quote(customer, safe='')}/bill", floor_of(min_position, floor))
    _show(answer, as_json, bill_text(answer))


@billing.command()
@click.argument("customer")
@click.option("--period", metavar="PERIOD", help="Like 2026-01; the newest one by default.")
@click.option("--currency", metavar="CODE", help="Where the period has bills in several.")
@click.option("--type", "type_", metavar="TYPE", help="Only events of this type on the bill, like call.")
@_paged
def explain(
    customer: str,
    period: str | None,
    currency: str | None,
    type_: str | None,
    ask: Ask,
) -> None:
    """Show the events that make up one period of a CUSTOMER's bill, each with its added amount.

    The events add up to the bill exactly; otherwise you get an error and no list. Where the price depends on the
    period's total (tiers, included quantities), an event's amount is the amount added at its place in the journal.
    Events that came too late for the invoice are shown with their note.
    """
    path = f"/v1/customers/{quote(customer, safe='')}/bill/explain"
    ask(path, explained_text, period=period, currency=currency, type=type_)


@billing.command()
@click.argument("customer", required=False)
@click.option("--number", metavar="NUMBER", help="One document, like I-000000001, in place of a customer's.")
@click.option("--pdf", "pdf_file", type=FILE, help="Write the document of --number here as a PDF.")
@_JSON
@floored
def invoices(
    customer: str | None,
    number: str | None,
    pdf_file: Path | None,
    as_json: bool,
    url: Sequence[str],
    min_position: str | None,
    **floor: int | None,
) -> None:
    """List a CUSTOMER's invoices and notes, or show one by its --number, or store it as a --pdf.

    Documents never change. A note (N-…) names the corrected invoice and the events that came too late for it.
    """
    if (customer is None) == (number is None) or (pdf_file is not None and number is None):
        raise RequestInvalid("Name either a CUSTOMER or a --number; a --pdf is made of one --number")
    asked = floor_of(min_position, floor)
    if pdf_file is not None:
        with client_of(url) as client:
            pdf_file.write_bytes(client.content(f"/v1/invoices/{quote(str(number), safe='')}.pdf", **asked))
        click.echo(f"Wrote {pdf_file}.", err=True)
    elif number is not None:
        answer = _ask(url, f"/v1/invoices/{quote(number, safe='')}", asked)
        _show(answer, as_json, documents_text([answer["document"]], lines=True))
    else:
        answer = _ask(url, f"/v1/customers/{quote(str(customer), safe='')}/invoices", asked)
        _show(answer, as_json, "\n".join([documents_text(answer["documents"]), *archive_text(answer)]))


@billing.command()
@click.argument("period")
@_JSON
@floored
def totals(period: str, as_json: bool, url: Sequence[str], min_position: str | None, **floor: int | None) -> None:
    """Show all customers' totals of a PERIOD, like 2026-01, by currency and type.

    Open bills and documents of the same batch are added up in one answer: the total is right at every moment, also
    while the period is being sealed. Currencies are never added up.
    """
    answer = _ask(url, f"/v1/periods/{quote(period, safe='')}/totals", floor_of(min_position, floor))
    _show(answer, as_json, totals_text(answer))


@billing.command(name="lateness")
@click.argument("allowed_days", metavar="[DAYS]", type=click.FloatRange(0, 366), required=False)
@click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
def set_allowed_lateness(allowed_days: float | None, folder: Path) -> None:
    """Set the allowed lateness to DAYS, in a new folder; without DAYS, show it.

    An event counts in its period if it comes up to so long after the period's end; later events become notes. The
    journal's first event sets it, before the first run; without one it is 3 days.
    """
    from stateside.billing.model import DAY_US, days, lateness_in_force
    from stateside.billing.operations.publication import set_lateness
    from stateside.core.layout import Layout

    layout = Layout(folder)
    if allowed_days is not None:
        set_lateness(layout, round(allowed_days * DAY_US))
    click.echo(days(lateness_in_force(layout)))


@billing.group()
def plan() -> None:
    """Publish versions of price plans, and list them."""


@plan.command()
@click.argument("file", type=FILE)
@_DIR
def publish(file: Path, folder: Path) -> None:
    """Publish the version of a plan in FILE, a TOML file (docs/billing.md).

    The version must be new and higher than earlier ones, and take effect at least an hour from now, so that every event
    under the version comes after it in the journal. Published versions never change. Publishing the same file again
    changes nothing. Prints the receipt.
    """
    from stateside.billing.operations.publication import publish as publish_version
    from stateside.billing.plans.file import parse_plan

    version = parse_plan(file.read_bytes(), str(file))
    published = publish_version(_layout(folder), version)
    if published.receipt is None:
        click.echo(f"{version.id} was published before, just like this: nothing to do.", err=True)
        return
    click.echo(f"{version.id} is published.", err=True)
    click.echo(str(published.receipt))


@plan.command(name="list")
@_DIR
@click.option("--json", "as_json", is_flag=True, help="For machines, with all prices.")
def list_plans(folder: Path, as_json: bool) -> None:
    """List the published versions of all plans, with the time from which each is in effect."""
    from stateside.billing.book.book import current_book

    versions = sorted(current_book(_layout(folder)).plans.values(), key=lambda version: (version.plan, version.version))
    content = {"plans": [version.as_payload() for version in versions]}
    click.echo(json.dumps(content, indent=2) if as_json else plans_text(versions))


@billing.command()
@click.argument("customer")
@click.argument("plan")
@_DIR
@click.option("--effective", metavar="TIME", help="From this time on, like 2026-02-01T00:00:00Z.")
@click.option("--holder", metavar="NAME", help="The name on the bill.")
def assign(customer: str, plan: str, folder: Path, effective: str | None, holder: str | None) -> None:
    """Assign a CUSTOMER to a PLAN, by its name without a version.

    A customer's first assignment may take effect at any time, now by default. A change of plan takes effect at least an
    hour from now, which is also its default; the bill then has lines of both plans. Prints the receipt.
    """
    from stateside.billing.operations.publication import assign as assign_customer
    from stateside.serving.stamp import iso_time, parse_time

    try:
        effective_us = None if effective is None else parse_time(effective)
    except ValueError:
        raise RequestInvalid(f"{effective!r} is no time", next_step="Write it like 2026-02-01T00:00:00Z") from None
    done = assign_customer(_layout(folder), customer, plan, effective_us, holder=holder)
    click.echo(f"{customer} is on the plan {plan} from {iso_time(done.effective_us)} on.", err=True)
    click.echo(str(done.receipt))


@billing.group(name="dead-letters")
def dead_letters() -> None:
    """Show events that break a rule, and replay repaired ones."""


@dead_letters.command(name="list")
@click.option("--reason", metavar="REASON", help="Only those with this reason, like unknown-customer.")
@_paged
def list_dead_letters(reason: str | None, ask: Ask) -> None:
    """List dead letters in the journal's order, with counts by reason."""
    ask("/v1/dead-letters", dead_letters_text, reason=reason)


@dead_letters.command()
@click.argument("offset", type=click.IntRange(0))
@floored
def show(offset: int, url: Sequence[str], min_position: str | None, **floor: int | None) -> None:
    """Show the dead letter at an OFFSET of the journal, with the reason and its whole payload, as JSON."""
    answer = _ask(url, f"/v1/dead-letters/{offset}", floor_of(min_position, floor))
    click.echo(json.dumps(answer["dead_letter"], indent=2))


@dead_letters.command()
@click.argument("offset", type=click.IntRange(0), required=False)
@_DIR
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Repair it: quantity=5, customer=emma, …")
@click.option("--all", "all_", is_flag=True, help="All of one --reason.")
@click.option("--reason", metavar="REASON", help="With --all: which ones.")
def replay(offset: int | None, folder: Path, changes: tuple[str, ...], all_: bool, reason: str | None) -> None:
    """Append the event of the dead letter at OFFSET again, repaired; or with --all all of one --reason.

    The new event has the id `replay/OFFSET`, and is stored once, however often you run the command. If an event would
    be a dead letter again, it is refused, and nothing is appended. If its period is closed by now, the event leads to a
    note. Prints the receipt.
    """
    from stateside.billing.answers.letters import letters_to_replay, parse_changes
    from stateside.billing.answers.letters import replay as replay_letters

    if all_ != (offset is None) or all_ != (reason is not None):
        raise RequestInvalid("Name either one OFFSET, or --all with a --reason")
    layout = _layout(folder)
    done = replay_letters(layout, letters_to_replay(layout, offset, reason), parse_changes(changes))
    click.echo(f"{done.appended:,} replayed, {done.already:,} were replayed before.", err=True)
    click.echo(str(done.receipt))


@billing.command()
@_DIR
@click.option("--to", "url", required=True, metavar="URL", help="The endpoint, like https://host/invoices.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Sent along; env:NAME keeps it secret.")
@click.option("--name", default="default", show_default=True, help="One for each endpoint: what it has, is kept by it.")
@click.option("--once", is_flag=True, help="End when all documents that there are now are delivered.")
def deliver(folder: Path, url: str, headers: tuple[str, ...], name: str, once: bool) -> None:
    """Deliver invoices and notes to an HTTP endpoint, until Ctrl-C or SIGTERM.

    Each document is a JSON body in a POST request of its own, in order of the numbers, with the number as the header
    Idempotency-Key. An endpoint that remembers these keys gets each document exactly once. While the endpoint is away,
    delivery waits, and then continues where it stopped, also after a restart. Secrets: --header
    Authorization=env:MY_SECRET.
    """
    from stateside.billing.answers.document_store import DocumentStore
    from stateside.billing.operations.delivery import DocumentDelivery, mark_of, only_one, take_over
    from stateside.pipeline.sinks.http import open_endpoint

    layout = _layout(folder)
    if not name.isidentifier():
        raise RequestInvalid(f"{name!r} is no name for a delivery", next_step="Use letters, digits and underscores")
    mark = mark_of(layout, name)
    endpoint = open_endpoint(url, _pairs(headers))
    with only_one(mark):
        take_over(layout, name)
        delivery = DocumentDelivery(
            DocumentStore.of(layout), endpoint, mark, told=lambda text: click.echo(text, err=True)
        )
        try:
            if once:
                delivery.step()
            else:
                delivery.run(_stop_signal().wait)
        finally:
            click.echo(f"{delivery.count:,} documents delivered.", err=True)


def _stop_signal() -> threading.Event:
    """An event set by SIGTERM; Ctrl-C interrupts by itself."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if not all(equals and name for name, equals, _ in pairs):
        raise RequestInvalid("A --header is not NAME=VALUE", next_step="Write it like Authorization=env:MY_SECRET")
    return {name: value for name, _, value in pairs}


def _layout(folder: Path) -> Layout:
    """The application's folder, which exists."""
    from stateside.core.layout import Layout

    if not folder.is_dir():
        raise RequestInvalid(f"There is no folder {folder}", next_step="Name the --dir of the application")
    return Layout(folder)


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--url", help="Ask this server for a sample of live answers too, like http://127.0.0.1:8471.")
@click.option("--full", is_flag=True, help="Read the whole journal again, whatever was audited before.")
def audit(folder: Path, as_json: bool, url: str | None, full: bool) -> None:
    """Recompute every bill of the application in DIR from its journal, and compare with all stored results.

    The audit proves that open bills, invoices, notes, dead letters and duplicates account for the journal's events, to
    the micro, and that no document is missing, doubled or wrong. An audit may run beside the system at any time, and
    resumes where the last audit ended. The exit code is 1 if anything is wrong, with the first differences as
    sentences.
    """
    from stateside.billing.audit import audit as run_audit
    from stateside.billing.audit import live_rows
    from stateside.core.layout import Layout

    layout = Layout(folder.absolute())
    with bar("folding the journal") as watch:
        if url is None:
            found = run_audit(layout, live_rows(layout), full=full, watch=watch)
        else:
            with client_of((url,)) as client:
                found = run_audit(
                    layout,
                    live_rows(layout),
                    ask=lambda customer, floor: dict(client.rows("bill", customer, min_position=floor).document),
                    get=lambda path, floor: client.get(path, min_position=str(floor)),
                    full=full,
                    watch=watch,
                )
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else "\n".join(found.lines()))
    sys.exit(0 if found.ok else 1)


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
