"""Commands for an application's folder: create, run, advise, check, apply, append, dead letters; demo and doctor."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside.cli.group import FILE, FOLDER, PORT
from stateside.cli.kafka import journal_at, kafka_option
from stateside.cli.tables import show_json, show_result
from stateside.core.errors import RequestInvalid, SettingInvalid

if TYPE_CHECKING:
    from stateside.journal import Writer
    from stateside.pipeline.app import App
    from stateside.pipeline.foreground import Teller
    from stateside.pipeline.settings import RunSettings
    from stateside.testbed.run_folder import ReportFile
    from stateside.testbed.system import JournalKind


@click.command()
@click.option("--live", is_flag=True, help="Go on until Ctrl-C or q, to watch and to break: parts are killed by a key.")
@click.option(
    "--seconds",
    type=click.FloatRange(5, 86_400),
    help="How long events flow; longer where Spark is slow.  [default: 45; --live: until stopped]",
)
@click.option(
    "--customers", type=click.IntRange(1, 1_000_000), help="How many there are.  [default: 1,000; --live: 300]"
)
@click.option("--seed", default=1, show_default=True, help="Another seed makes other events.")
@click.option("--dir", "folder", type=FOLDER, help="Keep everything here, or go on with what is here.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report here too.")
@click.option("--keep", is_flag=True, help="Go on serving after the report, until Ctrl-C.")
@click.option(
    "--journal",
    default="files",
    show_default=True,
    type=click.Choice(["files", "kafka"]),
    help="Where events are: in files, or on a Kafka broker that is started for it.",
)
@click.option("--cluster", is_flag=True, help="Run Spark on a cluster of two masters and two workers, started for it.")
@click.option(
    "--month", "month_s", default=30.0, show_default=True, type=click.FloatRange(5), help="Live: its seconds."
)
@click.option("--small", is_flag=True, help="Live: one server and 50 customers, for a small machine.")
@click.option("--port", type=click.IntRange(1, 65_535), help="Live: of the pages; by default a free one.")
@click.option("--no-browser", is_flag=True, help="Live: do not open the page in a browser.")
def demo(
    live: bool,
    seconds: float | None,
    customers: int | None,
    seed: int,
    folder: Path | None,
    json_file: Path | None,
    keep: bool,
    journal: JournalKind,
    cluster: bool,
    **of_live: Any,
) -> None:
    """Run the whole system on this machine and prove that every sum is right.

    Customers telephone through compressed months; their events go into a journal, Spark folds them into running bills,
    a replica serves the bills while a client keeps asking, and closed months become invoices. Some events come too late
    and become notes, some come twice and count once, some are bad and become dead letters. At the end everything is
    recomputed from the journal. The exit code is 1 if any sum is off or any request failed.

    With --live the months go on until Ctrl-C. The first line is the address of the pages; a key, or a button on the
    page, kills Spark's driver, a replica, a worker or the broker, pauses Spark, or takes the invoice store away and
    brings it back. The auditor judges every month.
    """
    from rich.console import Console

    from stateside.testbed.demo import DemoSettings, run_demo
    from stateside.testbed.run_folder import ReportFile

    report_file = ReportFile(json_file) if json_file else None
    if live:
        shape: dict[str, Any] = {"seed": seed, "journal": journal, "cluster": cluster, "end_s": seconds}
        sys.exit(_run_live(customers, folder, report_file, **shape, **of_live))
    settings = DemoSettings(
        seconds=seconds or 45.0, customers=customers or 1_000, seed=seed, journal=journal, cluster=cluster
    )
    report = run_demo(settings, folder, Console(), report_file=report_file, keep=keep)
    sys.exit(0 if report.ok else 1)


def _run_live(
    customers: int | None,
    folder: Path | None,
    report_file: ReportFile | None,
    *,
    small: bool,
    no_browser: bool,
    **settings: Any,
) -> int:
    from rich.console import Console

    from stateside.testbed.live import LiveSettings, run_live

    chosen = LiveSettings(
        customers=customers or (50 if small else 300), servers=1 if small else 2, browser=not no_browser, **settings
    )
    return 0 if run_live(chosen, folder, Console(), report_file).ok else 1


def _setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each setting in `pipeline.settings`."""
    from stateside.pipeline.settings import flag, table

    for entry in reversed(list(table())):
        if entry.name == "spark":
            command = click.option("--spark", multiple=True, metavar="NAME=VALUE", help=entry.metadata["help"])(command)
        elif isinstance(entry.default, bool):
            command = click.option(flag(entry), is_flag=True, default=None, help=entry.metadata["help"])(command)
        else:
            kind = click.Choice(entry.metadata["choices"]) if entry.metadata["choices"] else type(entry.default)
            shown = f"{entry.metadata['help']}  [default: {entry.default}]"
            command = click.option(flag(entry), type=kind, help=shown)(command)
    return command


