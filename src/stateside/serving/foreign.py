"""A foreign checkpoint: written by a query that Stateside did not start, served from a folder of ours, only read.

The views are inferred from the checkpoint (`views.inference`), completed by a file of declarations
(`views.declaration_file`), and written into the folder as catalogues, with replicas beside. `step` looks at the
checkpoint again: the query may not have started yet, may get further views, or may be replaced by another query with
other views.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from stateside.core.errors import CheckpointInvalid, RequestInvalid, StatesideError, ViewInvalid
from stateside.core.layout import POINTER, Layout, ViewLayout
from stateside.core.storage import Storage, try_lock
from stateside.serving.rows.foreign_job import ForeignJob
from stateside.serving.rows.shape import Shape
from stateside.serving.rows.values import described, type_name
from stateside.spark_state.checkpoint_folder import FoundCheckpoint, examine, located, reading
from stateside.spark_state.types import parse_type
from stateside.views.catalogue import CATALOGUE, Catalogue
from stateside.views.declaration_file import Declarations
from stateside.views.inference import Inferred, Refusal, infer, safe_name
from stateside.views.state_catalogue import completed

_HASH_CHARS = 8
_WAITING = {
    FoundCheckpoint.NO_FOLDER: "There is no folder at {}: waiting for a query to make it.",
    FoundCheckpoint.NO_QUERY: "No query has started at {} yet: waiting for one.",
    FoundCheckpoint.NO_BATCH: "The query at {} has not finished its first batch yet: waiting for it.",
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """A folder that serves a foreign checkpoint. Made by `open_foreign`."""

    layout: Layout
    location: str
    storage: Storage
    declarations: Declarations

    def start(self, *, wait: bool = False) -> None:
        """Claim the folder, and write the catalogues for the checkpoint and the declarations.

        Raises on any error. While the query has no state yet, `step` finds the views later; a checkpoint folder that
        does not exist is an error unless `wait`.
        """
        if examine(self.storage) is FoundCheckpoint.NO_FOLDER and not wait:
            raise CheckpointInvalid(
                "There is no such folder",
                where=self.storage.root,
                next_step="Name the query's checkpointLocation; or add --wait, to wait until a query makes it",
            )
        inferred = self._infer()
        if inferred is not None:
            self.declarations.check(inferred)
            inferred = self._servable(self.declarations.apply(inferred))
            if not inferred.views:
                raise _nothing_to_serve(self.storage, inferred)
        self._take()
        if inferred is not None:
            self._clean(inferred)
        self.step()

    def described(self) -> list[str]:
        """A line for each served view: its name, its key and its columns."""
        return [_line(Catalogue.load(view.catalogue), self.storage) for view in self.layout.views()]

    def step(self) -> ForeignJob:
        """Look at the checkpoint again and update the catalogues; returns the state of the foreign job."""
        told = self._look()
        told.store(self.layout)
        return told

    def _look(self) -> ForeignJob:
        try:
            found = examine(self.storage)
            inferred = self._infer()
            served = None if inferred is None else self._servable(self.declarations.apply(inferred))
        except FileNotFoundError:  # the checkpoint is being deleted or replaced just now
            found, served = FoundCheckpoint.NO_QUERY, None
        except StatesideError as error:  # the stored catalogues stay, so readers keep their views
            return ForeignJob(note=str(error))
        if served is None:
            waiting = FoundCheckpoint.NO_BATCH if found is FoundCheckpoint.STATE else found
            return ForeignJob(note=_WAITING[waiting].format(self.location))
        self._store(served)
        return ForeignJob(refused=served.refused)

    def _infer(self) -> Inferred | None:
        with reading(self.storage):
            return infer(self.storage, self.storage.root.rstrip("/").rsplit("/", 1)[-1])

    def _servable(self, inferred: Inferred) -> Inferred:
        """Move the views that no reader can read to the refused ones."""
        views, refused = [], list(inferred.refused)
        for catalogue in inferred.views:
            try:
                Shape(catalogue, self.storage)  # refuses a view that no reader could show
                views.append(catalogue)
            except StatesideError as error:
                refused.append(Refusal(catalogue.view, str(error)))
        return Inferred(inferred.query, tuple(views), tuple(refused))

    def _store(self, inferred: Inferred) -> None:
        names = {catalogue.view for catalogue in inferred.views}
        for view in self.layout.views():
            if view.name not in names:
                view.catalogue.unlink(missing_ok=True)  # a view of the previous query
        for catalogue in inferred.views:
            path = self.layout.view(catalogue.view).catalogue
            if not path.exists() or path.read_bytes() != CATALOGUE.encode(catalogue):
                CATALOGUE.write(path, catalogue)

    def _take(self) -> None:
        """Mark the folder as this checkpoint's; RequestInvalid if the folder is in use for something else."""
        pointed = self.layout.pointed()
        if pointed is None:
            if self.layout.root.exists() and any(self.layout.root.iterdir()):
                raise RequestInvalid(
                    f"The folder {self.layout.root} is in use for something else",
                    next_step="Give a --dir of its own for this checkpoint's replicas, or leave it out",
                )
            POINTER.write(self.layout.pointer, self.location)
        elif pointed != self.location:
            raise RequestInvalid(
                f"The folder {self.layout.root} has the replicas of another checkpoint, {pointed}",
                next_step="Give another --dir, or leave it out",
            )

    def _clean(self, inferred: Inferred) -> None:
        """Delete replicas of removed views, and of views with a changed declaration, so that the tail rebuilds them."""
        views = {catalogue.view: catalogue for catalogue in inferred.views}
        folder = self.layout.root / "views"
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in views:
                _delete_replica(ViewLayout(path))
                shutil.rmtree(path, ignore_errors=True)
            elif _made_otherwise(ViewLayout(path), views[path.name]):
                _delete_replica(ViewLayout(path))


