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
  lease/                      who leads and who stands by, where there are standbys (`leadership.lease`)
  keys.json                   the signing keys of tokens; without keys a server asks for no token, on loopback only
  issued.json                 the register of issued and revoked tokens
  refusals.jsonl              the refused requests, with reasons; older ones in refusals.1.jsonl and so on
  pause                       while this file exists no new batch begins: the driver is about to stop
  fields.json                 the payload fields declared by views, for the check of appends (`journal.payload`)
  clock.json                  the progress of billing's clock events
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
  views/VIEW/refused/         the refused events of the running batch (`pipeline.dead_letters`)
  views/VIEW/dead_letters.json  the number of the view's dead letters
  views/VIEW/replica/         the LMDB environment for reads
  views/VIEW/marks/           which table or folder the view's sink has filled, so that no second one is created
  views/VIEW/savepoints/NAME/ the checkpoint as of one batch; each may be deleted
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

from dataclasses import dataclass
from pathlib import Path

from stateside.core.errors import CheckpointInvalid
from stateside.core.json_file import JsonFile

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
LATE_ROWS: JsonFile[int] = JsonFile(
    "The number of late rows", lambda document: int(document["count"]), lambda count: {"count": count}, durable=False
)


@dataclass(frozen=True, slots=True)
class ViewLayout:
    """The paths of one view."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def checkpoint_location(self) -> str:
        """Where readers find the checkpoint, a path or a URI: elsewhere, if the folder has a pointer."""
        return Layout(self.root.parent.parent).pointed() or str(self.checkpoint)

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
        return self.root / "replica"

    @property
    def begun(self) -> Path:
        """The last batch given to an at-most-once sink."""
        return self.root / "begun.json"

    @property
    def savepoints(self) -> Path:
        return self.root / "savepoints"

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
    """The paths of one application."""

    root: Path

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
        return self.root / "pause"

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
        return ViewLayout(self.root / "views" / name)

    def views(self) -> list[ViewLayout]:
        """The views with a catalogue, by name."""
        return [ViewLayout(path.parent) for path in sorted((self.root / "views").glob("*/catalogue.json"))]

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    def files(self, path: str) -> Path:
        """A sink's output folder: a relative path lies in the application's folder."""
        return self.root / "files" / path
