"""Why a query failed, in one line, and whether it is worth trying again.

    worth trying again      anything from outside: a task that was lost, a disk, a network, a function that raised
    not worth it            what would come again in the same way: an error of ours about input or stored state, a sink
                            that refuses the rows, another driver on the same checkpoint, a state that does not fit

A function that always raises is tried again too, for nobody can tell; the limit on restarts ends that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from py4j.protocol import Py4JError

from stateside import errors
from stateside.errors import InputError, SinkRefused, StateError, StatesideError

_OURS = re.compile(r"stateside\.errors\.(?P<name>\w+): (?P<what>.*)")
_LAST_LINE_OF_TRACEBACK = "Traceback (most recent call last)"
_FINAL_CONDITIONS = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_SCHEMA_FILES_THRESHOLD_EXCEEDED",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a query, and whether starting it again may help; if `lasting`, not in another process either."""

    why: str
    worth_retrying: bool
    lasting: bool = False


def judge(error: Exception | None, delivered: Exception | None = None) -> Failure:
    """The failure behind what Spark tells; `delivered` is what the sink raised, which Spark tells only as text."""
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
    return Failure(why, not any(condition in str(error) for condition in _FINAL_CONDITIONS))


def reason(error: BaseException) -> str:
    """The one line that says why: of a Python traceback the last one, of anything else the first."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = [lines[1].lstrip(": "), *lines[2:]]  # py4j's own first line says nothing
    starts = [number for number, line in enumerate(lines) if _LAST_LINE_OF_TRACEBACK in line]
    causes = [line for line in lines[starts[-1] + 1 :] if line and not line[0].isspace()] if starts else []
    return causes[0] if causes else lines[0]


def _of_ours(why: str, kind: type) -> Failure:
    lasting = issubclass(kind, InputError | StateError | SinkRefused)
    return Failure(why, worth_retrying=not lasting, lasting=lasting)