_CONFIG = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings: this file, not stateside.toml."
)


@click.command()
@click.argument("target")
@click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="A JSON line on stdout for each batch and change of state.")
@_setting_flags
def run(target: str, folder: Path, config: Path | None, as_json: bool, spark: tuple[str, ...], **flags: Any) -> None:
    """Run an application's views on Spark, until Ctrl-C or SIGTERM.

    TARGET names the application like `shop:app`. The run resumes at its last committed batch, and stops after the
    running batch. Settings come from the application, then from stateside.toml, then from flags; docs/settings.md lists
    them. The exit code is 3 if another run would fail in the same way, and something needs to be mended first.
    """
    click.echo(f"Starting Spark for {target} in {folder} …", err=True)
    from stateside.core.layout import Layout

    if Layout(folder).pointed() is not None:
        raise RequestInvalid(
            f"The folder {folder} serves a checkpoint that is not this application's", next_step="Give another --dir"
        )

    from stateside.pipeline import foreground

    app, settings = _loaded(target, config, spark, flags)
    if told := settings.profile_sentence():
        click.echo(told, err=True)
    with _telling(f"{app.name} in {folder}; Ctrl-C stops it", as_json) as teller:
        foreground.run_application(app, folder.absolute(), settings, teller)


def _loaded(
    target: str, config: Path | None, spark: tuple[str, ...], flags: Mapping[str, Any]
) -> tuple[App, RunSettings]:
    """The application, and its settings with these flags."""
    from stateside.pipeline import foreground
    from stateside.pipeline.app import load

    if not sys.flags.safe_path:
        sys.path.insert(0, "")
    app = load(target)
    given = {name: value for name, value in flags.items() if value is not None}
    return app, foreground.gather_settings(app, config, given | ({"spark": _pairs(spark)} if spark else {}))


@contextmanager
def _telling(title: str, as_json: bool) -> Iterator[Teller]:
    """Where a run reports to: a live table on a terminal, or lines."""
    from rich.console import Console

    from stateside.pipeline import foreground

    console = Console(stderr=True)
    if as_json:
        yield foreground.LinesForMachines(sys.stdout)
    elif console.is_terminal:
        with foreground.LiveTable(console, title).shown() as live:
            yield live
    else:
        yield foreground.LinesForPeople(sys.stderr)


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise SettingInvalid(f"{text!r} is no setting of Spark's", next_step="Write --spark spark.name=value")
    return dict(text.split("=", 1) for text in texts)


_DIR = click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
_VIEW = click.option("--view", "name", required=True, metavar="VIEW", help="The view.")


