"""A Python data source for tests: rows by number in partitions, and a record of every call that Spark makes."""
# ruff: noqa: N802  (Spark's data source API is camelCase)

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Offset = dict[str, int]


class Tape:
    """How many rows there are, and what the source was asked; on the disk, because Spark asks from other processes."""

    def __init__(self, folder: Path, rows: Offset) -> None:
        folder.mkdir()
        self.folder = folder
        self.extend(rows)

    def extend(self, rows: Offset) -> None:
        """Set the number of rows in each partition."""
        (self.folder / "end.json").write_text(json.dumps(rows))

    def calls(self, *names: str) -> list[tuple[str, list[Any]]]:
        """The calls since the last look, of these names only, with their arguments."""
        file = self.folder / "calls.jsonl"
        calls = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        file.unlink(missing_ok=True)
        return [(call["name"], call["arguments"]) for call in calls if call["name"] in names]


def tape_source() -> type:
    """The source's class. It is made inside a function so that Spark sends it to its workers by value, not by name."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    class TapeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        """Options: `path`, `max_rows` a batch, `flips`: how often to answer with the same offset in another order."""

        def __init__(self, options: dict[str, str]) -> None:
            self.folder = Path(options["path"])
            self.max_rows = int(options["max_rows"])
            self.flips_left = int(options["flips"])
            self.target: Offset | None = None

        def initialOffset(self) -> Offset:
            return dict.fromkeys(self._end(), 0)

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadMaxRows(self.max_rows)

        def prepareForTriggerAvailableNow(self) -> None:
            self._note("prepare")
            self.target = self._end()

        def latestOffset(self, start: Offset, limit: Any) -> Offset:
            self._note("latestOffset", start, type(limit).__name__, vars(limit))
            offset, rows_left = dict(start), limit.max_rows
            for name, end in (self.target or self._end()).items():
                rows = min(end - start[name], rows_left)
                offset[name], rows_left = start[name] + rows, rows_left - rows
            if offset == start and self.flips_left:
                self.flips_left -= 1
                return dict(reversed(offset.items()))
            return offset

        def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
            self._note("partitions", start, end)
            return [InputPartition((name, start[name], end[name])) for name in sorted(start)]

        def read(self, partition: InputPartition) -> Iterator[tuple[str, int]]:
            name, start, end = partition.value
            self._note("read", name, start, end)
            for number in range(start, end):
                yield name, number

        def commit(self, end: Offset) -> None:
            self._note("commit", end)

        def _end(self) -> Offset:
            offset: Offset = json.loads((self.folder / "end.json").read_text())
            return offset

        def _note(self, name: str, *arguments: Any) -> None:
            with (self.folder / "calls.jsonl").open("a") as file:
                file.write(json.dumps({"name": name, "arguments": arguments}) + "\n")

    class TapeSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "tape"

        def schema(self) -> str:
            return "partition string, number int"

        def streamReader(self, schema: Any) -> TapeReader:
            return TapeReader(dict(self.options))

    return TapeSource
