"""Files sink: one file per batch, whole or absent.

Exactly-once protocol; a crash at any step, followed by a rerun of the same batch, changes nothing:

1. The folder is checked. If the folder is missing or has been replaced (an empty mount point, say), the batch is held:
   the sink never creates a second folder.
2. The temporary file of a crashed attempt is removed.
3. If a file with this batch's name, BATCH-QUERY.FORMAT, exists: done. The name is the guard.
4. The rows are written to the temporary file and made durable. Its name begins with a dot, so no reader takes it for
   data.
5. The file is renamed to the batch's name, atomically, and the name is made durable.
6. The caller lets Spark commit the batch. A crash before the commit repeats the batch, which then ends at step 3.

A batch without rows makes no file. A folder belongs to one view.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path, PurePath
from typing import IO, Literal, get_args
from urllib.parse import quote

import pyarrow as pa

from stateside.core.errors import ArchiveInvalid, SinkAway, ViewInvalid
from stateside.core.layout import ViewLayout
from stateside.core.storage import sync_directory, write_atomically
from stateside.leadership import ungated
from stateside.pipeline.sinks.json_rows import check_json, json_texts
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, SinkFactory, ignore_step, inside

Format = Literal["parquet", "jsonl", "csv"]

ID_NAME = ".stateside.json"
TEMPORARY_NAME = ".unfinished"


def files(path: str, *, format: Format = "parquet", on_step: OnStep = ignore_step) -> SinkFactory:
    """A sink that writes each batch as one file into a folder; a relative path lies in the application's `files/`."""
    if format not in get_args(Format):
        raise ViewInvalid(
            f"A files sink has format={format!r}", next_step=f"Choose one of {', '.join(get_args(Format))}"
        )
    if not path or ".." in PurePath(path).parts:
        raise ViewInvalid(f"{path!r} is no folder for a files sink", next_step="Give a relative path, or a whole one")

    def opened(context: SinkContext) -> FilesSink:
        _check_format(context.schema, format)
        view = context.layout.view(context.view)
        folder = SinkFolder.open(context.layout.files(path), view, again=context.again)
        return FilesSink(folder, format, on_step)

    return opened if PurePath(path).is_absolute() else inside(opened)


@dataclass(frozen=True, slots=True)
class FilesSink:
    """Writes batches into a folder, by the steps above."""

    folder: SinkFolder
    format: Format
    on_step: OnStep = ignore_step

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Store the rows as the batch's file, unless the file exists."""
        if not rows.num_rows:
            return
        try:
            self._write(rows, self.folder.path / _name(batch, self.format))
        except OSError as error:
            raise SinkAway(
                f"The batch's file cannot be written: {error}",
                where=str(self.folder.path),
                next_step="Mend the disk or the folder: the batch is held until then",
            ) from error

    def _write(self, rows: pa.Table, path: Path) -> None:
        temporary = self.folder.path / TEMPORARY_NAME
        self.on_step(1)
        self.folder.check()
        self.on_step(2)
        temporary.unlink(missing_ok=True)
        self.on_step(3)
        if path.exists():
            return
        self.on_step(4)
        _write_durably(rows, temporary, self.format)
        self.on_step(5)
        temporary.rename(path)
        sync_directory(path.parent)
        self.on_step(6)


def mark_name(path: Path) -> str:
    """The name of a folder's mark in the view's folder."""
    digest = sha256(str(ungated(path)).encode()).hexdigest()  # ungated: the same for every leader
    return f"files-{digest[:16]}"


@dataclass(frozen=True, slots=True)
class SinkFolder:
    """A folder that contains an id, and the mark, kept elsewhere, with the same id: the folder is created only once."""

    path: Path
    mark: Path

    @classmethod
    def open(cls, path: Path, view: ViewLayout, *, again: bool = False) -> SinkFolder:
        """The folder at this path, created if the view has never had one.

        ArchiveInvalid if the folder has files, but the mark or the checkpoint of the query that wrote the files is
        gone: a new query would write all of them a second time.
        """
        folder = cls(path, view.mark(mark_name(path)))
        if not (folder.mark.exists() and (view.checkpoint / "metadata").exists()):
            folder._begin(view, again)
        return folder

    def _begin(self, view: ViewLayout, again: bool) -> None:
        if self.mark.exists():
            self.check()  # a folder that is away may have files
        if self.has_files() and not again:
            raise self._filled(view)
        if not self.mark.exists():
            self.create()

    def create(self) -> None:
        """Make the folder, its id and its mark, in this order; a call after a crash completes the rest."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / ID_NAME).exists():
            write_atomically(self.path / ID_NAME, json.dumps({"folder": secrets.token_hex(16)}).encode())
        write_atomically(self.mark, (self.path / ID_NAME).read_bytes())

    def check(self) -> None:
        """SinkAway unless the folder has the id of the mark."""
        expected = self.mark.read_bytes()
        try:
            reason = None if (self.path / ID_NAME).read_bytes() == expected else "is another one than before"
        except FileNotFoundError:
            reason = "is missing" if not self.path.exists() else f"is empty, without its {ID_NAME}"
        if reason is not None:
            raise SinkAway(
                f"The folder {reason}", where=str(self.path), next_step="Bring it back: the batch is held until then"
            )

    def has_files(self) -> bool:
        """Whether the folder has files that a reader would see."""
        return self.path.exists() and any(not path.name.startswith(".") for path in self.path.iterdir())

    def _filled(self, view: ViewLayout) -> ArchiveInvalid:
        return ArchiveInvalid(
            f"The folder has files already, and they are not of the checkpoint of the view {view.name!r}: "
            "to go on would write the same rows a second time",
            where=str(self.path),
            next_step=f"Nothing was written. Bring the folder {view.root} back, or give the sink a folder of its own",
        )


def _name(batch: BatchId, format: Format) -> str:
    """The batch's file name: names sort in batch order."""
    return f"{batch.batch:012d}-{quote(batch.query, safe='')}.{format}"


def _write_durably(rows: pa.Table, path: Path, format: Format) -> None:
    with path.open("xb") as file:
        _WRITERS[format](rows, file)
        file.flush()
        os.fsync(file.fileno())


def _write_parquet(rows: pa.Table, file: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    pq.write_table(rows, file)


def _write_csv(rows: pa.Table, file: IO[bytes]) -> None:
    from pyarrow import csv

    csv.write_csv(rows, file)


def _write_jsonl(rows: pa.Table, file: IO[bytes]) -> None:
    file.writelines(f"{text}\n".encode() for text in json_texts(rows))


_WRITERS: dict[Format, Callable[[pa.Table, IO[bytes]], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
}


def _check_format(schema: pa.Schema, format: Format) -> None:
    """ViewInvalid for columns that the format cannot hold."""
    if format == "jsonl":
        check_json(schema)
        return
    for field in schema:
        try:
            _WRITERS[format](pa.table({field.name: pa.nulls(1, field.type)}), BytesIO())
        except pa.ArrowException as error:
            raise ViewInvalid(
                f"The column {field.name!r} is of the type {field.type}, which {format} files cannot hold",
                next_step="Choose another format, or cast it",
            ) from error
