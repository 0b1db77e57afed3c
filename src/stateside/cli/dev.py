"""`stateside dev cluster`: a local Spark cluster to try things."""

from __future__ import annotations

import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stateside.cli.group import FOLDER

if TYPE_CHECKING:
    from stateside.testbed.cluster import Cluster

_LOOK_S = 0.5


@click.command(name="cluster")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="How many.")
@click.option(
    "--masters", default=2, show_default=True, type=click.IntRange(1, 5), help="One leads, the others stand by."
)
@click.option("--cores", default=1, show_default=True, type=click.IntRange(1), help="Of each worker.")
@click.option("--memory", default="1g", show_default=True, help="Of each worker, for executors: 512m, 2g.")
@click.option("--folder", type=FOLDER, help="Keep logs and state here; else they are thrown away.")
def dev_cluster(workers: int, masters: int, cores: int, memory: str, folder: Path | None) -> None:
    """Run a Spark cluster until Ctrl-C or SIGTERM: masters, with ZooKeeper if several, and workers, for this machine.

    Each part is a process of its own, which you may kill to see what happens; ended parts are reported.
    """
    from stateside.testbed.cluster import Cluster

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stateside-cluster-")))
        cluster = Cluster(place, masters=masters, workers=workers, worker_cores=cores, worker_memory=memory)
        click.echo("Starting a Spark cluster …", err=True)
        stack.enter_context(cluster)
        click.echo(f"stateside run APPLICATION --dir FOLDER --master {cluster.address}")
        for name in cluster.parts:
            click.echo(f"{name}: process {cluster.pid(name)}, log {cluster.log(name)}", err=True)
        click.echo(f"{cluster.leader()} leads. Ctrl-C ends it.", err=True)
        _watch(cluster)


def _watch(cluster: Cluster) -> None:
    """Report each part that ends, until Ctrl-C."""
    told: set[str] = set()
    while True:
        for name in cluster.parts:
            if name not in told and not cluster.runs(name):
                told.add(name)
                click.echo(f"{name} has ended: {cluster.last_words(name)}", err=True)
        time.sleep(_LOOK_S)