@click.command()
@click.argument("target")
@click.option("--dir", "folder", type=FOLDER, help="Compare with what runs in this folder.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def check(target: str, folder: Path | None, as_json: bool) -> None:
    """Compare an application with its folder: what continues, what has to be folded again, and at which cost.

    TARGET names the application like `shop:app`. Without --dir: whether the application loads and all its views can be
    planned. Spark is started only where kind, key and source do not show the difference. The exit code is 1 if `run`
    would refuse the application.
    """
    from stateside.core.layout import Layout
    from stateside.pipeline import comparison
    from stateside.pipeline.apply import compared

    app, settings = _loaded(target, None, (), {})
    found = compared(app, settings, folder and folder.absolute())
    click.echo(json.dumps(comparison.as_json(found), indent=2) if as_json else comparison.table(found))
    if folder is not None and not as_json and any(each.refused or each.was for each in found):
        click.echo(f"To make these changes while the old rows are served:\n  {comparison.command(app, Layout(folder))}")
    sys.exit(1 if any(each.refused for each in found) else 0)


@click.command()
@click.argument("target")
@_DIR
@click.option("--view", "views", multiple=True, metavar="VIEW", help="Only the changes of this view; several times.")
@click.option("--refold", multiple=True, metavar="VIEW", help="Fold this view again although it did not change.")
@click.option("--exit", "exit_", is_flag=True, help="End after the switch, even if a job was running before.")
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="A JSON line on stdout for each batch and change of state.")
@_setting_flags
def apply(
    target: str,
    folder: Path,
    views: tuple[str, ...],
    refold: tuple[str, ...],
    exit_: bool,
    config: Path | None,
    as_json: bool,
    spark: tuple[str, ...],
    **flags: Any,
) -> None:
    """Make the changes that `stateside check` shows, while the old rows are served.

    Each changed view is folded again from its source, beside the old one, and takes its place at one moment for all
    servers. A job that runs in this folder goes on meanwhile, and hands over at the end: then this command goes on as
    the run of the changed application. If it is ended before, repeat it: it resumes where it was.
    """
    from stateside.pipeline.apply import ChangeSelection
    from stateside.pipeline.apply import apply as make

    app, settings = _loaded(target, config, spark, flags)
    click.echo(f"Starting Spark to change {target} in {folder} …", err=True)
    with _telling(f"{app.name} in {folder}; Ctrl-C stops it", as_json) as teller:
        make(app, folder.absolute(), settings, teller, ChangeSelection(views, refold, exit_))


@click.command()
@_DIR
@click.option("--partitions", required=True, type=click.IntRange(min=1), help="How many the state has afterwards.")
@click.option("--view", "views", multiple=True, metavar="VIEW", help="Only this view; several times.")
@click.option("--master", help="Where Spark runs, as for `run`.")
@click.option("--driver-memory", help="The memory of Spark's driver, as for `run`.")
def rescale(
    folder: Path, partitions: int, views: tuple[str, ...], master: str | None, driver_memory: str | None
) -> None:
    """Bring the state of views to another number of partitions. The job must be stopped.

    Spark repartitions a copy of each state; all rows are compared, then the copies are served, and runs go on with
    them. The generations before are kept. If the command is ended before, nothing was changed: repeat it.
    """
    from stateside.pipeline.rescale import rescale as bring
    from stateside.pipeline.settings import RunSettings

    given = {"master": master, "driver_memory": driver_memory}
    layer = {name: value for name, value in given.items() if value is not None}
    settings = RunSettings.of(("on the command line", layer))
    told = bring(folder.absolute(), partitions, views, settings=settings, note=lambda text: click.echo(text, err=True))
    for each in told:
        click.echo(str(each))
    if not told:
        click.echo(f"Every state has {partitions} partitions already.")


@click.command()
@_DIR
@_VIEW
def rollback(folder: Path, name: str) -> None:
    """Go back to the generation of a view that was served before its last change. The job must be stopped.

    Its rows are those of the switch, until the application that folded it runs again. To go back while the job runs,
    apply the old application.
    """
    from stateside.core.layout import Layout
    from stateside.views.view_generations import roll_back

    generation = roll_back(Layout(folder), name)
    click.echo(f"{name}: generation {generation.number} is served again. Run the application that it belongs to.")


