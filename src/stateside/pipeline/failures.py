"""Failures of queries: the cause in one line, and whether a restart can help.

    retry       external causes: a lost task, a disk, a network, a function that raised
    final       causes that would recur: our own errors about input or stored state, a sink that refuses the rows,
                another driver on the same checkpoint, a state that does not fit

A function that always raises is retried too, because one failure proves nothing; the restart limit ends the
retries.

An *away* cause is retried for as long as batches are held for sinks, without counting: a full disk, or a journal,
checkpoint or broker that cannot be reached. The resource comes back, or an operator brings it back; nothing is lost
meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JNetworkError

from stateside.core import errors
from stateside.core.errors import (
    CheckpointAway,
    InputError,
    JournalAway,
    LeadershipLost,
    OperatingError,
    PipelineFailed,
    SinkRefused,
    StateError,
    StatesideError,
)

_OURS = re.compile(rf"{re.escape(errors.__name__)}\.(?P<name>\w+): (?P<what>.*)")
_LAST_LINE_OF_TRACEBACK = "Traceback (most recent call last)"
_FINAL_CONDITIONS = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_SCHEMA_FILES_THRESHOLD_EXCEEDED",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
)
# Messages of the operating system, then of Kafka's clients, whose timeouts are recognised by class name.
_AWAY = re.compile(
    r"No space left on device|Disk quota exceeded|Stale file handle|Transport endpoint is not connected"
    r"|Permission denied|Read-only file system"
    r"|kafka\.common\.errors\.(?:Timeout|Disconnect|Network)\w*|Timed out waiting for a node assignment"
)
# The message of Spark's Kafka source for missing offsets; its own advice is to ignore them.
_EVENTS_GONE = re.compile(
    r"because they are not available in Kafka any more.*?Reason:\s*(?P<which>.+?\.)(?:\s|$)|"
    r"(?P<beyond>The resolved start offset \S+ is greater than the resolved end offset .*?)\.?\s*(?:\n|$)",
    re.DOTALL,
)
_AWAY_KINDS = (CheckpointAway, JournalAway)


@dataclass(frozen=True, slots=True)
class Failure:
    """The cause of a query's end, and whether a restart may help; `lasting`: not in another process either.

    `away`: a resource cannot be reached for now, and the number of attempts does not count.
    """

    why: str
    worth_retrying: bool
    lasting: bool = False
    away: bool = False


def judge(error: Exception | None, delivered: Exception | None = None) -> Failure:
    """Classify the failure that Spark reports.

    `delivered` is the sink's exception, which Spark passes on only as text.
    """
    if isinstance(delivered, StatesideError):
        return _of_ours(delivered.sentence(), type(delivered))
    if error is None:
        return Failure("it was stopped from outside", worth_retrying=False)
    if isinstance(error, Py4JError | OSError):
        return Failure(f"Spark's JVM is gone ({error})", worth_retrying=False)
    why = reason(error)
    ours = _OURS.search(why)
    if ours:
        return _of_ours(ours["what"], getattr(errors, ours["name"], StatesideError))
    gone = _EVENTS_GONE.search(str(error))
    if gone:
        return Failure(_events_gone(gone["which"] or gone["beyond"]), worth_retrying=False, lasting=True)
    final, away = any(condition in str(error) for condition in _FINAL_CONDITIONS), _AWAY.search(_with_causes(error))
    if away and away[0] not in why:
        why = f"{away[0]}: {why}"
    return Failure(why, not final, away=not final and away is not None)


def _with_causes(error: BaseException) -> str:
    """The messages of an error and of its causes in the JVM: of a full disk only a cause may tell."""
    cause = getattr(error, "_cause", None)
    return str(error) if cause is None else f"{error}\n{_with_causes(cause)}"


def _events_gone(which: str) -> str:
    return (
        f"Kafka does not have any more what the view reads next: {' '.join(which.split()).rstrip('.')}. Either the "
        "topic was recreated, perhaps with fewer partitions: bring the old one back, or run in a new folder. Or its "
        "retention deleted events before they were read: bring them back from a copy into a new topic, and run in a "
        "new folder."
    )


def judge_start(error: OperatingError | OSError) -> Failure:
    """Classify the failure of a restart, by the rules for a running query."""
    why = error.sentence() if isinstance(error, StatesideError) else f"{error}."
    gone = isinstance(error, PipelineFailed) and isinstance(error.__cause__, Py4JNetworkError | OSError)
    away = isinstance(error, _AWAY_KINDS) or _AWAY.search(str(error)) is not None
    return Failure(why, worth_retrying=not gone and not isinstance(error, SinkRefused), away=away and not gone)


def reason(error: BaseException) -> str:
    """The one line with the cause: the last line of a Python traceback, the first line of anything else."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = [lines[1].lstrip(": "), *lines[2:]]  # py4j's own first line says nothing
    starts = [number for number, line in enumerate(lines) if _LAST_LINE_OF_TRACEBACK in line]
    causes = [line for line in lines[starts[-1] + 1 :] if line and not line[0].isspace()] if starts else []
    return causes[0] if causes else lines[0]


def _of_ours(why: str, kind: type) -> Failure:
    lasting = issubclass(kind, InputError | StateError | SinkRefused)
    lost = issubclass(kind, LeadershipLost)  # final here only: as a standby another process may lead again
    away = issubclass(kind, _AWAY_KINDS)
    return Failure(why, worth_retrying=not lasting and not lost, lasting=lasting, away=away)
