"""`make bench`: runs every benchmark and prints the ratios; `--json FILE` writes them for machines."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks import (
    advise,
    app,
    billing,
    change,
    cold_start,
    decode,
    entities,
    fan_out,
    history,
    journal,
    lookups,
    pages,
    queries,
    replica,
    source,
    sql,
    takeover,
    visible,
)
from benchmarks.compare import Figure, Result

BENCHMARKS: dict[str, Callable[[Path], Iterator[Result | Figure]]] = {
    "advise": advise.run,
    "app": app.run,
    "billing": billing.run,
    "change": change.run,
    "cold-start": cold_start.run,
    "decode": decode.run,
    "entities": entities.run,
    "fan-out": fan_out.run,
    "history": history.run,
    "journal": journal.run,
    "lookups": lookups.run,
    "pages": pages.run,
    "queries": queries.run,
    "replica": replica.run,
    "source": source.run,
    "sql": sql.run,
    "takeover": takeover.run,
    "visible": visible.run,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(BENCHMARKS)))
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
def main(names: tuple[str, ...], json_file: Path | None) -> None:
    """Run the benchmarks of these NAMES, or all."""
    results: list[dict[str, Any]] = []
    for name in names or BENCHMARKS:
        with tempfile.TemporaryDirectory(prefix="stateside-bench-") as folder:
            for result in BENCHMARKS[name](Path(folder)):
                click.echo(str(result))
                results.append(result.as_dict())
    if json_file:
        json_file.write_text(json.dumps(results, indent=2) + "\n")


main()
