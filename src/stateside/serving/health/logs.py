"""Logs as lines of JSON, for machines: time, level, logger, message, trace, and the stack of an error."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import orjson

from stateside.serving.health import traces


class JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        trace = traces.current.get()
        if trace is not None:
            line |= {"trace": trace.trace, "span": trace.span}
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def log_json() -> None:
    """Let this process log in lines of JSON from now on, to where it logs now."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
