"""A SQL query (text, parameters, result format, limits), and the reason to end a statement early.

A statement ends early when its time is up, its client has left, or reading its rows failed. Any thread may set the
reason in `Ending`; the threads working on the statement check `Ending` between steps. DuckDB, whose steps may be long,
is interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from stateside.core.errors import RequestInvalid, StatesideError
from stateside.serving.sql.result import FORMATS, Format

STATEMENT_CHARS_MAX = 65_536
TIMEOUT_MS_DEFAULT = 30_000
TIMEOUT_MS_MAX = 300_000
JSON_ROWS_DEFAULT = 10_000
JSON_ROWS_MAX = 100_000
JSON_BYTES_MAX = 32 << 20
STREAM_ROWS_MAX = 10_000_000
STREAM_BYTES_MAX = 2 << 30
PARAMETERS_MAX = 1_000
Parameters = Sequence[Any] | Mapping[str, Any]
SCHEMA: Final = {
    "type": "object",
    "required": ["sql"],
    "additionalProperties": False,
    "properties": {
        "sql": {"type": "string", "maxLength": STATEMENT_CHARS_MAX},
        "parameters": {
            "description": "for `?` or `$1` a list, for `$name` an object",
            "oneOf": [{"type": "array", "maxItems": PARAMETERS_MAX}, {"type": "object"}],
        },
        "format": {"enum": list(FORMATS), "default": "json"},
        "rows_max": {"type": "integer", "minimum": 1, "maximum": STREAM_ROWS_MAX},
        "timeout_ms": {"type": "integer", "minimum": 1, "maximum": TIMEOUT_MS_MAX, "default": TIMEOUT_MS_DEFAULT},
    },
}


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """A statement with its limits: a result beyond `rows_max` or `bytes_max` is refused, never truncated."""

    text: str
    parameters: Parameters = field(default=())
    format: Format = "json"
    rows_max: int = JSON_ROWS_DEFAULT
    bytes_max: int = JSON_BYTES_MAX
    timeout_ms: int = TIMEOUT_MS_DEFAULT

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> SqlQuery:
        """The query in a request's body; RequestInvalid if the body is none."""
        unknown = set(document) - set(SCHEMA["properties"])  # type: ignore[call-overload]
        if unknown:
            raise RequestInvalid(
                f"The body has {min(unknown)[:80]!r}, which is not known",
                next_step="It has sql, and may have parameters, format, rows_max and timeout_ms",
            )
        text, format_ = document.get("sql"), document.get("format", "json")
        if not isinstance(text, str):
            raise RequestInvalid("The body has no statement", next_step='Send {"sql": "SELECT …"}')
        if format_ not in FORMATS:
            raise RequestInvalid(
                f"The format {str(format_)[:80]!r} is not known", next_step=f"Use {' or '.join(FORMATS)}"
            )
        in_json = format_ == "json"
        default, largest = (JSON_ROWS_DEFAULT, JSON_ROWS_MAX) if in_json else (STREAM_ROWS_MAX, STREAM_ROWS_MAX)
        return cls(
            text,
            _parameters(document.get("parameters")),
            cast(Format, format_),
            _number(document, "rows_max", default, largest),
            JSON_BYTES_MAX if in_json else STREAM_BYTES_MAX,
            _number(document, "timeout_ms", TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX),
        )


def _parameters(given: Any) -> Parameters:
    if given is None:
        return ()
    if not isinstance(given, list | dict) or len(given) > PARAMETERS_MAX:
        raise RequestInvalid(
            "The parameters are no list and no object, or too many",
            next_step=f"Send up to {PARAMETERS_MAX}: a list for ? or $1, an object for $name",
        )
    return given


def _number(document: Mapping[str, Any], name: str, default: int, largest: int) -> int:
    value = document.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise RequestInvalid(
            f"{name} is {str(value)[:80]!r}, not a whole number from 1 to {largest:,}",
            next_step="The formats csv and arrow have no such small limit" if name == "rows_max" else None,
        )
    return value


class Ending:
    """The reason to end one statement. Only the first reason counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._why: Exception | None = None
        self._interrupt: Callable[[], None] | None = None

    @property
    def why(self) -> Exception | None:
        """The reason, once the statement is to end."""
        return self._why

    def interrupts(self, interrupt: Callable[[], None] | None) -> None:
        """Set the function that interrupts DuckDB; None once DuckDB is closed."""
        with self._lock:
            self._interrupt = interrupt

    def end(self, why: Exception) -> None:
        """End the statement. Call repeatedly: DuckDB ignores an interrupt between two of its calls."""
        with self._lock:
            self._why = self._why or why
            if self._interrupt is not None:
                self._interrupt()

    def check(self) -> None:
        """Raise the reason, if there is one."""
        if self._why is not None:
            raise _again(self._why)


def _again(why: Exception) -> Exception:
    """A copy of the error: several threads may raise it."""
    return type(why)(why.what, where=why.where, next_step=why.next_step) if isinstance(why, StatesideError) else why
