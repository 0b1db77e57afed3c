"""The error tree. Every error says what is wrong, where, and what the operator does next.

    StatesideError                  code                    http   whose fault, what kind
    ├── InputError                                                 the user's: fix the request or the input
    │   ├── EventRefused            event-refused           400    the journal's append refuses what is no event
    │   │   └── IdConflict          id-conflict             409    …or has the id of another event: names it
    │   ├── SequenceConflict        sequence-conflict       409    an entity's sequence is not the one expected
    │   ├── CommandRefused          command-refused         409    an entity in its state does not do what it is asked
    │   ├── EntityUnknown           entity-unknown          404    an entity that no event of the journal is about
    │   ├── PositionInvalid         position-invalid        400    a text or offset that is no position
    │   ├── PositionAhead           position-ahead          409    a position beyond the end of the journal
    │   ├── ViewInvalid             view-invalid            400    a view that cannot be run or served as declared
    │   ├── SettingInvalid          setting-invalid         400    a setting that does not exist or cannot be
    │   ├── ViewUnknown             view-unknown            404    no view of that name is served here
    │   ├── KeyInvalid              key-invalid             400    a key with the wrong number or type of parts
    │   ├── RequestInvalid          request-invalid         400    a parameter that is unknown or out of range
    │   ├── CursorInvalid           cursor-invalid          400    a damaged cursor, or one of another question
    │   ├── EventsGone              events-gone             410    events of a journal that retention has dropped
    │   ├── EventsNeeded            events-needed           409    events to be dropped that a reader still needs
    │   ├── HistoryGone             history-gone            410    a batch too old for the replica's history
    │   ├── PlanInvalid             plan-invalid            400    a price plan that cannot be rated by
    │   ├── CurrencyUnknown         currency-unknown        400    three letters that are no currency
    │   ├── RouteUnknown            route-unknown           404    an address that this server does not have
    │   ├── DocumentUnknown         document-unknown        404    no invoice, note or dead letter of that number
    │   ├── TokenInvalid            token-invalid           401    no token, or one that is not known here
    │   ├── AccessDenied            access-denied           403    a token that does not reach so far
    │   ├── Misdirected             misdirected             421    a key that another server holds: says which
    │   ├── BodyTooLarge            body-too-large          413    a request's body that is longer than it may be
    │   ├── HeadTooLarge            head-too-large          431    a request's head that is longer than it may be
    │   ├── BodyTooSlow             body-too-slow           408    a request's body that does not come in time
    │   ├── MethodInvalid           method-invalid          405    an HTTP method that this address does not take
    │   ├── IdentityTaken           identity-taken          409    a run under a name that another process has
    │   ├── SqlInvalid              sql-invalid             400    a statement that is none, or may not run here
    │   └── SqlTooLarge             sql-too-large           400    a statement whose result or memory is over the limit
    ├── StateError                                                 what is stored is damaged, missing or not ours
    │   ├── JournalCorrupt          journal-corrupt         500    a damaged segment: names the file and the offset
    │   ├── JournalLocked           journal-locked          409    another writer does not end its turn in time
    │   ├── JournalFenced           journal-fenced          409    another owner has taken this node over
    │   ├── EntityElsewhere         entity-elsewhere        409    an entity that another node writes: says which
    │   ├── ViewsBusy               views-busy              409    another process follows the stream with these views
    │   ├── CheckpointInvalid       checkpoint-invalid      500    no checkpoint, damaged, or of an unknown format
    │   ├── CheckpointGap           checkpoint-gap          500    a state file that is needed is already gone
    │   ├── ReplicaInvalid          replica-invalid         503    the replica is damaged, and is being rebuilt
    │   ├── ArchiveInvalid          archive-invalid         500    a table that is missing, or another than before
    │   ├── LeaseInvalid            lease-invalid           500    a lease that cannot be read, or not be kept there
    │   ├── PastChanged             past-changed            500    a journal that is not what the last audit read
    │   └── ValueOverflow           value-overflow          500    a number that grew too large for its column
    │       └── MoneyOverflow       money-overflow          500    …and is an amount of money
    └── OperatingError                                             the world's: mend it, then try again
        ├── SetupError              setup                   503    Java, a jar, disk space or a port is missing
        ├── PipelineFailed          pipeline-failed         503    the streaming query or its process ended badly
        │   └── ViewBroken          view-broken             503    …and would do so again: somebody must mend it first
        ├── PipelineRunning         pipeline-running        409    another driver runs on this folder
        ├── LeadershipLost          leadership-lost         409    another process leads by now: this one may not go on
        ├── CheckpointAway          checkpoint-away         503    Spark's checkpoint is not at its place for now
        ├── ClusterAway             cluster-away            503    no master of Spark's answers, or no worker has room
        ├── JournalAway             journal-away            503    the journal cannot be written for now
        ├── ArchiveAway             archive-away            503    a table of the archive cannot be read for now
        ├── SinkAway                sink-away               503    a sink's other side cannot be reached; held, retried
        ├── SinkRefused             sink-refused            502    a sink's other side refuses the rows, and would again
        ├── SqlEnded                sql-ended               503    the process that runs statements ended under this one
        ├── SqlTimeout              sql-timeout             504    a statement that took longer than it may
        ├── ClientLeft              client-left             499    who asked went away, and the work was ended
        ├── TooManyRequests         too-many-requests       429    more than there is room for; again after a while
        └── NotFreshEnough          not-fresh-enough        503    the floor that was asked for was not reached in time

An error's `code` is stable: clients and scripts may rely on it. Programmer errors are assertions, not in this tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar


class StatesideError(Exception):
    """The root: a message for people, a next step for the operator, a stable code for programs."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retry_after_s: int | None = None  # of an answer over HTTP: after how long the same request may do better

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
        """This error as an RFC 9457 problem document.

        Where it happened, a path mostly, is for the server's own log: who asks over HTTP is not told of its machine.
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
        # Errors cross process borders (Spark's Python workers, the server's workers): keyword arguments must survive.
        return _rebuild, (type(self), self.what, self.where, self.next_step)


def _rebuild(cls: type[StatesideError], what: str, where: str | None, next_step: str | None) -> StatesideError:
    return cls(what, where=where, next_step=next_step)


class InputError(StatesideError):
    """The caller's mistake: nothing was changed, and the same call will fail again."""

    code = "input"
    status = 400


