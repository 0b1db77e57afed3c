"""One of several state stores of an operator, as if it were the only one.

Most operators have one store in each partition, in `state/OPERATOR/PARTITION/`. A stream-stream join has four, each in
a folder of its own below that; `commits/N` names their files in this order:

    state/OPERATOR/PARTITION/left-keyToNumValues/     left-keyWithIndexToValue/
                             right-keyToNumValues/    right-keyWithIndexToValue/

Inside such a folder everything is as elsewhere. So what reads a checkpoint need not know of them: it is given a
checkpoint in which the files of one store seem to lie where an only one's would.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from stateside.checkpoint.catalogue import Catalogue
from stateside.checkpoint.log import Checkpoint, Commit
from stateside.storage import Storage

JOIN_STORES = tuple(
    f"{side}-{part}" for side in ("left", "right") for part in ("keyToNumValues", "keyWithIndexToValue")
)


@dataclass(frozen=True, slots=True)
class StoreStorage(Storage):
    """A checkpoint's folder in which one store of an operator lies in the place of its partitions."""

    operator: int
    store: str

    def path(self, relative: str) -> str:
        """The whole path of a file; one of a partition of the operator is looked for in the store's own folder."""
        moved = re.sub(rf"^(state/{self.operator}/\d+)(?=/|$)", rf"\1/{self.store}", relative)
        return Storage.path(self, moved)


class StoreCheckpoint(Checkpoint):
    """A checkpoint of which one operator seems to have one store only."""

    def __init__(self, storage: StoreStorage) -> None:
        super().__init__(storage)
        self._operator, self._place = str(storage.operator), JOIN_STORES.index(storage.store)

    def commit(self, batch: int) -> Commit:
        """The proof that the batch is finished, with the ids of this store's files alone."""
        commit = super().commit(batch)
        if self._operator not in commit.state_ids:
            return commit
        with self._reading(f"commits/{batch}"):
            ids = [[partition[self._place]] for partition in commit.state_ids[self._operator]]
        return replace(commit, state_ids={**commit.state_ids, self._operator: ids})


def checkpoint_of(catalogue: Catalogue, storage: Storage) -> Checkpoint:
    """The checkpoint as a view's replica is to read it: of several stores the view's own."""
    if catalogue.store is None:
        return Checkpoint(storage)
    return StoreCheckpoint(one_store(storage, catalogue.operator, catalogue.store))


def one_store(storage: Storage, operator: int, store: str) -> StoreStorage:
    """The checkpoint's folder as if the operator had this store only."""
    return StoreStorage(storage.filesystem, storage.root, operator, store)
