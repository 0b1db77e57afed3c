"""The journal source with crash markers, for `stateside.testing`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from stateside.core.errors import OperatingError
from stateside.journal.predicates import ANY, Conditions
from stateside.pipeline.journal_source import JournalSource, JournalStreamReader

CRASH_TYPE = "stateside.testing.crash"


class CrashingReader(JournalStreamReader):
    """Fails the first task that reads a marker, and drops markers afterwards."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task, without markers."""
        for batch in super().read(partition):
            marked = pc.equal(batch.column("type"), CRASH_TYPE)
            for marker in batch.filter(marked).column("id").to_pylist():
                self._crash_once(marker)
            yield batch.filter(pc.invert(marked))

    def _wanted(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Markers are read whatever types and tags the query selects."""
        wanted = super()._wanted(batch)
        return None if wanted is None else pc.or_(wanted, pc.equal(batch.column("type"), CRASH_TYPE))

    def _ruling(self) -> Conditions:
        """A marker may be in any segment."""
        return ANY

    def _crash_once(self, marker: str) -> None:
        remembered = self._folder / f"{marker}.crashed"
        if not remembered.exists():
            remembered.touch()
            raise OperatingError(f"A test crashes here, at the marker {marker!r}")


class CrashingSource(JournalSource):
    """Registered under the journal source's name, in its place."""

    def streamReader(self, schema: StructType) -> JournalStreamReader:  # noqa: N802
        return CrashingReader(schema, self.options)
