"""The layout of an application's folder: all files and directories.

FOLDER/
  journal/                    the embedded journal: segments, end mark, lock, and frames torn by crashes (.torn-)
  journal/views/              the views of journal queries; may be deleted, and are then rebuilt
  journal/base                the summary of events dropped by retention; never to be deleted
  journal/summaries/          zone maps of finished segments; may be deleted, and are then rebuilt
  journal/nodes/, merged/     instead of segments, with several nodes: their logs, and the stream merged from the logs
  journal/topic.json          instead of segments, for a journal on Kafka: its address; index/: its owner's index
  journal/readers/NAME.json   the position of a registered reader
  journal/nodes/NAME/EPOCH/   with several nodes: the log of each owner of each node, a journal of its own
  journal/slots/              which node writes which entities
  journal/merged/PARTITION/   the stream merged from the nodes' logs; never to be deleted
  driver.lock                 held by the one Spark driver that may run here
  lease/                      who leads and who stands by, where there are standbys (`leadership.application_lease`)
  keys.json                   the signing keys of tokens; without keys a server asks for no token, on loopback only
  issued.json                 the register of issued and revoked tokens
  refusals.jsonl              the refused requests, with reasons; older ones in refusals.1.jsonl and so on
  generations.json            which generation of each view is current, being filled, or kept (`ViewPointer`)
  apply.lock                  held by the one process that fills generations (`pipeline.apply`)
  handover                    asks the driver to stop after its batch, for the process that applies a change
  fork.json                   of a fork: the folder and the savepoint that it was made of (`ops.restore`)
  barrier.json                a position at which a batch of every view ends (`views.savepoint`)
  savepoints/NAME.json        a savepoint of all views at one position: the names of each view's own
  pause                       while this file exists no new batch begins: the driver is about to stop
  pause.next                  the same, for the queries that fill generations
  fields.json                 the payload fields declared by views, for the check of appends (`journal.payload`)
  clock.json                  the progress of billing's clock events
  deliveries/NAME.json        which of billing's documents the endpoint NAME has
  views/VIEW/generations/N/   generation N of the view: the same files as its first one has in views/VIEW/ itself, and
                              tables/NAME/: its archive
  views/VIEW/checkpoint/      Spark's own files, written by Spark alone (except schema paths: `pipeline.view_query`)
  views/VIEW/checkpoint.…/    before-: put aside by a restore, may be deleted; restoring-: a restore under way, or the
                              remains of an interrupted one (`ops.restore`)
  views/VIEW/catalogue.json   how the state's buffers become the view's columns
  views/VIEW/steps.json       the functions of the view's computed columns
  views/VIEW/plans.json       of billing: the versions of price plans referenced by rows and documents
  views/VIEW/book/            of billing: snapshots of the book of plans and assignments
  views/VIEW/reports/         of billing: the rating reports of the running batch
  views/VIEW/plan.txt         the query's plan, to detect a changed query
  views/VIEW/heartbeat.json   the runner's heartbeat
  views/VIEW/journal          the id of the journal that the view has read
  views/VIEW/progress.jsonl   Spark's progress reports of the newest batches
  views/VIEW/totals.json      the batches, rows and durations of all runs (`views.job_totals`)
  views/VIEW/refused/         the refused events of the running batch (`pipeline.dead_letters`)
  views/VIEW/dead_letters.json  the number of the view's dead letters
  views/VIEW/replica/         the LMDB environment for reads; elsewhere with `stateside serve --replicas`
  views/VIEW/marks/           which table or folder the view's sink has filled, so that no second one is created
  views/VIEW/savepoints/NAME/ the checkpoint as of one batch; each may be deleted
  views/VIEW/batches.jsonl    the plans of past batches, back to the oldest savepoint (`views.plan_history`)
  views/VIEW/replay.jsonl     of a restored generation: the plans of batches that were delivered before the restore
  views/VIEW/begun.json       the last batch given to an at-most-once sink
  tables/NAME/                Delta tables: the archive
  files/PATH/                 the output files of sinks, one per batch
  audit/                      the auditor's ledger; may be deleted, and is then rebuilt
  servers/NAME.json           the announcement of each server of the folder, rewritten every second
  spark/                      Spark's scratch files

A folder for the checkpoint of a foreign job (one not started by Stateside) has views with catalogue and replica only,
and:

  checkpoint.json             the pointer to the checkpoint, elsewhere and never written to
  inferred.json               the checkpoint's views not served, with the reasons, and the views waited for
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from stateside.core.errors import CheckpointInvalid
from stateside.core.json_file import JsonFile
from stateside.core.positions import Position

_GENERATIONS: Final = "generations"

POINTER: JsonFile[str] = JsonFile(
    "The pointer to the checkpoint",
    lambda document: str(document["checkpoint"]),
    lambda location: {"checkpoint": location},
    damage=CheckpointInvalid,
    next_step="Delete this folder, and serve the checkpoint again: replicas are rebuilt",
    versions=(1,),
)
DEAD_LETTERS: JsonFile[int] = JsonFile(
    "The number of dead letters", lambda document: int(document["count"]), lambda count: {"count": count}
)
BARRIER: JsonFile[Position] = JsonFile(
    "The barrier",
    lambda document: Position.parse(document["position"]),
    lambda position: {"position": str(position)},
    durable=False,
    make_folder=False,
)
LATE_ROWS: JsonFile[int] = JsonFile(
    "The number of late rows", lambda document: int(document["count"]), lambda count: {"count": count}, durable=False
)


@dataclass(frozen=True, slots=True)
class ViewGeneration:
    """One way in which a view was folded: its number, and its folder below `views`."""

    number: int
    folder: str


@dataclass(frozen=True, slots=True)
class ViewPointer:
    """The generations of a view.

    `current` is served; None for a view that is new, and being filled. `next` is being filled, and followed by servers.
    `kept` ones can be returned to, the newest first. Readers move to the current generation once its replica has
    everything that they have read, or `at_once` after a rollback, which goes back in time.
    """

    current: ViewGeneration | None
    next: ViewGeneration | None = None
    kept: tuple[ViewGeneration, ...] = ()
    at_once: bool = False

    def all(self) -> list[ViewGeneration]:
        return [each for each in (self.current, self.next, *self.kept) if each is not None]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ViewPointer:
        current, next_ = (None if document[name] is None else ViewGeneration(**document[name]) for name in _POINTED)
        return cls(current, next_, tuple(ViewGeneration(**each) for each in document["kept"]), document["at_once"])


_POINTED: Final = ("current", "next")
Pointers = dict[str, ViewPointer]
POINTERS: JsonFile[Pointers] = JsonFile(
    "The file of the views' generations",
    lambda document: {name: ViewPointer.parse(pointer) for name, pointer in document["views"].items()},
    lambda pointers: {"views": {name: asdict(pointer) for name, pointer in pointers.items()}},
    next_step="Restore this file from a copy: without it, the first generation of each view would be served",
    versions=(1,),
    indent=2,
    make_folder=False,
)


@dataclass(frozen=True, slots=True)
class ViewLayout:
    """The paths of one generation of a view."""

    root: Path
    called: str = field(default="", compare=False)  # for a view whose name is not its folder's
    replicas: Path | None = field(default=None, compare=False)  # where replicas lie, if not in the folder itself

    @property
    def name(self) -> str:
        """The view's name."""
        return self.called or (self.root.parents[1].name if self._is_numbered else self.root.name)

    @property
    def generation(self) -> int:
        return int(self.root.name) if self._is_numbered else 1

    @property
    def application(self) -> Path:
        """The application's folder."""
        return self.root.parents[3 if self._is_numbered else 1]

    @property
    def _is_numbered(self) -> bool:
        return self.root.parent.name == _GENERATIONS and self.root.name.isdigit()

    def table(self, name: str) -> Path:
        """The archive's table: those of further generations lie in their own folders."""
        return self.root / "tables" / name if self._is_numbered else Layout(self.application).table(name)

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def checkpoint_location(self) -> str:
        """Where readers find the checkpoint, a path or a URI: elsewhere, if the folder has a pointer."""
        return Layout(self.application).pointed() or str(self.checkpoint)

    @property
    def catalogue(self) -> Path:
        return self.root / "catalogue.json"

    @property
    def functions(self) -> Path:
        """The functions of the view's computed columns; written by its sink, and only ever extended."""
        return self.root / "steps.json"

    @property
    def plan(self) -> Path:
        return self.root / "plan.txt"

    @property
    def progress(self) -> Path:
        return self.root / "progress.jsonl"

    @property
    def heartbeat(self) -> Path:
        return self.root / "heartbeat.json"

    @property
    def totals(self) -> Path:
        return self.root / "totals.json"

    @property
    def refused(self) -> Path:
        """The events that tasks of the running batch refused, until stored as dead letters."""
        return self.root / "refused"

    @property
    def dead_letters(self) -> Path:
        """The file with the number of the view's dead letters."""
        return self.root / "dead_letters.json"

    @property
    def late_rows(self) -> Path:
        """The file with the number of rows that the view dropped as late."""
        return self.root / "late_rows.json"

    @property
    def replica(self) -> Path:
        if self.replicas is None:
            return self.root / "replica"
        return self.replicas / self.root.relative_to(self.application) / "replica"

    @property
    def begun(self) -> Path:
        """The last batch given to an at-most-once sink."""
        return self.root / "begun.json"

    @property
    def savepoints(self) -> Path:
        """The savepoints of all generations, which outlive them."""
        return (self.root.parents[1] if self._is_numbered else self.root) / "savepoints"

    @property
    def batches(self) -> Path:
        """The plans of past batches (`views.plan_history`)."""
        return self.root / "batches.jsonl"

    @property
    def replayed(self) -> Path:
        """The plans of the batches after a restored one, which were delivered before."""
        return self.root / "replay.jsonl"

    @property
    def journal_note(self) -> Path:
        """The id of the journal that the view has read, so that nobody makes a new one while the journal is away."""
        return self.root / "journal"

    def journal_read(self) -> str | None:
        """The id in the journal note; None if the view has read no journal so far."""
        try:
            return self.journal_note.read_text().strip() or None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def mark(self, name: str) -> Path:
        """The mark of the table or folder `name`, filled by the view's sink."""
        return self.root / "marks" / f"{name}.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one application. Views that are `pinned` have this generation, whatever the pointers say.

    Replicas lie in the views' folders, or below `replicas`: a server's own disk, where the folder is on shared storage.
    """

    root: Path
    pinned: tuple[ViewLayout, ...] = ()
    replicas: Path | None = None

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def driver_lock(self) -> Path:
        return self.root / "driver.lock"

    @property
    def keys(self) -> Path:
        return self.root / "keys.json"

    @property
    def issued(self) -> Path:
        """The register of tokens, without the tokens."""
        return self.root / "issued.json"

    @property
    def refusals(self) -> Path:
        return self.root / "refusals.jsonl"

    @property
    def pause(self) -> Path:
        """While this file exists no new batch begins."""
        return self.root / ("pause.next" if self.pinned else "pause")

    @property
    def handover(self) -> Path:
        """Asks the driver to stop after its batch."""
        return self.root / "handover"

    @property
    def barrier(self) -> Path:
        """A position at which a batch of every view ends, for a savepoint of all views."""
        return self.root / "barrier.json"

    @property
    def savepoints(self) -> Path:
        """The savepoints of all views at one position."""
        return self.root / "savepoints"

    @property
    def fork(self) -> Path:
        """Exists in a folder forked from another one; has the other one's path."""
        return self.root / "fork.json"

    @property
    def apply_lock(self) -> Path:
        return self.root / "apply.lock"

    @property
    def generations(self) -> Path:
        return self.root / "generations.json"

    def pointers(self) -> Pointers:
        """The pointers of views with several generations, or whose folder has another name."""
        return POINTERS.read(self.generations) or {}

    @property
    def clock(self) -> Path:
        return self.root / "clock.json"

    @property
    def fields(self) -> Path:
        return self.root / "fields.json"

    @property
    def pointer(self) -> Path:
        """The pointer to the checkpoint of a foreign job."""
        return self.root / "checkpoint.json"

    @property
    def inferred(self) -> Path:
        """The result of inferring the views of a foreign job's checkpoint."""
        return self.root / "inferred.json"

    def pointed(self) -> str | None:
        """The path or URI in the pointer file; None in an application's own folder."""
        return POINTER.read(self.pointer)

    @property
    def audit(self) -> Path:
        return self.root / "audit"

    @property
    def spark(self) -> Path:
        return self.root / "spark"

    def view(self, name: str) -> ViewLayout:
        """The view's current generation."""
        for pinned in self.pinned:
            if pinned.name == name:
                return pinned
        pointer = self.pointers().get(name)
        return self.at(name, ViewGeneration(1, name) if pointer is None or pointer.current is None else pointer.current)

    def at(self, name: str, generation: ViewGeneration) -> ViewLayout:
        """A generation of a view."""
        return ViewLayout(self.root / "views" / generation.folder, name, self.replicas)

    def views(self) -> list[ViewLayout]:
        """The views with a catalogue, by name: the current generation of each."""
        pointers = self.pointers()
        folders = {each.folder for pointer in pointers.values() for each in pointer.all()}
        files = (self.root / "views").glob("*/catalogue.json")
        found = [ViewLayout(file.parent, replicas=self.replicas) for file in files]
        found = [view for view in found if view.name not in folders]
        found += [self.at(name, each.current) for name, each in pointers.items() if each.current is not None]
        return sorted((view for view in found if view.catalogue.exists()), key=lambda view: view.name)

    def filling(self) -> list[ViewLayout]:
        """The generations that are being filled, as far as they have a catalogue."""
        found = [self.at(name, each.next) for name, each in self.pointers().items() if each.next is not None]
        return [view for view in found if view.catalogue.exists()]

    def folders(self) -> list[ViewLayout]:
        """All generations of all views that have a folder, served or not."""
        names = {each.folder: name for name, pointer in self.pointers().items() for each in pointer.all()}
        views = self.root / "views"
        found = sorted([*views.glob("*/"), *views.glob(f"*/{_GENERATIONS}/*/")])
        return [ViewLayout(path, names.get(str(path.relative_to(views)), ""), self.replicas) for path in found]

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    def files(self, path: str) -> Path:
        """A sink's output folder: a relative path lies in the application's folder."""
        return self.root / "files" / path
