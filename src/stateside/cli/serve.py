"""`stateside serve`: serves an application's views, or the views of any query's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stateside.cli.group import FILE, FOLDER, PORT
from stateside.core.errors import RequestInvalid

if TYPE_CHECKING:
    from stateside.replica.shard import Share
    from stateside.serving import Extension


@click.command()
@click.argument("checkpoint", required=False)
@click.option("--dir", "folder", type=FOLDER, help="The application's folder; of a CHECKPOINT: where its replicas lie.")
@click.option("--replicas", type=FOLDER, help="Keep an application's replicas here: this server's own disk.")
@click.option("--declare", type=FILE, help="What there is to know of a CHECKPOINT's views, in TOML: docs/serve.md.")
@click.option("--wait", is_flag=True, help="Wait for a CHECKPOINT that is not there yet.")
@click.option("--share", metavar="I/N", help="Hold this share of the keys only, like 1/4.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65_535), help="0: any free one.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen; others need tokens and TLS.")
@click.option("--announce", type=FOLDER, help="The folder where the servers of all shares announce themselves.")
@click.option("--name", help="What this server is called there; by default its address and port.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes that answer.")
@click.option("--certificate", type=FILE, help="For TLS: the certificate and those up to its authority, in PEM.")
@click.option("--key", type=FILE, help="For TLS: the certificate's private key, in PEM.")
@click.option("--insecure", is_flag=True, help="Listen on any --address, without tokens or without TLS too.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Requests a second of a holder. [5000]")
@click.option("--running", default=2_000, show_default=True, type=click.IntRange(min=1), help="…and at a time.")
@click.option("--log-json", is_flag=True, help="Log in lines of JSON.")
@click.option("--live", is_flag=True, hidden=True, help="With the page of a live demo, which starts this server.")
def serve(
    checkpoint: str | None,
    folder: Path | None,
    replicas: Path | None,
    declare: Path | None,
    wait: bool,
    share: str | None,
    port: int,
    address: str,
    announce: Path | None,
    name: str | None,
    workers: int,
    certificate: Path | None,
    key: Path | None,
    insecure: bool,
    rate: float | None,
    running: int,
    log_json: bool,
    live: bool,
) -> None:
    """Serve views over HTTP, until Ctrl-C or SIGTERM.

    With --dir alone the server serves an application's views. With CHECKPOINT, a path or a URI, it serves the state of
    any Structured Streaming query, running or ended: the query needs no change, and nothing is ever written to its
    checkpoint. Replicas lie in --dir, or in a folder of the user, which is printed.

    The server follows Spark's checkpoints without Spark or Java, and answers while the job is down. With --share 1/4 it
    holds one of four shards of the keys, by their first column; all four together hold every row once. Give all shards
    one --announce folder, so that clients find the server of a key.

    On this machine access is open, unless the folder has tokens (`stateside token`). Any other --address, such as
    0.0.0.0, requires tokens, and --certificate with --key. --rate and --running apply to each principal (the holder of
    a token), or to each client address without tokens, and to each of the --workers.
    """
    from stateside.core.layout import Layout
    from stateside.core.processes import free_port
    from stateside.replica.shard import Share
    from stateside.serving.access.hosts import Certificate
    from stateside.serving.access.limits import RateLimits

    own = None if share is None else Share.parse(share)
    where: dict[str, Any] = {"port": port or free_port(), "address": address, "workers": workers}
    where |= {
        "certificate": Certificate.of(certificate, key),
        "insecure": insecure,
        "limits": RateLimits(rate, running),
    }
    where |= {"announce": announce.absolute() if announce else None, "name": name, "log_json": log_json}
    location = checkpoint or (None if folder is None else Layout(folder).pointed())
    if location is not None and replicas is not None:
        raise RequestInvalid("A CHECKPOINT's replicas lie in --dir", next_step="Leave --replicas out")
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
        _serve_application(folder, own, live=live, replicas=_made(replicas), **where)


def _made(folder: Path | None) -> Path | None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return folder and folder.absolute()


def _serve_application(folder: Path, share: Share | None, *, live: bool, **where: Any) -> None:
    from stateside.billing.pages import EXTENSION
    from stateside.core.layout import Layout
    from stateside.serving.server import serve as serve_folder

    if not folder.is_dir():
        raise RequestInvalid(f"There is no folder {folder}", next_step="Name the --dir that `stateside run` works in")
    views = ", ".join(view.name for view in Layout(folder).views())
    told = [f"Serving {folder} at {_url(where)}/v1/views"]
    told.append(
        f"Views: {views}"
        if views
        else "There is no view in it yet: waiting for the first one, which `stateside run` makes"
    )
    with _tailing(share, told) as tailing:
        serve_folder(folder.absolute(), extension=_with_live_demo(EXTENSION) if live else EXTENSION, **where, **tailing)


def _with_live_demo(extension: Extension) -> Extension:
    from stateside.testbed.live_desk import with_live_demo

    return with_live_demo(extension)


def _serve_checkpoint(
    checkpoint: str,
    folder: Path | None,
    declare: Path | None,
    wait: bool,
    share: Share | None,
    **where: Any,
) -> None:
    from stateside.serving.foreign import open_foreign
    from stateside.serving.rows.foreign_job import ForeignJob
    from stateside.serving.server import serve as serve_folder
    from stateside.views.declaration_file import Declarations

    declarations = None if declare is None else Declarations.parse(declare.read_bytes(), str(declare))
    foreign = open_foreign(checkpoint, folder, declarations)
    foreign.start(wait=wait)
    root = foreign.layout.root
    told = ForeignJob.load(foreign.layout)
    lines = [f"Serving {foreign.location} at {_url(where)}/v1/views, replicas in {root}"]
    lines += [*foreign.described(), *(f"  not served: {each.view}: {each.why}" for each in told.refused)]
    with _tailing(share, [*lines, told.note] if told.note else lines) as tailing:
        serve_folder(root, foreign=foreign, **where, **tailing)


def _url(where: Mapping[str, Any]) -> str:
    """The server's URL."""
    scheme = "http" if where["certificate"] is None else "https"
    address = where["address"]
    return f"{scheme}://{f'[{address}]' if ':' in address else address}:{where['port']}"


@contextmanager
def _tailing(share: Share | None, told: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Arguments for following views: the shard of the keys, progress bars of a bootstrap, and the start message.

    The start message is printed once the server listens, not before.
    """
    from rich.console import Console

    from stateside.cli.tables import LoadBars

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
