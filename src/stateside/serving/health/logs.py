"""Logs as lines of JSON (time, level, logger, message, trace, stack), and traces (W3C Trace Context).

A request with a `traceparent` belongs to that trace; a request without one begins a trace. The answer's `traceparent`
and every log line of the request have the trace and this server's span.
"""

from __future__ import annotations

import logging
import random
import re
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace, this server's span, and the trace flags."""

    trace: str
    span: str
    flags: str = "00"

    @classmethod
    def parse(cls, traceparent: str | None) -> Trace | None:
        """The trace in a request's header, with a new span; None unless the header conforms to W3C Trace Context."""
        parent = cls.caller(traceparent)
        return None if parent is None else cls(parent.trace, _fresh()[1], parent.flags)

    @classmethod
    def caller(cls, traceparent: str | None) -> Trace | None:
        """The trace in a request's header, with the caller's span; None unless the header conforms."""
        found = _PARENT.fullmatch(traceparent.strip()) if traceparent and len(traceparent) <= 512 else None
        if found is None:
            return None
        version, trace, span, flags, rest = found.groups()
        if version == "ff" or (version == "00" and rest) or trace == _NO_TRACE or span == _NO_SPAN:
            return None
        return cls(trace, span, flags)

    @classmethod
    def of(cls, traceparent: str | None) -> Trace:
        """The request's trace, or a new one."""
        return cls.parse(traceparent) or cls(*_fresh())

    def header(self) -> tuple[str, str]:
        """The answer's header."""
        return "traceparent", f"00-{self.trace}-{self.span}-{self.flags}"


def answered_with(traceparent: str | None) -> tuple[str, str]:
    """The header of an answer, where no code needs the trace meanwhile."""
    if traceparent is None:
        trace, span = _fresh()
        return "traceparent", f"00-{trace}-{span}-00"
    return Trace.of(traceparent).header()


def _fresh() -> tuple[str, str]:
    """A random trace and span; not secret."""
    drawn = f"{random.getrandbits(192):048x}"
    return drawn[:32], drawn[32:]


current: ContextVar[Trace | None] = ContextVar("trace", default=None)  # the trace of the request being answered


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        trace = current.get()
        if trace is not None:
            line |= {"trace": trace.trace, "span": trace.span}
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def log_json() -> None:
    """Switch the handlers of this process to lines of JSON."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
