"""A driver of billing whose JVM is killed as soon as its sink has stored a batch: `python killed_driver.py FOLDER`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext

from stateside.billing.invoicing.invoice_sink import BillingSink
from stateside.billing.pipeline import application, bill
from stateside.core.layout import Layout
from stateside.pipeline.sinks.sink import BatchId, Sink
from stateside.testing import run_to, session

STORED = "stored and killed"


@dataclass(frozen=True)
class StoresAndKills:
    """A sink after whose first batch Spark is gone: the batch is stored, and not committed."""

    sink: Sink

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        self.sink.write(rows, batch)
        gateway = SparkContext._gateway
        assert gateway is not None
        print(STORED, batch.batch, flush=True)
        gateway.proc.kill()
        gateway.proc.wait()


if __name__ == "__main__":
    layout = Layout(Path(sys.argv[1]))
    with session(layout.root / "killed") as spark:
        run_to(application(bill, lambda context: StoresAndKills(BillingSink.of(context))), layout, spark)
