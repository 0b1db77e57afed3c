"""The error tree. Every error says what is wrong, where, and what the operator does next.

    StatesideError                  code                    http   cause and kind
    ├── InputError                                                 the caller's mistake: fix the request or the input
    │   ├── EventRefused            event-refused           400    append of something other than a valid event
    │   │   └── IdConflict          id-conflict             409    …whose id belongs to an event with other content
    │   ├── SequenceConflict        sequence-conflict       409    an entity's sequence is not the expected one
    │   ├── CommandRefused          command-refused         409    a command not allowed in the entity's current state
    │   ├── EntityUnknown           entity-unknown          404    an entity without any event in the journal
    │   ├── PositionInvalid         position-invalid        400    a malformed position
    │   ├── PositionAhead           position-ahead          409    a position beyond the end of the journal
    │   ├── ViewInvalid             view-invalid            400    a view impossible to run or serve as declared
    │   │   └── ViewChanged         view-changed            400    …because its state was built with another declaration
    │   ├── SettingInvalid          setting-invalid         400    a setting unknown or out of range
    │   ├── ViewUnknown             view-unknown            404    no view of the given name is served here
    │   ├── KeyInvalid              key-invalid             400    a key with the wrong number or type of parts
    │   ├── RequestInvalid          request-invalid         400    a parameter unknown or out of range
    │   ├── CursorInvalid           cursor-invalid          400    a damaged cursor, or one of another query
    │   ├── EventsGone              events-gone             410    events dropped by the journal's retention
    │   ├── EventsNeeded            events-needed           409    dropping events still needed by a reader
    │   ├── HistoryGone             history-gone            410    a batch too old for the replica's history
    │   │   └── GenerationGone      generation-gone         410    …of a generation of the view that is not kept
    │   ├── PlanInvalid             plan-invalid            400    a price plan unfit for rating
    │   ├── CurrencyUnknown         currency-unknown        400    an unknown currency code
    │   ├── RouteUnknown            route-unknown           404    an address unknown to the server
    │   ├── DocumentUnknown         document-unknown        404    no invoice, note or dead letter of the given number
    │   ├── TokenInvalid            token-invalid           401    no token, or an unknown one
    │   ├── AccessDenied            access-denied           403    data outside the token's scope
    │   ├── Misdirected             misdirected             421    a key of another server's shard: names the server
    │   ├── BodyTooLarge            body-too-large          413    a request body over the limit
    │   ├── HeadTooLarge            head-too-large          431    a request head over the limit
    │   ├── BodyTooSlow             body-too-slow           408    a request body not received in time
    │   ├── MethodInvalid           method-invalid          405    an HTTP method not allowed at the address
    │   ├── IdentityTaken           identity-taken          409    a run under the name of another live process
    │   ├── SqlInvalid              sql-invalid             400    no SQL statement, or a forbidden one
    │   └── SqlTooLarge             sql-too-large           400    a statement whose result or memory is over the limit
    ├── StateError                                                 stored data is damaged, missing or not ours
    │   ├── JournalCorrupt          journal-corrupt         500    a damaged segment: names the file and the offset
    │   ├── JournalLocked           journal-locked          409    another writer does not end its turn in time
    │   ├── JournalFenced           journal-fenced          409    another owner has taken over the node
    │   ├── EntityElsewhere         entity-elsewhere        409    another node writes the entity: names the node
    │   ├── ViewsBusy               views-busy              409    another process maintains the journal's views
    │   ├── CheckpointInvalid       checkpoint-invalid      500    no checkpoint, damaged, or of an unknown format
    │   ├── CheckpointGap           checkpoint-gap          500    a needed state file was deleted
    │   ├── ReplicaInvalid          replica-invalid         503    the replica is damaged, and is being rebuilt
    │   ├── ArchiveInvalid          archive-invalid         500    a table is missing, or was replaced by another
    │   ├── LeaseInvalid            lease-invalid           500    a lease cannot be read, or not be kept in the folder
    │   ├── PastChanged             past-changed            500    the journal differs from the last audit's
    │   └── ValueOverflow           value-overflow          500    a number too large for its column
    │       └── MoneyOverflow       money-overflow          500    …and the number is an amount of money
    └── OperatingError                                             the environment's fault: repair, then retry
        ├── SetupError              setup                   503    Java, a package, a jar, a port or space is missing
        ├── PipelineFailed          pipeline-failed         503    the streaming query or its process failed
        │   └── ViewBroken          view-broken             503    …and would fail again until repaired
        ├── PipelineRunning         pipeline-running        409    another driver runs on the folder
        ├── LeadershipLost          leadership-lost         409    another process leads by now
        ├── CheckpointAway          checkpoint-away         503    Spark's checkpoint is temporarily not in its place
        ├── ClusterAway             cluster-away            503    no Spark master answers, or no worker has capacity
        ├── JournalAway             journal-away            503    the journal temporarily cannot be written
        ├── ArchiveAway             archive-away            503    an archive table temporarily cannot be read
        ├── SinkAway                sink-away               503    a sink's target is unreachable; held and retried
        ├── SinkRefused             sink-refused            502    a sink's target refuses the rows, and would again
        ├── SqlEnded                sql-ended               503    the statement's process died
        ├── SqlTimeout              sql-timeout             504    a statement over its time limit
        ├── ClientLeft              client-left             499    the client disconnected, and the work was ended
        ├── TooManyRequests         too-many-requests       429    over the rate or capacity limit; retry later
        └── NotFreshEnough          not-fresh-enough        503    the requested floor was not reached in time

An error's `code` is stable: clients and scripts may rely on a code. Programmer errors are assertions, outside the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar


class StatesideError(Exception):
    """The root: a message for people, a next step for the operator, a stable code for programs."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retry_after_s: int | None = None  # seconds after which the same HTTP request may succeed

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        """`class Late(InputError, code="late", status=409)`; what is not given is the parent's."""
        if code is not None:
            cls.code = code
        if status is not None:
            cls.status = status

    def __init__(self, what: str, *, where: str | None = None, next_step: str | None = None) -> None:
        self.what = what
        self.where = where
        self.next_step = next_step
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """The whole message: what, where, what to do next."""
        parts = [self.what if self.where is None else f"{self.what} ({self.where})"]
        if self.next_step:
            parts.append(self.next_step)
        return " ".join(part if part.endswith((".", "?", "!")) else f"{part}." for part in parts)

    def problem(self) -> dict[str, Any]:
        """The error as an RFC 9457 problem document.

        `where`, usually a path, goes to the server's own log only: HTTP clients learn nothing about the machine.
        """
        document: dict[str, Any] = {
            "type": f"urn:stateside:problem:{self.code}",
            "title": self.code.replace("-", " "),
            "status": self.status,
            "detail": self.what,
        }
        if self.next_step is not None:
            document["next_step"] = self.next_step
        return document

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (Spark's Python workers, server workers): all attributes must survive.
        return partial(type(self), where=self.where, next_step=self.next_step), (self.what,), vars(self)


class InputError(StatesideError, code="input", status=400):
    """The caller's mistake: nothing was changed, and the same call will fail again."""


class EventRefused(InputError, code="event-refused"):
    """An append of something other than a valid event. Nothing of the batch was stored."""


class IdConflict(EventRefused, code="id-conflict", status=409):
    """An append with the id of a stored event that has other content. Nothing of the append was stored.

    `events`: the conflicting events' numbers in the append; `ids`: their ids.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        next_step: str | None = None,
        events: tuple[int, ...] = (),
        ids: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.events, self.ids = events, ids

    def problem(self) -> dict[str, Any]:
        return super().problem() | {"ids": list(self.ids), "events": list(self.events)}


class SequenceConflict(InputError, code="sequence-conflict", status=409):
    """A conditional append found its entity at another sequence: `current`. Nothing was stored."""

    def __init__(
        self, what: str, *, where: str | None = None, next_step: str | None = None, current: int | None = None
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.current = current

    def problem(self) -> dict[str, Any]:
        return super().problem() | {"current": self.current}


class CommandRefused(InputError, code="command-refused", status=409):
    """A command that the entity, in its current state, does not allow. Nothing was stored."""


class EntityUnknown(InputError, code="entity-unknown", status=404): ...


class PositionInvalid(InputError, code="position-invalid"): ...


class PositionAhead(InputError, code="position-ahead", status=409):
    """A position beyond the end of the journal: no append has returned such a receipt."""


class ViewInvalid(InputError, code="view-invalid"):
    """A view impossible to run or serve as declared; refused rather than served wrongly."""


class ViewChanged(ViewInvalid, code="view-changed"):
    """A view that is not the one its state was built with."""


class SettingInvalid(InputError, code="setting-invalid"):
    """A setting, in code, in a file or by a flag, that does not exist or has an impossible value."""


class ViewUnknown(InputError, code="view-unknown", status=404): ...


class KeyInvalid(InputError, code="key-invalid"): ...


class RequestInvalid(InputError, code="request-invalid"): ...


class CursorInvalid(InputError, code="cursor-invalid"):
    """A damaged cursor, or a cursor of another view or another query."""


class EventsGone(InputError, code="events-gone", status=410):
    """Events of the journal that retention has dropped. Never skipped: the message names them."""


class EventsNeeded(InputError, code="events-needed", status=409):
    """Retention would have dropped events that a registered reader has not read yet. Nothing was dropped."""


class HistoryGone(InputError, code="history-gone", status=410):
    """A request for rows as of a batch older than the replica's history, or of another run."""


class GenerationGone(HistoryGone, code="generation-gone"):
    """A request for a generation of a view that is not kept any more: an old cursor, or an old batch."""


class PlanInvalid(InputError, code="plan-invalid"):
    """A price plan or billing cycle unfit for rating. Nothing was published."""


class CurrencyUnknown(InputError, code="currency-unknown"):
    """Not the name of a currency; amounts could neither be rounded nor shown."""


class RouteUnknown(InputError, code="route-unknown", status=404): ...


class DocumentUnknown(InputError, code="document-unknown", status=404): ...


class TokenInvalid(InputError, code="token-invalid", status=401):
    """A request with an unknown token, or without a token where one is needed."""


class AccessDenied(InputError, code="access-denied", status=403):
    """A known token, for data outside its scope."""


class Misdirected(InputError, code="misdirected", status=421):
    """A request to a server for keys outside its shard. `location` names the server that holds them, once known.

    `view` and `leading` identify the keys: by the bytes of the leading column, or all keys of the view if `leading` is
    None.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        next_step: str | None = None,
        view: str = "",
        leading: bytes | None = None,
        location: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.view, self.leading, self.location = view, leading, location

    def problem(self) -> dict[str, Any]:
        return super().problem() | ({} if self.location is None else {"location": self.location})


class BodyTooLarge(InputError, code="body-too-large", status=413):
    """A request body over the limit. The rest of the body was not read."""


class HeadTooLarge(InputError, code="head-too-large", status=431):
    """A request head over the limit. The connection is closed."""


class BodyTooSlow(InputError, code="body-too-slow", status=408): ...


class MethodInvalid(InputError, code="method-invalid", status=405):
    allowed: Sequence[str] = ()  # the methods of the address, for the header Allow


class IdentityTaken(InputError, code="identity-taken", status=409):
    """A run under a name with which another process already leads or stands by."""


class SqlInvalid(InputError, code="sql-invalid"):
    """No SQL statement, or a forbidden one: writing, or reaching beyond the relations."""


class SqlTooLarge(InputError, code="sql-too-large"):
    """A statement over the limit of memory or of result size."""


class StateError(StatesideError, code="state"):
    """Stored data is damaged, missing, or belongs to another application."""


class JournalCorrupt(StateError, code="journal-corrupt"):
    """A damaged frame inside a journal segment. Never skipped: the message names file and offset."""


class JournalLocked(StateError, code="journal-locked", status=409):
    """Another writer, perhaps a paused one, did not end its turn in time. Nothing was stored."""


class JournalFenced(StateError, code="journal-fenced", status=409):
    """Another owner took over this node while this process was paused. Nothing was acknowledged."""


class EntityElsewhere(StateError, code="entity-elsewhere", status=409):
    """Another node writes this entity, and assigns its events their sequences. Nothing was stored."""


class ViewsBusy(StateError, code="views-busy", status=409):
    """Another process maintains the journal's views, and two must not. Any process may read the views meanwhile."""


class CheckpointInvalid(StateError, code="checkpoint-invalid"):
    """Not a checkpoint, a damaged one, or of an unknown format."""


class CheckpointGap(StateError, code="checkpoint-gap"):
    """Spark's retention deleted a state file that is needed to go on."""


class ReplicaInvalid(StateError, code="replica-invalid", status=503):
    """The replica's own files cannot be used: they are moved aside, and the replica is rebuilt from the checkpoint."""


class ArchiveInvalid(StateError, code="archive-invalid"):
    """A sink's table is missing, or another table has taken its place."""


class LeaseInvalid(StateError, code="lease-invalid"):
    """An application's lease cannot be read, or its folder cannot hold one."""


class PastChanged(StateError, code="past-changed"):
    """The journal or its events differ from those of the last audit. Nothing was audited."""


class ValueOverflow(StateError, code="value-overflow"):
    """A number too large for its column's type; reported rather than answered wrongly."""


class MoneyOverflow(ValueOverflow, code="money-overflow"):
    """An amount of money too large for any column; reported before a wrong sum exists."""


class OperatingError(StatesideError, code="operating", status=503):
    """Something in the environment is missing or failing; the same call succeeds after the repair."""


class SetupError(OperatingError, code="setup"): ...


class PipelineFailed(OperatingError, code="pipeline-failed"):
    """The streaming query or its process failed."""


class ViewBroken(PipelineFailed, code="view-broken"):
    """A view failed and would fail again: an operator must remove the cause before a restart."""


class PipelineRunning(OperatingError, code="pipeline-running", status=409):
    """Another driver runs on the folder, and two must not."""


class LeadershipLost(OperatingError, code="leadership-lost", status=409):
    """Another process leads the application. Nothing that this process did since the takeover counts."""


class CheckpointAway(OperatingError, code="checkpoint-away"):
    """A running query's checkpoint is gone or replaced. Nothing is delivered until the checkpoint is back."""


class ClusterAway(OperatingError, code="cluster-away"):
    """The named Spark cluster does not answer, or has no capacity for an executor."""


class JournalAway(OperatingError, code="journal-away"):
    """The journal's disk is missing, full or failing, or holds another journal. Nothing was acknowledged."""


class ArchiveAway(OperatingError, code="archive-away"):
    """An archive table cannot be read: its storage is away or failing. Live rows are answered all the same."""


class SinkAway(OperatingError, code="sink-away"):
    """A sink's target cannot be reached. The batch is held and retried; nothing is lost meanwhile."""


class SinkRefused(OperatingError, code="sink-refused", status=502):
    """A sink's target refuses these rows, and would refuse them again: an operator must repair rows or target."""


class SqlEnded(OperatingError, code="sql-ended"):
    """The statement's process died: by the statement's own fault, or by another statement of the same token."""


class SqlTimeout(OperatingError, code="sql-timeout", status=504):
    """A statement over its time limit, cancelled."""


class ClientLeft(OperatingError, code="client-left", status=499):
    """The client disconnected before the answer was ready. The work was ended."""


class TooManyRequests(OperatingError, code="too-many-requests", status=429):
    """More requests per second, or at a time, than allowed. Nothing was done; `retry_after_s` says when to retry."""

    retry_after_s: int

    def __init__(
        self, what: str, *, where: str | None = None, next_step: str | None = None, retry_after_s: int = 1
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.retry_after_s = retry_after_s

    def problem(self) -> dict[str, Any]:
        """Adds `retry_after_s`, also sent as the header Retry-After."""
        return {**super().problem(), "retry_after_s": self.retry_after_s}


class NotFreshEnough(OperatingError, code="not-fresh-enough"):
    """The reader's floor was not reached within the waiting time."""
