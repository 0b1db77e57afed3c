"""The folder of a demo or chaos run, and the file for its machine-readable report.

A demo's folder is a new one, an earlier demo's, or a temporary one; never another application's.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console

from stateside.core.errors import RequestInvalid
from stateside.core.json_file import JsonFile
from stateside.core.storage import write_atomically

NOTE = "demo.json"
_SIGNS_OF_AN_APPLICATION = ("journal", "views", "tables")
_SETTINGS: JsonFile[Mapping[str, Any]] = JsonFile(
    "The demo's settings", lambda document: document, dict, damage=RequestInvalid, next_step="Use a new --dir"
)


class StageFolder:
    """The requested folder, or a temporary one.

    A temporary folder is removed at the end, unless an error occurred or `kept` was set.
    """

    def __init__(self, folder: Path | None, console: Console, *, prefix: str = "stateside-demo-") -> None:
        self.temporary = folder is None
        self.kept = False
        self._asked_for, self._prefix = folder, prefix
        self._console = console

    def __enter__(self) -> StageFolder:
        self.root = self._asked_for.absolute() if self._asked_for else Path(tempfile.mkdtemp(prefix=self._prefix))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.temporary:
            return
        if self.kept or (kind and kind is not KeyboardInterrupt):
            say = f"Kept for you to look into: {self.root}, with the logs of all parts"
            self._console.print(say, highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(self.root, ignore_errors=True)

    def claim(self, settings: Mapping[str, Any]) -> None:
        """Record the demo's settings, or check the recorded ones: with other settings nothing could be proved.

        RequestInvalid, with nothing changed, for other settings or another application's folder.
        """
        note = self.root / NOTE
        if not note.exists():
            self._refuse_another_application()
            _SETTINGS.write(note, settings)
        elif (found := _SETTINGS.load(note)) != settings:
            raise RequestInvalid(
                f"This folder has a demo with {found}, now {settings} was asked for",
                where=str(self.root),
                next_step="Continue with the same settings, or use a new --dir",
            )

    def _refuse_another_application(self) -> None:
        found = [name for name in _SIGNS_OF_AN_APPLICATION if (self.root / name).exists()]
        if found:
            raise RequestInvalid(
                f"This folder belongs to another application: it has {' and '.join(found)}, but no {NOTE}",
                where=str(self.root),
                next_step="Use a new --dir",
            )


class ForMachines(Protocol):
    """A report that can be written as JSON."""

    def as_dict(self) -> dict[str, Any]: ...


class ReportFile:
    """The file of the report for machines, never that of an earlier run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def clear(self) -> None:
        """At the start: remove an earlier report, and fail now if no report can be written here.

        The target of a link is emptied; a pipe or terminal is left alone.
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
        """At the end: write the report as JSON, atomically if the file is a plain one."""
        content = json.dumps(report.as_dict(), indent=2).encode() + b"\n"
        if self._is_plain():
            write_atomically(self._path, content)
        else:
            self._path.write_bytes(content)

    def write_so_far(self, report: ForMachines) -> None:
        """Before the end: write the partial report, in case the run does not finish.

        A pipe gets only the final report.
        """
        if self._is_plain():
            self.write(report)

    def _is_plain(self) -> bool:
        """Whether the path is an ordinary file, or absent."""
        return not self._path.is_symlink() and (self._path.is_file() or not self._path.exists())
