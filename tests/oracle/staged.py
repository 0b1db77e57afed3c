"""A checkpoint shown to replicas commit by commit, as `stateside serve CHECKPOINT` follows one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stateside.core.layout import ViewLayout
from stateside.core.storage import Storage
from stateside.replica.keys import KeyCodec
from stateside.replica.store import ReplicaReader
from stateside.replica.tail import Tail
from stateside.serving.foreign import open_foreign
from stateside.serving.rows.view_readers import Floor, ViewReader
from stateside.spark_state.batch_log import Checkpoint
from stateside.views.catalogue import Catalogue
from stateside.views.state_catalogue import completed, value_decoder

Row = tuple[Any, ...]


class Staged:
    """A copy of a checkpoint that shows only those commits that were let through, and replicas that follow it."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        self._checkpoint, self._staged = checkpoint, folder / "checkpoint"
        self._staged.mkdir(parents=True)
        for part in checkpoint.iterdir():
            if part.name != "commits":
                (self._staged / part.name).symlink_to(part)
        (self._staged / "commits").mkdir()
        self._foreign = open_foreign(str(self._staged), folder / "replicas")
        self._storage = Storage.at(self._staged)

    def batches(self) -> list[int]:
        """All committed batches of the checkpoint itself."""
        return Checkpoint(Storage.at(self._checkpoint)).commits()

    def let_through(self, *batches: int) -> None:
        """Let the replicas see further commits, and follow them. Each time they start again, from what is on disk."""
        for batch in batches:
            os.link(self._checkpoint / "commits" / str(batch), self._staged / "commits" / str(batch))
        self._foreign.start()
        told = self._foreign.step()
        assert told.note is None and not told.refused, told
        for view in self._foreign.layout.views():
            tail = Tail(view)
            try:
                assert tail.step()
            finally:
                tail.close()

    def views(self) -> dict[str, Catalogue]:
        """What is served, by name; each with all of its columns."""
        return {
            view.name: completed(Catalogue.load(view.catalogue), self._storage) for view in self._foreign.layout.views()
        }

    def rows(self, name: str, as_of: int | None = None) -> list[Row]:
        """A view's rows in its replica: the values of the key's columns, then of the others, as they were decoded."""
        view = self._foreign.layout.view(name)
        return list(_read(view, self.views()[name], self._storage, as_of))

    def answered(self, name: str) -> list[str]:
        """The rows that a reader of the view is answered, each as JSON."""
        reader = ViewReader(self._foreign.layout.view(name))
        try:
            rows = asyncio.run(reader.rows((), Floor(wait_ms=0))).rows
        finally:
            reader.close()
        return sorted(json.dumps(list(row.values())) for row in rows)

    def batch(self, name: str) -> int | None:
        """The batch that a view's replica stands at."""
        reader = ReplicaReader(self._foreign.layout.view(name).replica)
        with reader.snapshot() as snapshot:
            applied = snapshot.batch()
        reader.close()
        return applied.batch if applied else None

    def loaded(self, name: str) -> bool:
        """Whether the replica was loaded from the state, and did not follow it from the first batch on."""
        return (self._foreign.layout.view(name).replica / "current").exists()


def _read(view: ViewLayout, catalogue: Catalogue, storage: Storage, as_of: int | None) -> Iterator[Row]:
    codec, decoder = KeyCodec([column.asked_type for column in catalogue.key]), value_decoder(catalogue, storage)
    reader = ReplicaReader(view.replica)
    with reader.snapshot(as_of) as snapshot:
        for key, row in snapshot.range(b""):
            stored = decoder.decode(row)
            asked = zip(catalogue.key, codec.decode(key), strict=True)
            keys = [value if column.whole is None else stored[column.whole.index] for column, value in asked]
            yield (*keys, *(stored[column.buffers[0].index] for column in catalogue.columns))
    reader.close()
