"""The file that the report of a demo or of chaos goes to, for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from stateside.errors import RequestInvalid
from stateside.storage import write_atomically


class ForMachines(Protocol):
    """A report that can be written as JSON."""

    def as_dict(self) -> dict[str, Any]:
        """Its content."""


class ReportFile:
    """The file that the report for machines goes to. It never holds the report of another run than the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def clear(self) -> None:
        """At the start: remove the report of an earlier run. If none can be written here, that is an error now.

        What a link leads to is emptied, and what is no file (a pipe, a terminal) left alone.
        """
        if not self._path.parent.is_dir():
            raise RequestInvalid(
                f"There is no folder {self._path.parent} for the report", next_step="Make it, or choose another --json"
            )
        if self._is_plain():
            self._path.touch()
            self._path.unlink()
        elif self._path.is_file():
            self._path.write_text("")

    def write(self, report: ForMachines) -> None:
        """At the end: the report, as JSON; whoever waits for the file to appear finds it whole."""
        content = json.dumps(report.as_dict(), indent=2).encode() + b"\n"
        if self._is_plain():
            write_atomically(self._path, content)
        else:
            self._path.write_bytes(content)

    def write_so_far(self, report: ForMachines) -> None:
        """Before the end: what there is so far, in case the end does not come. A pipe gets the whole report alone."""
        if self._is_plain():
            self.write(report)

    def _is_plain(self) -> bool:
        """Whether it is an ordinary file, or nothing yet."""
        return not self._path.is_symlink() and (self._path.is_file() or not self._path.exists())