def open_foreign(checkpoint: str, folder: Path | None = None, declarations: Declarations | None = None) -> Foreign:
    """The checkpoint at a path or URI, served from a folder (default: `default_folder`).

    Raises RequestInvalid for an invalid address or a folder inside the checkpoint. Writes nothing before `start`.
    """
    location, storage = located(checkpoint)
    root = (folder or default_folder(location)).absolute()
    if "://" not in location and root.resolve().is_relative_to(Path(storage.root)):
        raise RequestInvalid(
            f"The folder {root} lies in the checkpoint, which is never written to", next_step="Give another --dir"
        )
    return Foreign(Layout(root), location, storage, declarations or Declarations())


def default_folder(location: str) -> Path:
    """The default folder of a checkpoint's replicas, in the user's state directory, named after the location."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    digest = hashlib.blake2b(location.encode()).hexdigest()[:_HASH_CHARS]
    return Path(home) / "stateside" / f"{safe_name(location.rstrip('/').rsplit('/', 1)[-1])}-{digest}"


def _line(catalogue: Catalogue, storage: Storage) -> str:
    view = completed(catalogue, storage)
    key = described([(column.name, parse_type(column.asked_type)) for column in view.key])
    columns = ", ".join(f"{column.name} ({type_name(parse_type(column.type))})" for column in view.columns)
    return f"  view {view.view}: by {key or 'nothing'}: {columns or 'no other columns'}"


def _nothing_to_serve(storage: Storage, inferred: Inferred) -> ViewInvalid:
    reasons = " ".join(f"{refusal.view}: {refusal.why}" for refusal in inferred.refused)
    return ViewInvalid(f"Nothing of this query can be served ({storage.root}). {reasons}".rstrip())


def _made_otherwise(view: ViewLayout, catalogue: Catalogue) -> bool:
    """Whether the view's replica was made from the same query under another declaration."""
    try:
        before = Catalogue.load(view.catalogue)
    except (FileNotFoundError, CheckpointInvalid):
        return False
    return before.query == catalogue.query and _stored_form(before) != _stored_form(catalogue)


def _stored_form(catalogue: Catalogue) -> object:
    """The parts of a catalogue that determine a replica's content; column names matter only in rollups."""
    key = [(column.stored, column.whole, column.asked_type) for column in catalogue.key]
    sums = catalogue.columns if catalogue.rollups else ()
    return catalogue.operator, catalogue.kind, catalogue.family, key, catalogue.rollups, sums


def _delete_replica(view: ViewLayout) -> None:
    if not view.replica.is_dir():
        return
    lock = try_lock(view.replica / "writer.lock")
    if lock is None:
        raise RequestInvalid(
            f"Another server serves {view.root.parent.parent} with other declarations",
            next_step="Stop it, or give another --dir",
        )
    try:
        shutil.rmtree(view.replica)
    finally:
        os.close(lock)
