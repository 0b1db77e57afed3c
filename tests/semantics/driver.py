"""A driver process of its own, for the tests that kill one: `python -m semantics.driver FOLDER BATCH`, run in `tests/`.

It runs the query of `counts` over FOLDER/feed with FOLDER/checkpoint, and talks through files in FOLDER/talk:
`jvm_pid` once Spark is up; `reached` when the sink has computed BATCH, which it then holds until there is a file `go`;
`sink_returned` when it has let go; `outcome` when the query has ended: the error's class, and its message.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from stateside.pipeline.java import java_environment

from .harness import Feed, Lab, start_session


def counts(feed: Feed) -> DataFrame:
    return feed.stream().groupBy("customer").count()


def main(folder: Path, held_batch: int) -> None:
    talk = folder / "talk"
    spark = start_session("driver")
    gateway: Any = spark.sparkContext._gateway
    _say(talk / "jvm_pid", str(gateway.proc.pid))

    def sink(frame: DataFrame, batch: int) -> None:
        frame.collect()
        if batch == held_batch:
            _say(talk / "reached", "")
            while not (talk / "go").exists():
                time.sleep(0.02)
            _say(talk / "sink_returned", "")

    error = _error_of(lambda: Lab(spark, folder).run_into(sink, counts(Feed(spark, folder / "feed")), mode="update"))
    _say(talk / "outcome", json.dumps(error))
    while (talk / "reached").exists() and not (talk / "sink_returned").exists():  # the sink runs in another thread
        time.sleep(0.02)


def _error_of(action: Callable[[], object]) -> list[str]:
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def _say(file: Path, text: str) -> None:
    """Write a file that is there only when it is whole."""
    hidden = file.with_name(f".{file.name}")
    hidden.write_text(text)
    hidden.rename(file)


if __name__ == "__main__":
    os.environ.update(java_environment())
    main(Path(sys.argv[1]), int(sys.argv[2]))
