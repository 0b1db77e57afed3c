"""Where things lie in an application's folder.

FOLDER/
  journal/                    the embedded journal: segments, end mark, lock, and what crashes tore (.torn-)
  journal/views/              the views of queries of the journal; they may be deleted, and are then made anew
  journal/base                what is known of events that retention has dropped; never to be deleted
  journal/summaries/          what finished segments hold; they may be deleted, and are then made anew
  journal/nodes/, merged/     instead of segments, where nodes write: their logs, and the stream that is made of these
  journal/topic.json          instead of segments, where the journal is on Kafka: at which address; index/: its owner's
  journal/readers/NAME.json   up to where a reader that registered itself has read
  journal/nodes/NAME/EPOCH/   where several nodes write: the log of each owner of each node, a journal of its own
  journal/slots/              which node writes which entities
  journal/merged/PARTITION/   the stream that a merger makes of the nodes' logs; never to be deleted
  driver.lock                 held by the one Spark driver that may run here
  lease/                      who leads and who stands by, where there are standbys (`leadership.lease`)
  keys.json                   what tokens are signed with; without it a server needs none, and listens on loopback only
  issued.json                 the register of the tokens that were issued, and of those that are revoked
  refusals.jsonl              whom a server turned away, and why; older ones in refusals.1.jsonl and so on
  pause                       while it is there no new batch is begun: the driver is about to stop
  fields.json                 the payload's fields that views declare, by which appends are checked (`journal.fields`)
  clock.json                  how far billing's clockwork has come
  views/VIEW/checkpoint/      Spark's own files, which only Spark writes (but for paths: `pipeline.schema_paths`)
  views/VIEW/checkpoint.…/    before-: put aside by a restore, and may be deleted; restoring-: what a restore brings, or
                              has left when it was interrupted (`ops.restoring`)
  views/VIEW/catalogue.json   how the state's buffers become the view's columns
  views/VIEW/steps.json       the steps by which the view's computed columns follow from its quantities
  views/VIEW/plans.json       of billing: the versions of price plans that rows and documents refer to
  views/VIEW/book/            of billing: snapshots of the book of plans and assignments
  views/VIEW/reports/         of billing: what rating found in the batch that is running
  views/VIEW/plan.txt         the query's plan, to tell a changed query by
  views/VIEW/heartbeat.json   the runner's sign of life
  views/VIEW/progress.jsonl   what Spark reported of the newest batches
  views/VIEW/refused/         events of the batch that is running which do not reach the view (`pipeline.dead_letters`)
  views/VIEW/dead_letters.json  how many dead letters the view has
  views/VIEW/replica/         the LMDB copy that readers ask
  views/VIEW/marks/           which table or folder the view's sink has filled, so that it is never made anew
  views/VIEW/savepoints/NAME/ the checkpoint as it was after one batch; each may be deleted
  views/VIEW/begun.json       the batch that a sink at most once was last given
  tables/NAME/                Delta tables: the archive
  files/PATH/                 what sinks write as files, one a batch
  audit/                      the auditor's ledger; it may be deleted, and is then made anew
  servers/NAME.json           what each server that serves this folder announces of itself, every second
  spark/                      Spark's scratch files

A folder that serves the checkpoint of a job which is not ours has views with catalogue and replica only, and these two:

  checkpoint.json             the pointer: where that checkpoint is; it lies elsewhere, and is never written to
  inferred.json               which of its views are not served, with the reasons, and what is waited for
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from stateside.core.errors import CheckpointInvalid


@dataclass(frozen=True, slots=True)
class ViewLayout:
    """The places of one view."""

    root: Path

    @property
    def name(self) -> str:
        """The view's name."""
        return self.root.name

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint."""
        return self.root / "checkpoint"

    @property
    def checkpoint_location(self) -> str:
        """Where readers find the checkpoint, a path or a URI: elsewhere, if the folder has a pointer."""
        return Layout(self.root.parent.parent).pointed() or str(self.checkpoint)

    @property
    def catalogue(self) -> Path:
        """The catalogue, beside the checkpoint."""
        return self.root / "catalogue.json"

    @property
    def steps(self) -> Path:
        """The steps of the view's computed columns; written by its sink, and only ever extended."""
        return self.root / "steps.json"

    @property
    def plan(self) -> Path:
        """The query's plan as text."""
        return self.root / "plan.txt"

    @property
    def progress(self) -> Path:
        """The newest batches' progress."""
        return self.root / "progress.jsonl"

    @property
    def heartbeat(self) -> Path:
        """The heartbeat, beside the checkpoint."""
        return self.root / "heartbeat.json"

    @property
    def refused(self) -> Path:
        """What the tasks of the running batch refused, until it is stored as dead letters."""
        return self.root / "refused"

    @property
    def dead_letters(self) -> Path:
        """How many dead letters the view has."""
        return self.root / "dead_letters.json"

    @property
    def replica(self) -> Path:
        """The replica's LMDB environment."""
        return self.root / "replica"

    @property
    def begun(self) -> Path:
        """The note of the batch that was last begun, of a sink at most once."""
        return self.root / "begun.json"

    @property
    def savepoints(self) -> Path:
        """The savepoints, a folder each."""
        return self.root / "savepoints"

    def mark(self, name: str) -> Path:
        """The mark of the table or folder of this name that the view's sink fills."""
        return self.root / "marks" / f"{name}.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of one application."""

    root: Path

    @property
    def journal(self) -> Path:
        """The embedded journal."""
        return self.root / "journal"

    @property
    def driver_lock(self) -> Path:
        """The lock of the one driver."""
        return self.root / "driver.lock"

    @property
    def keys(self) -> Path:
        """The keys that tokens are signed with."""
        return self.root / "keys.json"

    @property
    def issued(self) -> Path:
        """The register of tokens, without the tokens."""
        return self.root / "issued.json"

    @property
    def refusals(self) -> Path:
        """Whom a server turned away, a line each."""
        return self.root / "refusals.jsonl"

    @property
    def pause(self) -> Path:
        """While this file exists no new batch is begun."""
        return self.root / "pause"

    @property
    def clock(self) -> Path:
        """How far billing's clockwork has come."""
        return self.root / "clock.json"

    @property
    def fields(self) -> Path:
        """The payload's fields that views declare."""
        return self.root / "fields.json"

    @property
    def pointer(self) -> Path:
        """Names the checkpoint that is served from here, if it is that of a job which is not ours."""
        return self.root / "checkpoint.json"

    @property
    def inferred(self) -> Path:
        """What could be told of that checkpoint's views."""
        return self.root / "inferred.json"

    def pointed(self) -> str | None:
        """The path or URI that the pointer names; None in an application's folder, which has none."""
        try:
            return str(json.loads(self.pointer.read_bytes())["checkpoint"])
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as error:
            raise CheckpointInvalid(
                f"The pointer to the checkpoint cannot be read: {error!r}",
                where=str(self.pointer),
                next_step="Delete this folder, and serve the checkpoint again: replicas are rebuilt",
            ) from error

    @property
    def audit(self) -> Path:
        """The auditor's own folder."""
        return self.root / "audit"

    @property
    def spark(self) -> Path:
        """Spark's scratch folder."""
        return self.root / "spark"

    def view(self, name: str) -> ViewLayout:
        """The places of the view of this name."""
        return ViewLayout(self.root / "views" / name)

    def views(self) -> list[ViewLayout]:
        """The views that have a catalogue, by name."""
        return [ViewLayout(path.parent) for path in sorted((self.root / "views").glob("*/catalogue.json"))]

    def table(self, name: str) -> Path:
        """The Delta table of this name."""
        return self.root / "tables" / name

    def files(self, path: str) -> Path:
        """The folder that a sink writes files to: a relative path lies in the application's folder."""
        return self.root / "files" / path
