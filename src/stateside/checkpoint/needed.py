"""Which files of a checkpoint a query needs to go on after one of its batches; Spark keeps those of many more.

metadata, sources/…                          what the query is, and what its sources noted
offsets/N, commits/N, and those of N - 1     the batch, and the one before, from which Spark begins
state/OPERATOR/_…, state/OPERATOR/P/_…       what the state looks like
state/OPERATOR/P/…                           of every partition the newest snapshot, and the changes after it
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from stateside.checkpoint.changelog import state_stem
from stateside.checkpoint.checksum import checksum_names
from stateside.checkpoint.delta import newest_delta_chain
from stateside.checkpoint.log import Checkpoint
from stateside.checkpoint.one_store import JOIN_STORES, StoreCheckpoint, one_store
from stateside.checkpoint.provider import Provider, provider_of
from stateside.checkpoint.snapshot import file_names, newest_chain
from stateside.errors import CheckpointGap
from stateside.storage import Storage

_LOGS = ("offsets", "commits")


def needed_files(checkpoint: Checkpoint, batch: int) -> Iterator[str]:
    """Their names, each once; CheckpointGap if the state of the batch can no longer be had.

    Checksums, which not every file has, are named too. FileNotFoundError if Spark deletes a file that is looked at.
    """
    storage = checkpoint.storage
    for name in storage.names():
        if name not in (*_LOGS, "state"):
            yield from _all_within(storage, name)
    for log in _LOGS:
        for number in range(max(batch - 1, 0), batch + 1):
            yield from (f"{log}/{number}", *checksum_names(f"{log}/{number}"))
    for operator in checkpoint.operators():
        yield from _of_operator(checkpoint, batch, operator)


def _of_operator(checkpoint: Checkpoint, batch: int, operator: int) -> Iterator[str]:
    storage, folder = checkpoint.storage, f"state/{operator}"
    for name in storage.names(folder):
        if not name.isdigit():
            yield from _all_within(storage, f"{folder}/{name}")
    for partition in range(checkpoint.partitions(operator, checkpoint.plan(batch), checkpoint.commit(batch))):
        inside = storage.names(f"{folder}/{partition}")
        for name in inside:
            if name.startswith("_"):
                yield from _all_within(storage, f"{folder}/{partition}/{name}")
        stores = [name for name in inside if name in JOIN_STORES]
        for store in stores:
            one = StoreCheckpoint(one_store(storage, operator, store))
            place = f"{folder}/{partition}"
            for name in _of_partition(one, batch, operator, partition):
                yield name.replace(place, f"{place}/{store}", 1)
            yield from (
                found
                for name in storage.names(f"{place}/{store}")
                if name.startswith("_")
                for found in _all_within(storage, f"{place}/{store}/{name}")
            )
        if not stores:
            yield from _of_partition(checkpoint, batch, operator, partition)


def _of_partition(checkpoint: Checkpoint, batch: int, operator: int, partition: int) -> Iterator[str]:
    storage, commit = checkpoint.storage, checkpoint.commit(batch)
    provider = provider_of(checkpoint.plan(batch), storage.path(f"offsets/{batch}"))
    if provider is Provider.HDFS:
        deltas = newest_delta_chain(storage, commit, operator, partition)
        names = None if deltas is None else deltas.file_names()
    else:
        chain = newest_chain(storage, commit, operator, partition)
        names = None if chain is None else file_names(storage, chain)
        if names is not None and chain is not None and chain.snapshot is not None:
            own = f"{state_stem(chain.snapshot, operator, partition)}.changelog"  # which says what was before it
            names += [own] if storage.exists(own) else []
    if names is None:
        raise CheckpointGap(
            f"The state of batch {batch} cannot be had any more in partition {partition} of operator {operator}",
            where=storage.path(f"state/{operator}/{partition}"),
            next_step="Take one of a newer batch",
        )
    for name in dict.fromkeys(names):
        yield name
        yield from checksum_names(name)


def _all_within(storage: Storage, name: str) -> Iterator[str]:
    """A file, or all files of a folder."""
    if not storage.is_folder(name):
        yield name
        return
    for inside in storage.names(name):
        yield from _all_within(storage, str(PurePosixPath(name) / inside))
