"""A checkpoint that was written by somebody else, replayed to replicas commit by commit, and Spark's own word on it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.variable_catalogue import completed, value_decoder
from stateside.layout import ViewLayout
from stateside.replica.keys import KeyCodec
from stateside.replica.store import ReplicaReader
from stateside.replica.tail import Tail
from stateside.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

Row = tuple[Any, ...]


class Staged:
    """A copy of a checkpoint that shows only those commits that were let through, and replicas that follow it."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        self._checkpoint, self._folder = checkpoint, folder
        self._staged = folder / "checkpoint"
        self._staged.mkdir(parents=True)
        for part in checkpoint.iterdir():
            if part.name != "commits":
                (self._staged / part.name).symlink_to(part)
        (self._staged / "commits").mkdir()
        self.storage = Storage.at(self._staged)
        self._tails: dict[str, Tail] = {}

    def batches(self) -> list[int]:
        """All committed batches of the checkpoint itself."""
        return Checkpoint(Storage.at(self._checkpoint)).commits()

    def let_through(self, batch: int) -> None:
        """Let the replicas see one more commit."""
        os.link(self._checkpoint / "commits" / str(batch), self._staged / "commits" / str(batch))

    def rows(self, catalogue: Catalogue) -> list[Row]:
        """What the view's replica has once it has seen what it may: the key's columns, then the others, in order."""
        places = ViewLayout(self._folder / "views" / catalogue.view)
        if catalogue.view not in self._tails:
            places.root.mkdir(parents=True)
            places.checkpoint.symlink_to(self._staged)
            places.catalogue.write_bytes(catalogue.as_json())
        tail = Tail(places)
        tail.step()
        tail.close()
        self._tails[catalogue.view] = tail
        return sorted(_read(places, catalogue, self.storage), key=repr)

    def batch(self, catalogue: Catalogue) -> int | None:
        """The batch that the view's replica stands at."""
        reader = ReplicaReader(ViewLayout(self._folder / "views" / catalogue.view).replica)
        with reader.snapshot() as snapshot:
            applied = snapshot.batch()
        reader.close()
        return applied.batch if applied else None


def _read(places: ViewLayout, catalogue: Catalogue, storage: Storage) -> Iterator[Row]:
    complete = completed(catalogue, storage)
    codec, decoder = KeyCodec([column.asked_type for column in complete.key]), value_decoder(complete, storage)
    reader = ReplicaReader(places.replica)
    with reader.snapshot() as snapshot:
        for key, row in snapshot.range(b""):
            values = decoder.decode(row)
            yield (*codec.decode(key), *(values[column.buffers[0].index] for column in complete.columns))
    reader.close()


def oracle(spark: SparkSession, checkpoint: Path, batch: int, parts: Sequence[str], **options: str) -> list[Row]:
    """The state after a batch as Spark's own reader has it: the fields of these columns, in order.

    With `list_element` among them the place of an entry in its list comes before it.
    """
    reader = spark.read.format("statestore").option("batchId", str(batch))
    for name, value in options.items():
        reader = reader.option(name, value)
    found = reader.load(str(checkpoint)).selectExpr(*parts).toArrow().to_pylist()
    seen: dict[str, int] = {}
    rows = []
    for row in found:
        key = repr(row.get("key"))
        place = (seen.setdefault(key, 0),) if "list_element" in parts else ()
        seen[key] = seen.get(key, 0) + 1
        first, *others = map(_fields, row.values())
        rows.append((*first, *place, *(value for other in others for value in other)))
    return sorted(rows, key=repr)


def _fields(part: Any) -> Row:
    if not isinstance(part, Mapping):
        return (plain(part),)
    if "ttlExpirationMs" in part:
        return (*_fields(part["value"]), part["ttlExpirationMs"])
    return tuple(plain(value) for value in part.values())


def plain(value: Any) -> Any:
    """A value as our decoders give it."""
    match value:
        case Mapping():
            return tuple(map(plain, value.values()))
        case list() | tuple():
            return tuple(map(plain, value))
        case datetime():
            return (value.replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        case date():
            return (value - date(1970, 1, 1)).days
    return value


@contextmanager
def conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of the shared session, for a while."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
