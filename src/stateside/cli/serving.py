"""`stateside serve`: an application's views, or those of any query's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside.cli.group import FILE, FOLDER, PORT
from stateside.errors import RequestInvalid

if TYPE_CHECKING:
    from stateside.replica.share import Share


@click.command()
@click.argument("checkpoint", required=False)
@click.option("--dir", "folder", type=FOLDER, help="The application's folder; of a CHECKPOINT: where its replicas lie.")
@click.option("--declare", type=FILE, help="What there is to know of a CHECKPOINT's views, in TOML: docs/serve.md.")
@click.option("--wait", is_flag=True, help="Wait for a CHECKPOINT that is not there yet.")
@click.option("--share", metavar="I/N", help="Hold this share of the keys only, like 1/4.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65_535), help="0: any free one.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen; others need tokens.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes that answer.")
def serve(
    checkpoint: str | None,
    folder: Path | None,
    declare: Path | None,
    wait: bool,
    share: str | None,
    port: int,
    address: str,
    workers: int,
) -> None:
    """Serve views over HTTP, until Ctrl-C or SIGTERM.

    With --dir alone it serves an application's views. With CHECKPOINT, a path or a URI, it serves the state of any
    Structured Streaming query, whoever wrote it, while it runs or after: the query needs no change, and nothing is ever
    written to its checkpoint. Replicas lie in --dir, or in a folder of this user's that is printed.

    It follows Spark's checkpoints and needs neither Spark nor Java; it answers while the job is down. With --share 1/4
    it holds one of four shares of the keys, by their first column; all four together hold every row once.

    On this machine alone access is open, unless the folder has tokens (`stateside token`). On any other --address, such
    as 0.0.0.0, it must have some.
    """
    from stateside.layout import Layout
    from stateside.processes import free_port
    from stateside.replica.share import Share

    own = None if share is None else Share.parse(share)
    where: dict[str, Any] = {"port": port or free_port(), "address": address, "workers": workers}
    location = checkpoint or (None if folder is None else Layout(folder).pointed())
    if location is not None:
        _serve_checkpoint(location, folder, declare, wait, own, **where)
    elif folder is None:
        raise RequestInvalid(
            "There is nothing to serve", next_step="Name a query's CHECKPOINT, or an application's --dir"
        )
    elif declare is not None or wait:
        flag = "--wait" if wait else "--declare"
        raise RequestInvalid(
            f"{flag} is for a CHECKPOINT, and none is named", next_step=f"Name it, or leave {flag} out"
        )
    else:
        _serve_application(folder, own, **where)


def _serve_application(folder: Path, share: Share | None, *, port: int, address: str, workers: int) -> None:
    from stateside.layout import Layout
    from stateside.serving.server import serve as serve_folder

    if not folder.is_dir():
        raise RequestInvalid(f"There is no folder {folder}", next_step="Name the --dir that `stateside run` works in")
    told = [f"Serving {folder} at http://{_host(address)}:{port}/v1/views"]
    if not Layout(folder).views():
        told.append("There is no view in it yet: waiting for the first one, which `stateside run` makes")
    with _tailing(share, told) as tailing:
        routes = ["stateside.billing.answers.api:routes"]
        places: dict[str, Any] = {"routes": routes, "tables": ["stateside.billing.answers.gate:sql_tables"]}
        serve_folder(folder.absolute(), port=port, address=address, workers=workers, **places, **tailing)


def _serve_checkpoint(
    checkpoint: str,
    folder: Path | None,
    declare: Path | None,
    wait: bool,
    share: Share | None,
    *,
    port: int,
    address: str,
    workers: int,
) -> None:
    from stateside.checkpoint.declared import Declarations
    from stateside.serving.foreign import open_foreign
    from stateside.serving.reading.told import Told
    from stateside.serving.server import serve as serve_folder

    declarations = None if declare is None else Declarations.parse(declare.read_bytes(), str(declare))
    foreign = open_foreign(checkpoint, folder, declarations)
    foreign.start(wait=wait)
    root = foreign.layout.root
    told = Told.load(foreign.layout)
    lines = [f"Serving {foreign.location} at http://{_host(address)}:{port}/v1/views, replicas in {root}"]
    lines += [*foreign.described(), *(f"  not served: {each.view}: {each.why}" for each in told.refused)]
    with _tailing(share, [*lines, told.note] if told.note else lines) as tailing:
        serve_folder(root, port=port, address=address, workers=workers, foreign=foreign, **tailing)


def _host(address: str) -> str:
    """The address as it stands in a URL."""
    return f"[{address}]" if ":" in address else address


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
