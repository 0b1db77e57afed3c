"""The command line: thin. It parses, calls, prints."""

from __future__ import annotations

import errno
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside import __version__
from stateside.errors import InputError, RequestInvalid, SettingInvalid, SetupError, StatesideError, ViewBroken
from stateside.processes import EXIT_FINAL

if TYPE_CHECKING:
    from stateside.replica.share import Share

PORT = 8471
_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


class _Group(click.Group):
    """Shows an error as one sentence, without a stack trace (unless --verbose), and Ctrl-C as `Stopped.`."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StatesideError as error:
            final = ctx.invoked_subcommand == "run" and isinstance(error, InputError | SetupError | ViewBroken)
            raise _failure(ctx, str(error), final=final) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # click ends quietly if nobody reads on
                raise
            raise _failure(ctx, _sentence(error)) from error
        except KeyboardInterrupt:
            click.echo("Stopped.", err=True)
            sys.exit(130)


class _FinalFailure(click.ClickException):
    """A failure that would come again in the same way; supervisors tell it by its exit code."""

    exit_code = EXIT_FINAL


def _failure(ctx: click.Context, sentence: str, *, final: bool = False) -> click.ClickException:
    """What click shows as one line. Called while an error is handled, which --verbose shows in full."""
    if ctx.params.get("verbose"):
        traceback.print_exc()
    return _FinalFailure(sentence) if final else click.ClickException(sentence)


def _sentence(error: OSError) -> str:
    """An error of the operating system for people: the file that it is about, and what is wrong with it."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}." if error.filename else f"{reason}."


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--verbose", is_flag=True, help="Log more, and show where an error came from.")
def main(verbose: bool) -> None:
    """The stream processor as a database, on Spark.

    Try `stateside demo` first: the whole system, for a minute, on this machine.
    """
    handler = logging.StreamHandler(sys.stderr)
    if not verbose:  # what stack traces of Java tell, the runner says in a sentence; py4j has the root logger tell some
        handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler])


@main.command()
@click.option(
    "--seconds", default=45.0, show_default=True, type=click.FloatRange(5, 86_400), help="How long events flow."
)
@click.option(
    "--customers", default=1_000, show_default=True, type=click.IntRange(1, 1_000_000), help="How many there are."
)
@click.option("--seed", default=1, show_default=True, help="Another seed makes other events.")
@click.option("--dir", "folder", type=_FOLDER, help="Keep everything here, or go on with what is here.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report here too.")
@click.option("--keep", is_flag=True, help="Go on serving after the report, until Ctrl-C.")
def demo(seconds: float, customers: int, seed: int, folder: Path | None, json_file: Path | None, keep: bool) -> None:
    """Run the whole system on this machine and prove that every sum is right.

    Customers telephone through compressed months; their events go into a journal, Spark folds them into running bills,
    a replica serves these while a client keeps asking, and closed months become invoices. At the end everything is
    recomputed from the journal. The exit code is 1 if any sum is off or any request failed.
    """
    from rich.console import Console

    from stateside.ops.demo.report import ReportFile
    from stateside.ops.demo.run import DemoSettings, run_demo

    settings = DemoSettings(seconds=seconds, customers=customers, seed=seed)
    report_file = ReportFile(json_file) if json_file else None
    report = run_demo(settings, folder, Console(), report_file=report_file, keep=keep)
    sys.exit(0 if report.ok else 1)


