"""`stateside chaos`: injects faults into the whole system, and audits the outcome."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stateside.cli.group import FILE, FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stateside.testbed.chaos import ChaosSettings
    from stateside.testbed.chaos_report import ChaosReport, Result
    from stateside.testbed.scenarios import ChaosScenario
    from stateside.testbed.system import Guarantee

LOG_CHARS = 160


@click.command()
@click.argument("scenarios", metavar="[SCENARIO]...", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="All scenarios, one after the other.")
@click.option(
    "--seconds",
    default=30.0,
    show_default=True,
    type=click.FloatRange(5, 3_600),
    help="How long events flow, for each fault; a scenario takes about twice as long.",
)
@click.option(
    "--seed", default=1, show_default=True, help="Another seed makes other events, and at-random other faults."
)
@click.option("--customers", default=60, show_default=True, type=click.IntRange(1, 100_000), help="How many there are.")
@click.option("--json", "json_file", type=FILE, help="Write the report here too.")
@click.option(
    "--guarantee",
    default="exactly-once",
    show_default=True,
    type=click.Choice(["exactly-once", "at-least-once"]),
    help="at-least-once is the control: it must report doubles.",
)
@click.option("--dir", "folder", type=FOLDER, help="Keep everything in this new folder, to look into.")
@click.option("--list", "list_", is_flag=True, help="List the scenarios.")
def chaos(
    scenarios: tuple[str, ...],
    all_: bool,
    seconds: float,
    seed: int,
    customers: int,
    json_file: Path | None,
    guarantee: Guarantee,
    folder: Path | None,
    list_: bool,
) -> None:
    """Run the whole system under load, inject faults, and prove that nothing is lost and nothing doubled.

    SCENARIO is one of the names that --list shows, like driver-killed or invoice-store-away. Each scenario runs the
    billing application as real processes, with a client that keeps asking, injects the fault, heals it, waits until all
    is done, and has every bill recomputed. The exit code is 1 if anything is lost, doubled or uneven, or any request
    failed. docs/crash-matrix.md has the measurements.
    """
    from stateside.testbed.chaos import ChaosSettings
    from stateside.testbed.scenarios import chosen, described

    if list_:
        click.echo("\n".join(described()))
        return
    wanted = chosen(scenarios, all_=all_, seed=seed, guarantee=guarantee)
    report = _run(wanted, ChaosSettings(seconds, customers, seed, guarantee), folder, json_file)
    sys.exit(0 if report.ok else 1)


def _run(
    wanted: Sequence[ChaosScenario], settings: ChaosSettings, folder: Path | None, json_file: Path | None
) -> ChaosReport:
    """Run the scenarios, and show and write the report; the file grows with each scenario."""
    from rich.console import Console

    from stateside.testbed.chaos import run_scenarios
    from stateside.testbed.chaos_report import ChaosReport
    from stateside.testbed.run_folder import ReportFile

    report_file = ReportFile(json_file) if json_file else None
    if report_file:
        report_file.clear()
    console = Console()
    if not console.is_terminal:  # wide enough for a log or a pipe
        console = Console(width=LOG_CHARS)
    date = datetime.now(UTC).date().isoformat()

    def report_of(results: Sequence[Result]) -> ChaosReport:
        to_come = tuple(scenario.name for scenario in wanted[len(results) :])
        return ChaosReport(settings.guarantee, settings.seed, settings.seconds, date, tuple(results), to_come)

    def so_far(results: Sequence[Result]) -> None:
        if report_file:
            report_file.write_so_far(report_of(results))

    report = report_of(run_scenarios(wanted, settings, folder, console, so_far))
    report.show(console)
    if report_file:
        report_file.write(report)
    return report
