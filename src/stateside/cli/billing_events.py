"""`stateside billing generate` and `clock`: events that no customer makes."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import click

from stateside.cli.group import FOLDER
from stateside.errors import RequestInvalid

_SHARE = click.FloatRange(0, 1)


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
    """Generate customers who telephone, with their plans, into a journal, files or Kafka; say what must come out.

    The same settings make the same events. In every period of every customer, what counts adds up to the same even
    amount, whatever comes late, twice or broken: a wrong bill shows at once. `stateside audit` proves the rest.
    """
    from stateside.billing.generator import Generator, Shares
    from stateside.billing.generator import generate as generate_events
    from stateside.billing.generator.writing import to_files, to_journal, to_kafka
    from stateside.layout import Layout

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
    """What must come out, for people."""
    from stateside.billing.money import format_micros
    from stateside.cli.billing_tables import columns

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
@click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
def clock(folder: Path) -> None:
    """Do what nobody does but time itself, until Ctrl-C or SIGTERM: recurring fees, and ticks that close periods.

    Run it beside the pipeline. A tick lets periods close on time although nobody uses anything. Every fee and tick is
    in the journal once, however often this is stopped, killed or started twice.
    """
    from stateside.billing.upkeep.clockwork import run_clock
    from stateside.clock import SystemClock
    from stateside.layout import Layout

    if not folder.is_dir():
        raise RequestInvalid(f"There is no folder {folder}", next_step="Name the --dir of the application")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    click.echo(f"The clock of {folder} runs.", err=True)
    run_clock(Layout(folder), SystemClock(), stop)