class EventRefused(InputError):
    """The journal's append was given something that is no event. Nothing of the batch was stored."""

    code = "event-refused"


class IdConflict(EventRefused):
    """An append has the id of an event that says something else. Nothing of it was stored.

    `events`: the numbers, in the append, of those that have such ids; `ids`: the ids themselves.
    """

    code = "id-conflict"
    status = 409

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
        """With the ids, and which of the request's events have them."""
        return super().problem() | {"ids": list(self.ids), "events": list(self.events)}

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()
        return rebuild, arguments, {"events": self.events, "ids": self.ids}


class SequenceConflict(InputError):
    """A conditional append found its entity at another sequence: `current`. Nothing was stored."""

    code = "sequence-conflict"
    status = 409

    def __init__(
        self, what: str, *, where: str | None = None, next_step: str | None = None, current: int | None = None
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.current = current

    def problem(self) -> dict[str, Any]:
        """With the sequence that the entity has."""
        return super().problem() | {"current": self.current}

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()
        return rebuild, arguments, {"current": self.current}


class CommandRefused(InputError):
    """An entity, in the state that it is in, does not do what it was asked to. Nothing was stored."""

    code = "command-refused"
    status = 409


class EntityUnknown(InputError):
    """An entity that no event of the journal is about."""

    code = "entity-unknown"
    status = 404


class PositionInvalid(InputError):
    """A text or an offset that is no position in a journal."""

    code = "position-invalid"


class PositionAhead(InputError):
    """A position beyond the end of the journal: no append to it has returned that as a receipt."""

    code = "position-ahead"
    status = 409


class ViewInvalid(InputError):
    """A view that cannot be run or served as it is declared; refused rather than served wrongly."""

    code = "view-invalid"


class SettingInvalid(InputError):
    """A setting, in code, in a file or by a flag, that does not exist or has an impossible value."""

    code = "setting-invalid"


class ViewUnknown(InputError):
    """No view of that name is served here."""

    code = "view-unknown"
    status = 404


class KeyInvalid(InputError):
    """A key with the wrong number of parts, or a part of the wrong type."""

    code = "key-invalid"


class RequestInvalid(InputError):
    """A request parameter that is unknown, malformed or out of range."""

    code = "request-invalid"


class CursorInvalid(InputError):
    """A cursor that was damaged, or that belongs to another view or another question."""

    code = "cursor-invalid"


class EventsGone(InputError):
    """Events that the journal had, and that retention has dropped. Never skipped: the message names them."""

    code = "events-gone"
    status = 410


class EventsNeeded(InputError):
    """Events were to be dropped that a known reader has not read yet. Nothing was dropped."""

    code = "events-needed"
    status = 409


class HistoryGone(InputError):
    """A replica was asked for its rows as of a batch that is older than its history, or of another run."""

    code = "history-gone"
    status = 410


class PlanInvalid(InputError):
    """A price plan, or a billing cycle, that nothing could be rated by. Nothing was published."""

    code = "plan-invalid"


class CurrencyUnknown(InputError):
    """Not the name of a currency; amounts could neither be rounded nor shown."""

    code = "currency-unknown"


class RouteUnknown(InputError):
    """An address that this server does not have."""

    code = "route-unknown"
    status = 404


class DocumentUnknown(InputError):
    """No invoice, note or dead letter of that number."""

    code = "document-unknown"
    status = 404


class TokenInvalid(InputError):
    """A request without a token where one is needed, or with one that is not known."""

    code = "token-invalid"
    status = 401


class AccessDenied(InputError):
    """A token that is known, for data that it does not reach."""

    code = "access-denied"
    status = 403


class Misdirected(InputError):
    """A server that holds a share of the keys was asked for others. `location` says who has them, once it is known.

    `view` and `leading` say which keys are meant: by the leading column's bytes, or all of the view's if it is None.
    """

    code = "misdirected"
    status = 421

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
        """With the location."""
        return super().problem() | ({} if self.location is None else {"location": self.location})

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()
        return rebuild, arguments, {"view": self.view, "leading": self.leading, "location": self.location}


class BodyTooLarge(InputError):
    """A request's body that is longer than it may be. It was not read to its end."""

    code = "body-too-large"
    status = 413


class HeadTooLarge(InputError):
    """A request's head that is longer than it may be. The connection is closed."""

    code = "head-too-large"
    status = 431


class BodyTooSlow(InputError):
    """A request's body that was not there within the time that it may take."""

    code = "body-too-slow"
    status = 408


class MethodInvalid(InputError):
    """An HTTP method that this address does not take."""

    code = "method-invalid"
    status = 405
    allowed: Sequence[str] = ()  # the methods that it takes, for the header Allow


class IdentityTaken(InputError):
    """A run was given a name under which another process leads or stands by."""

    code = "identity-taken"
    status = 409


class SqlInvalid(InputError):
    """A text that is no statement, or one that may not run here: it writes, or reaches beyond the relations."""

    code = "sql-invalid"


class SqlTooLarge(InputError):
    """A statement that needs more memory, or has a larger result, than one may."""

    code = "sql-too-large"


class StateError(StatesideError):
    """Something stored is damaged, missing, or belongs to somebody else."""

    code = "state"


class JournalCorrupt(StateError):
    """A damaged frame inside a journal segment. Never skipped: the message names file and offset."""

    code = "journal-corrupt"


class JournalLocked(StateError):
    """Another writer, which is paused perhaps, did not end its turn in time. Nothing was stored."""

    code = "journal-locked"
    status = 409


class JournalFenced(StateError):
    """Another owner has taken this node over while this one was paused. Nothing was acknowledged."""

    code = "journal-fenced"
    status = 409


class EntityElsewhere(StateError):
    """Another node writes this entity, and gives its events their sequences. Nothing was stored."""

    code = "entity-elsewhere"
    status = 409


class ViewsBusy(StateError):
    """Another process keeps a journal's views, and two must not. Anybody may read them meanwhile."""

    code = "views-busy"
    status = 409


class CheckpointInvalid(StateError):
    """Not a checkpoint, a damaged one, or one in a format that this version does not know."""

    code = "checkpoint-invalid"


class CheckpointGap(StateError):
    """A state file that is needed to go on was already deleted by Spark's retention."""

    code = "checkpoint-gap"


class ReplicaInvalid(StateError):
    """The replica's own files cannot be used: they are moved aside, and it is rebuilt from the checkpoint."""

    code = "replica-invalid"
    status = 503


class ArchiveInvalid(StateError):
    """A sink's table is missing, or is another one than it was before."""

    code = "archive-invalid"


class LeaseInvalid(StateError):
    """The lease of an application cannot be read, or its folder cannot hold one."""

    code = "lease-invalid"


class PastChanged(StateError):
    """The journal is another one than at the last audit, or its events are. Nothing was audited."""

    code = "past-changed"


class ValueOverflow(StateError):
    """A number that grew too large for its column's type; told rather than answered with a wrong one."""

    code = "value-overflow"


class MoneyOverflow(ValueOverflow):
    """An amount of money that no column could hold; told before there is a wrong sum."""

    code = "money-overflow"


class OperatingError(StatesideError):
    """Something outside is missing or in the way; after mending it the same call works."""

    code = "operating"
    status = 503


class SetupError(OperatingError):
    """This machine lacks something: Java, a jar, disk space, a free port."""

    code = "setup"


class PipelineFailed(OperatingError):
    """The streaming query, or the process that runs it, ended badly."""

    code = "pipeline-failed"


class ViewBroken(PipelineFailed):
    """A view failed in a way that would come again: somebody must mend the cause before it is started again."""

    code = "view-broken"


class PipelineRunning(OperatingError):
    """Another driver runs on this folder, and two must not."""

    code = "pipeline-running"
    status = 409


class LeadershipLost(OperatingError):
    """Another process leads the application by now. Nothing that this one did since counts."""

    code = "leadership-lost"
    status = 409


class CheckpointAway(OperatingError):
    """A running query's checkpoint is gone, or another one is in its place. Nothing is delivered until it is back."""

    code = "checkpoint-away"


class ClusterAway(OperatingError):
    """The Spark cluster that was named does not answer, or has no room for an executor."""

    code = "cluster-away"


class JournalAway(OperatingError):
    """The journal's disk is missing, full or failing, or holds another journal. Nothing was acknowledged."""

    code = "journal-away"


class ArchiveAway(OperatingError):
    """A table of the archive cannot be read: its storage is away or failing. Live rows are answered all the same."""

    code = "archive-away"


class SinkAway(OperatingError):
    """A sink's other side cannot be reached. The batch is held and tried again; nothing is lost meanwhile."""

    code = "sink-away"


class SinkRefused(OperatingError):
    """A sink's other side refuses these rows, and would refuse them again: somebody must mend them or it."""

    code = "sink-refused"
    status = 502


class SqlEnded(OperatingError):
    """The process that ran this statement ended: by its fault, or by that of another one of the same token."""

    code = "sql-ended"


class SqlTimeout(OperatingError):
    """A statement that took longer than it was given, and was ended."""

    code = "sql-timeout"
    status = 504


class ClientLeft(OperatingError):
    """Who asked went away before the answer was there. The work was ended."""

    code = "client-left"
    status = 499


class TooManyRequests(OperatingError):
    """More requests, in a second or at a time, than there is room for. Nothing was done; `retry_after_s` says when."""

    code = "too-many-requests"
    status = 429
    retry_after_s: int

    def __init__(
        self, what: str, *, where: str | None = None, next_step: str | None = None, retry_after_s: int = 1
    ) -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.retry_after_s = retry_after_s

    def problem(self) -> dict[str, Any]:
        """With the time after which to try again, which is in the header Retry-After as well."""
        return {**super().problem(), "retry_after_s": self.retry_after_s}

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(type(self), where=self.where, next_step=self.next_step, retry_after_s=self.retry_after_s)
        return again, (self.what,)


class NotFreshEnough(OperatingError):
    """The floor that the reader asked for was not reached within the waiting time."""

    code = "not-fresh-enough"