@click.command(name="drop-generation")
@_DIR
@_VIEW
def drop_generation(folder: Path, name: str) -> None:
    """Delete the kept generations of a view, and one whose filling was given up.

    Of a view that the application no longer declares, all generations are deleted.
    """
    from stateside.core.layout import Layout
    from stateside.views.view_generations import drop

    click.echo(f"{drop(Layout(folder), name):,} bytes are free again.")


@click.command()
@click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder; made if there is none.")
@kafka_option
@click.option("--node", metavar="NAME", help="Append as this node, to its own log; default: the shared one.")
@click.option("--take-over", is_flag=True, help="Of a node whose owner is paused or away: fence it.")
@click.option("--dead-letters", type=FILE, help="Go on at lines that are refused, and add them here with the reason.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt and the counts as a JSON object.")
@click.argument("lines", metavar="[FILE]", type=click.File("rb"), default="-")
def append(
    folder: Path,
    kafka: str | None,
    node: str | None,
    take_over: bool,
    dead_letters: Path | None,
    as_json: bool,
    lines: Any,
) -> None:
    """Append events to an application's journal: JSON lines from FILE, or from standard input.

    \b
    {"entity": "emma", "type": "call", "payload": {"seconds": 61}}
    {"id": "c-2", "entity": "ben", "type": "call", "time": "2026-01-31T12:00:00Z", "tags": ["night"]}

    entity and type are required. The default id is random, the default time the present, the default payload empty.
    Lines are appended as they come in, in order, beside other producers and the running job.

    Prints the receipt: the position just after the last event, once all are durable. The command stops at a line that
    is no event, or does not fit the fields that the folder's views declare, and reports the line, the reason, and the
    stored events. An event whose id is already stored with the same content is not stored again; a line with the id of
    another event is refused.

    With --kafka this process becomes the owner of the topic, and a previous owner is fenced; the folder holds the
    topic's index. Where the folder's own journal is a topic (docs/cluster.md), writers take turns, as on files.
    """
    from stateside.core.layout import Layout
    from stateside.journal.json_lines import Intake
    from stateside.journal.payload import DeclaredFields

    if lines.isatty():
        click.echo("Reading events from the terminal, a JSON object a line. Ctrl-D ends.", err=True)
    if (take_over and node is None) or (node and kafka):
        raise SettingInvalid(
            "There is no such writer",
            next_step="--take-over goes with --node NAME, and --node without --kafka: there it takes over by itself",
        )
    with _writer(folder, kafka, node, take_over) as writer:
        intake = Intake(writer, dead_letters, fields=DeclaredFields(Layout(folder).fields))
        try:
            intake.take(lines)
        finally:
            counts = f"{intake.stored:,} events stored, {intake.repeated:,} repeated, {intake.refused:,} lines refused"
            click.echo(counts, err=True)
        told = {"receipt": str(intake.receipt), "stored": intake.stored, "repeated": intake.repeated}
        show_result(told | {"refused": intake.refused}, str(intake.receipt), as_json)


def _writer(folder: Path, kafka: str | None, node: str | None, take_over: bool) -> Writer:
    from stateside.core.layout import Layout
    from stateside.journal import open_journal
    from stateside.journal.backends.nodes import MergedJournal

    if kafka is not None:
        return journal_at(folder, kafka).writer()
    journal = open_journal(Layout(folder).journal, node=node)
    return journal.writer(take_over=take_over) if isinstance(journal, MergedJournal) else journal.writer()