def _setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each setting of the table in `pipeline.settings`."""
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


@main.command()
@click.argument("target")
@click.option("--dir", "folder", required=True, type=_FOLDER, help="The application's folder.")
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings: this file, not stateside.toml."
)
@click.option("--json", "as_json", is_flag=True, help="A JSON line on stdout for each batch and change of state.")
@_setting_flags
def run(target: str, folder: Path, config: Path | None, as_json: bool, spark: tuple[str, ...], **flags: Any) -> None:
    """Run an application's views on Spark, until Ctrl-C or SIGTERM.

    TARGET names the application like `shop:app`. It resumes at its last committed batch, and stops after the one that
    is running. Settings come from the application, then from stateside.toml, then from flags; docs/settings.md has
    them all. The exit code is 3 if it would fail again in the same way: something needs to be mended first.
    """
    click.echo(f"Starting Spark for {target} in {folder} …", err=True)
    from rich.console import Console

    from stateside.layout import Layout

    if Layout(folder).pointed() is not None:
        raise RequestInvalid(
            f"The folder {folder} serves a checkpoint that is not this application's", next_step="Give another --dir"
        )

    from stateside.pipeline import foreground
    from stateside.pipeline.app import load

    sys.path.insert(0, "")
    app = load(target)
    given = {name: value for name, value in flags.items() if value is not None}
    settings = foreground.gather_settings(app, config, given | ({"spark": _pairs(spark)} if spark else {}))
    console = Console(stderr=True)
    if as_json:
        foreground.run_application(app, folder.absolute(), settings, foreground.LinesForMachines(sys.stdout))
    elif console.is_terminal:
        with foreground.LiveTable(console, f"{app.name} in {folder}; Ctrl-C stops it").shown() as live:
            foreground.run_application(app, folder.absolute(), settings, live)
    else:
        foreground.run_application(app, folder.absolute(), settings, foreground.LinesForPeople(sys.stderr))


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise SettingInvalid(f"{text!r} is no setting of Spark's", next_step="Write --spark spark.name=value")
    return dict(text.split("=", 1) for text in texts)


@main.command()
@click.argument("checkpoint", required=False)
@click.option(
    "--dir", "folder", type=_FOLDER, help="The application's folder; of a CHECKPOINT: where its replicas lie."
)
@click.option("--declare", type=_FILE, help="What there is to know of a CHECKPOINT's views, in TOML: docs/serve.md.")
@click.option("--wait", is_flag=True, help="Wait for a CHECKPOINT that is not there yet.")
@click.option("--share", metavar="I/N", help="Hold this share of the keys only, like 1/4.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65_535), help="0: any free one.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes that answer.")
def serve(
    checkpoint: str | None,
    folder: Path | None,
    declare: Path | None,
    wait: bool,
    share: str | None,
    port: int,
    workers: int,
) -> None:
    """Serve views over HTTP on the loopback interface, until Ctrl-C or SIGTERM.

    With --dir alone it serves an application's views. With CHECKPOINT, a path or a URI, it serves the state of any
    Structured Streaming query, whoever wrote it, while it runs or after: the query needs no change, and nothing is ever
    written to its checkpoint. Replicas lie in --dir, or in a folder of this user's that is printed.

    It follows Spark's checkpoints and needs neither Spark nor Java; it answers while the job is down. With --share 1/4
    it holds one of four shares of the keys, by their first column; all four together hold every row once.
    """
    from stateside.layout import Layout
    from stateside.processes import free_port
    from stateside.replica.share import Share
    from stateside.serving.server import serve as serve_folder

    own = None if share is None else Share.parse(share)
    if checkpoint is None and folder is None:
        raise RequestInvalid(
            "There is nothing to serve", next_step="Name a query's CHECKPOINT, or an application's --dir"
        )
    pointed = None if folder is None else Layout(folder).pointed()
    port = port or free_port()
    if checkpoint is not None or pointed is not None:
        _serve_checkpoint(checkpoint or str(pointed), folder, declare, wait, own, port=port, workers=workers)
        return
    assert folder is not None, "or there is a checkpoint"
    if declare is not None or wait:
        flag = "--wait" if wait else "--declare"
        raise RequestInvalid(
            f"{flag} is for a CHECKPOINT, and none is named", next_step=f"Name it, or leave {flag} out"
        )
    if not folder.is_dir():
        raise RequestInvalid(f"There is no folder {folder}", next_step="Name the --dir that `stateside run` works in")
    told = [f"Serving {folder} at http://127.0.0.1:{port}/v1/views"]
    if not Layout(folder).views():
        told.append("There is no view in it yet: waiting for the first one, which `stateside run` makes")
    with _tailing(own, told) as tailing:
        routes = ["stateside.billing.api:ROUTES"]
        serve_folder(folder.absolute(), port=port, workers=workers, routes=routes, **tailing)


@contextmanager
def _tailing(share: Share | None, told: Sequence[str]) -> Iterator[dict[str, Any]]:
    """How each view is followed: the share of its keys, and the bars that show people how far a load is.

    And the lines that people are told once the server listens, not before.
    """
    from rich.console import Console

    from stateside.serving.bars import LoadBars

    tailing: dict[str, Any] = {"listening": lambda: click.echo("\n".join(told), err=True)}
    tailing |= {} if share is None else {"share": share}
    console = Console(stderr=True)
    if not console.is_terminal:
        yield tailing
        return
    bars = LoadBars(console)
    try:
        yield tailing | {"watch": bars}
    finally:
        bars.close()


def _serve_checkpoint(
    checkpoint: str,
    folder: Path | None,
    declare: Path | None,
    wait: bool,
    share: Share | None,
    *,
    port: int,
    workers: int,
) -> None:
    from stateside.checkpoint.declared import Declarations
    from stateside.serving.foreign import open_foreign
    from stateside.serving.server import serve as serve_folder
    from stateside.serving.told import Told

    declarations = None if declare is None else Declarations.parse(declare.read_bytes(), str(declare))
    foreign = open_foreign(checkpoint, folder, declarations)
    foreign.start(wait=wait)
    root = foreign.layout.root
    told = Told.load(foreign.layout)
    lines = [f"Serving {foreign.location} at http://127.0.0.1:{port}/v1/views, replicas in {root}"]
    lines += [*foreign.described(), *(f"  not served: {each.view}: {each.why}" for each in told.refused)]
    with _tailing(share, [*lines, told.note] if told.note else lines) as tailing:
        serve_folder(root, port=port, workers=workers, foreign=foreign, **tailing)


def _asking(command: Callable[..., None]) -> Callable[..., None]:
    """The flags of every command that asks a server."""
    for option in (
        click.option("--wait-ms", type=click.IntRange(0), help="Wait so long for that; 5,000 by default."),
        click.option("--max-age-ms", type=click.IntRange(0), help="Only if the answer is no older than this."),
        click.option("--min-position", metavar="RECEIPT", help="Only if the answer covers this receipt."),
        click.option("--url", default=f"http://127.0.0.1:{PORT}", show_default=True, help="The server to ask."),
    ):
        command = option(command)
    return command


@main.command()
@click.option("--dir", "folder", required=True, type=_FOLDER, help="The application's folder; made if there is none.")
@click.option(
    "--dead-letters", type=_FILE, help="Go on at lines that are no events, and add them here with the reason."
)
@click.argument("lines", metavar="[FILE]", type=click.File("rb"), default="-")
def append(folder: Path, dead_letters: Path | None, lines: Any) -> None:
    """Append events to an application's journal: JSON lines from FILE, or from standard input.

    \b
    {"entity": "emma", "type": "call", "payload": {"seconds": 61}}
    {"id": "c-2", "entity": "ben", "type": "call", "time": "2026-01-31T12:00:00Z", "tags": ["night"]}

    Needed are entity and type. Without an id an event gets a random one, without a time the present one, without a
    payload an empty one. Lines are appended as they come in, in order, beside other producers and the running job.

    Prints the receipt: the position just after the last event, once all are durable. At a line that is no event it
    stops, and says which one, why, and what is stored. Appending the same lines again stores them again.
    """
    from stateside.journal import JournalWriter
    from stateside.journal.lines import Intake
    from stateside.layout import Layout

    if lines.isatty():
        click.echo("Reading events from the terminal, a JSON object a line. Ctrl-D ends.", err=True)
    with JournalWriter(Layout(folder).journal) as writer:
        intake = Intake(writer, dead_letters)
        try:
            intake.take(lines)
        finally:
            click.echo(f"{intake.stored:,} events stored, {intake.refused:,} lines refused", err=True)
        click.echo(str(intake.receipt))


@main.command()
@click.argument("path")
@_asking
def get(path: str, url: str, min_position: str | None, **floor: int | None) -> None:
    """Ask for a view's rows by key, or by the first parts of one: VIEW/PART/PART…

    Prints the stamped answer as JSON. With a floor (the options) it waits until the answer is as fresh as you ask, and
    never gives less: `--min-position` with an append's receipt reads your own event.
    """
    from stateside.serving.client import Client

    view, *key = path.split("/")
    with Client(url) as client:
        click.echo(json.dumps(client.rows(view, *key, **_floor(min_position, floor)), indent=2))


def _floor(min_position: str | None, floor: dict[str, int | None]) -> dict[str, Any]:
    from stateside.positions import Position

    position = {} if min_position is None else {"min_position": Position.parse(min_position)}
    return position | {name: value for name, value in floor.items() if value is not None}


@main.command(name="sum")
@click.argument("path")
@click.option("--last", metavar="DURATION", help="The last so long: 90s, 15m, 24h, 7d.")
@click.option("--from", "from_time", metavar="TIME", help="From this time on, like 2026-01-31T12:00:00Z.")
@click.option("--to", "to_time", metavar="TIME", help="Up to this time; the newest bucket's end by default.")
@_asking
def sum_(
    path: str,
    last: str | None,
    from_time: str | None,
    to_time: str | None,
    url: str,
    min_position: str | None,
    **floor: int | None,
) -> None:
    """Add up a range of a windowed view's buckets: VIEW/PART…, the key's parts before the window.

    The state holds each event once, in its bucket; this is how a sliding window is asked for. Prints the stamped answer
    as JSON. Times lie on the buckets' borders; any other is refused, never moved.
    """
    from stateside.serving.client import Client

    view, *key = path.split("/")
    with Client(url) as client:
        answer = client.sum(view, *key, last=last, from_time=from_time, to_time=to_time, **_floor(min_position, floor))
    click.echo(json.dumps(answer, indent=2))


@main.command()
@click.argument("view")
@click.argument("columns", default="")
@click.argument("key", default="")
@_asking
def rollup(view: str, columns: str, key: str, url: str, min_position: str | None, **floor: int | None) -> None:
    """Ask for a view's rows added up by some of its key's columns: VIEW COLUMN,COLUMN… PART/PART…

    The view declares which: with rollups=[["country"]] there is `stateside rollup spending country`, a row for each
    country, and `stateside rollup spending country de`. With rollups=[[]] VIEW alone asks for the total of all rows.
    Prints the stamped answer as JSON.
    """
    from stateside.serving.client import Client

    by, parts = (text.split(separator) if text else [] for text, separator in ((columns, ","), (key, "/")))
    with Client(url) as client:
        answer = client.rollup(view, by, *parts, **_floor(min_position, floor))
    click.echo(json.dumps(answer, indent=2))


@main.command()
@click.argument("name")
def new(name: str) -> None:
    """Make a small project to begin with: a view, a test that passes, sample events, settings and a README.

    NAME is the folder's and the module's name.
    """
    from stateside.ops.project import make_project

    folder = make_project(name, Path.cwd())
    click.echo(f"Made {folder.relative_to(Path.cwd())}/. Its README.md says how to test, run and ask it.")


@main.command()
@click.option("--dir", "folder", default=".", type=_FOLDER, help="The folder that you mean to work in.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(folder: Path, as_json: bool) -> None:
    """Check that this machine has what Stateside needs, and say how to mend what it lacks."""
    from stateside.ops import doctor as examination

    findings = examination.diagnose(folder, PORT)
    click.echo(json.dumps(examination.as_json(findings), indent=2) if as_json else examination.render(findings))
    sys.exit(0 if all(finding.ok for finding in findings) else 1)
