"""Examination of a folder given as a checkpoint: whether it is one, and what else it may be.

Every error says what was found and what to name instead. Nothing is ever written there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from stateside.core.errors import CheckpointInvalid, RequestInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.changelog import check_encoding
from stateside.spark_state.compression import CODECS
from stateside.spark_state.provider import provider_of

NAMED_MAX = 5  # number of checkpoints below a folder that are suggested
_LOOKED_AT_MAX = 200  # number of subfolders searched for such checkpoints
_CODEC = "spark.sql.streaming.stateStore.compression.codec"
_CREDENTIALS = re.compile(r"[a-z0-9+.-]+://[^/@]*:[^/@]*@")


class FoundCheckpoint(Enum):
    """The state of a folder that is a checkpoint, or may become one."""

    NO_FOLDER = "there is no folder yet"
    NO_QUERY = "no query has started there yet"
    NO_BATCH = "its query has not finished its first batch yet"
    STATE = "a query with state"


def located(location: str) -> tuple[str, Storage]:
    """The canonical location (an absolute path or a URI) and its folder; RequestInvalid if it cannot be opened."""
    if _CREDENTIALS.match(location):
        raise RequestInvalid(
            "The checkpoint's address has a password in it",
            next_step="Leave it out: give it by the environment (AWS_ACCESS_KEY_ID and so on), where no file keeps it",
        )
    path = location.removeprefix("file://").removeprefix("file:") if location.startswith("file:/") else location
    if "://" not in path:
        path = str(Path(path).absolute())
    path = path.rstrip("/") or path
    try:
        return path, Storage.at(path)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise RequestInvalid(
            f"The checkpoint's address {location} cannot be opened: {_reason(error)}",
            next_step="Name a path, or a URI that pyarrow.fs knows: s3://, gs://, hdfs://, abfs://"
            + (" (for s3a:// write s3://)" if location.startswith(("s3a:", "s3n:")) else ""),
        ) from error


def examine(storage: Storage, *, readable: bool = True) -> FoundCheckpoint:
    """The state of a folder. CheckpointInvalid, with reason and next step, if no query with state can be there.

    Without `readable`, a query without state, or with a state in an unknown format, is one too.
    """
    with reading(storage):
        kind = storage.filesystem.get_file_info(storage.root).type
        if kind == pafs.FileType.NotFound:
            return FoundCheckpoint.NO_FOLDER
        if kind == pafs.FileType.File:
            raise _refused(
                storage, "This is a file, and a checkpoint is a folder", "Name the query's checkpointLocation"
            )
        names = {name for name in storage.names() if not name.startswith(".")}
        if not names & {"metadata", "offsets", "commits"}:
            if names - {"sources"}:
                raise _no_checkpoint(storage, names)
            return FoundCheckpoint.NO_QUERY
        return _examine_query(Checkpoint(storage), readable)


def check_readable(checkpoint: Checkpoint, batch: int) -> None:
    """CheckpointInvalid if the batch's files, or its state's store, encoding or codec, are unknown."""
    checkpoint.commit(batch)
    plan, path = checkpoint.plan(batch), checkpoint.storage.path(f"offsets/{batch}")
    provider_of(plan, path)
    check_encoding(plan, path)
    codec = plan.conf.get(_CODEC, "lz4")
    names = [known.name for known in CODECS]
    if not any(name in codec.lower() for name in names):
        raise CheckpointInvalid(
            f"The state is compressed by {codec}, which cannot be read; {', '.join(names)} can",
            where=path,
            next_step=f"Run the query on a new checkpoint with {_CODEC}=lz4",
        )


@contextmanager
def reading(storage: Storage) -> Iterator[None]:
    """Turn the system's refusal to read a folder into CheckpointInvalid."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointInvalid(
            f"The checkpoint cannot be read: {_reason(error)}",
            where=storage.root,
            next_step="Let this user read the folder and all in it; it need not write there",
        ) from error


def _examine_query(checkpoint: Checkpoint, readable: bool) -> FoundCheckpoint:
    if checkpoint.query_id() is None:
        return FoundCheckpoint.NO_QUERY
    commits = checkpoint.commits()
    if not commits:
        return FoundCheckpoint.NO_BATCH
    if readable:
        check_readable(checkpoint, commits[-1])
    if readable and not checkpoint.operators():
        raise stateless(checkpoint.storage, commits[-1])
    return FoundCheckpoint.STATE


def stateless(storage: Storage, batch: int) -> CheckpointInvalid:
    return _refused(
        storage,
        f"This query has finished batch {batch} and keeps no state, so that there is nothing to serve",
        "Name the checkpoint of a query that aggregates, removes duplicates or keeps state of its own",
    )


def _no_checkpoint(storage: Storage, names: set[str]) -> CheckpointInvalid:
    if "views" in names and any(_is_view(storage, view) for view in storage.names("views")):
        return _refused(storage, "This is an application's folder", f"Serve it with --dir {storage.root}")
    inside = [storage.root.rsplit("/", depth)[0] for depth in (1, 2, 3)]
    for folder in inside:
        if folder and _is_checkpoint(Storage(storage.filesystem, folder), ""):
            return _refused(storage, "This is a part of a checkpoint", f"Name the whole one: {folder}")
    below = list(islice(_checkpoints_below(storage, names), NAMED_MAX + 1))
    if below:
        more = ", …" if len(below) > NAMED_MAX else ""
        return _refused(
            storage, "This folder is no checkpoint itself", f"Below it there are: {', '.join(below[:NAMED_MAX])}{more}"
        )
    return _refused(
        storage,
        "This folder is no checkpoint: it has neither metadata nor offsets nor commits",
        "Name the query's checkpointLocation",
    )


def _checkpoints_below(storage: Storage, names: set[str]) -> Iterator[str]:
    """Checkpoints one or two folders deeper, by their whole paths."""
    folders = [name for name in islice(sorted(names), _LOOKED_AT_MAX) if storage.is_folder(name)]
    yield from (storage.path(name) for name in folders if _is_checkpoint(storage, name))
    looked = 0
    for name in folders:
        for deeper in storage.names(name):
            looked += 1
            if looked > _LOOKED_AT_MAX:
                return
            if _is_checkpoint(storage, f"{name}/{deeper}"):
                yield storage.path(f"{name}/{deeper}")


def _is_checkpoint(storage: Storage, relative: str) -> bool:
    within = storage.within(relative)
    return within.exists("metadata") and within.is_folder("offsets")


def _is_view(storage: Storage, view: str) -> bool:
    return storage.exists(f"views/{view}/catalogue.json")


def _refused(storage: Storage, what: str, next_step: str) -> CheckpointInvalid:
    return CheckpointInvalid(what, where=storage.root, next_step=next_step)


def _reason(error: BaseException) -> str:
    """The system's message on one line, without internal details."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error).splitlines()[0].split(". Detail")[0][:200]