@click.command(name="dead-letters")
@click.option("--dir", "folder", required=True, type=FOLDER, help="The application's folder.")
@click.option("--view", help="Only those of this view.")
@click.option("--json", "as_json", is_flag=True, help="A JSON line each, with the whole event.")
def dead_letters(folder: Path, view: str | None, as_json: bool) -> None:
    """List the events that did not reach a view, with the reason, in order of position.

    With --json each line has the event in the form of `stateside append`: mend the event, give it a new id, and append
    it. Billing's dead letters have commands of their own: `stateside billing dead-letters`.
    """
    from stateside.core.layout import Layout
    from stateside.pipeline.dead_letters import stored_letters

    for letter in stored_letters(Layout(folder), view):
        position = f"{letter['partition']}:{letter['offset']}"
        if as_json:
            told = {"position": position, **{name: letter[name] for name in ("view", "reason", "detail")}}
            show_json(told | {"event": event_or_text(letter["event"])}, lines=True)
        else:
            said = f"{letter['entity'] or '-'} {letter['type'] or '-'} {letter['id'] or '-'}"
            click.echo(f"{position:>12}  {letter['view']}  {said}  {letter['reason']}: {letter['detail']}")


def event_or_text(text: str | None) -> Any:
    """A dead letter's event; for a Kafka message that is no JSON, its text."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


@click.command()
@click.argument("name")
def new(name: str) -> None:
    """Create a small project: a view, a test that passes, sample events, settings and a README.

    NAME is the folder's and the module's name.
    """
    from stateside.ops.project import make_project

    folder = make_project(name, Path.cwd())
    click.echo(f"Made {folder.relative_to(Path.cwd())}/. Its README.md says how to test, run and ask it.")


@click.command()
@click.option("--dir", "folder", default=".", type=FOLDER, help="The folder that you mean to work in.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(folder: Path, as_json: bool) -> None:
    """Check this machine against Stateside's requirements, and report how to mend what is missing."""
    from stateside.ops import doctor as examination

    findings = examination.diagnose(folder, PORT)
    click.echo(json.dumps(examination.as_json(findings), indent=2) if as_json else examination.render(findings))
    sys.exit(0 if all(finding.ok for finding in findings) else 1)


@click.command(hidden=True)  # until `make bench ARGS=advise` has shown that the advice wins
@click.argument("checkpoint", required=False)
@click.option("--dir", "folder", type=FOLDER, help="Measure the views of this application's folder.")
@click.option("--keys", type=int, help="Instead of measuring: how many keys the state has,")
@click.option("--row-bytes", type=float, help="…the bytes of a key and its value,")
@click.option("--updates-per-s", type=float, help="…and the keys changed in a second, each once a batch.")
@click.option("--memory", metavar="SIZE", help="The memory of Spark's machine, like 8g.  [default: that of this one]")
@click.option("--cores", type=int, help="The cores of Spark.  [default: those of this machine]")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def advise(
    checkpoint: str | None,
    folder: Path | None,
    keys: int | None,
    row_bytes: float | None,
    updates_per_s: float | None,
    memory: str | None,
    cores: int | None,
    as_json: bool,
) -> None:
    """Advise on state store, partitions, memory, snapshots and batches, with the reasons and the settings.

    The figures are measured, without Spark, in an application's --dir or in the CHECKPOINT of any query, running or
    ended, or given: --keys, --row-bytes and --updates-per-s. docs/tuning.md has the rules.
    """
    from stateside.ops import advise as advising

    memory_bytes = None if memory is None else advising.parse_size(memory)
    match checkpoint, folder, keys, row_bytes, updates_per_s:
        case str(), None, None, None, None:
            measured = advising.measure_checkpoint(checkpoint, memory_bytes, cores)
        case None, Path(), None, None, None:
            measured = advising.measure_folder(folder.absolute(), memory_bytes, cores)
        case None, None, int(), float(), float():
            measured = advising.given(keys, row_bytes, updates_per_s, memory_bytes, cores)
        case _:
            raise RequestInvalid(
                "There is nothing to advise on, or more than one thing",
                next_step="Name a CHECKPOINT, or a --dir, or all of --keys, --row-bytes and --updates-per-s",
            )
    advice = advising.advise(measured)
    show_result(advising.as_json(advice), advising.render(advice, foreign=checkpoint is not None), as_json)
