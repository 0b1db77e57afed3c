"""Files: a batch is one file, whole or not there."""

from __future__ import annotations

import pyarrow.parquet as pq

from stateside.pipeline.sinks.files import files
from stateside.pipeline.sinks.sink import OnStep, SinkFactory

from .harness import SinkCase, SinkSuite, Values, World


def parquet(world: World, on_step: OnStep) -> SinkFactory:
    return files("out", on_step=on_step)


def read_parquet(world: World) -> list[Values]:
    paths = sorted(world.layout.files("out").glob("*.parquet"))
    return [tuple(row.values()) for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


class TestParquet(SinkSuite):
    case = SinkCase("parquet files", parquet, read_parquet, steps=range(1, 7))
