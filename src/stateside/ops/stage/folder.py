"""The demo's folder: a new one, that of an earlier demo, or a temporary one. Never that of another application."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from stateside.errors import RequestInvalid
from stateside.storage import write_atomically

NOTE = "demo.json"
_SIGNS_OF_AN_APPLICATION = ("journal", "views", "tables")


class StageFolder:
    """The folder that was asked for, or a temporary one.

    A temporary one is removed at the end, unless there is something to find out: an error, or `kept` was set.
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
        """Note the demo's settings here, or find the same ones noted: otherwise nothing could be proved in the end.

        RequestInvalid, with nothing changed, if others are noted, or if the folder is another application's.
        """
        note = self.root / NOTE
        if not note.exists():
            self._refuse_another_application()
            write_atomically(note, json.dumps(settings).encode())
        elif (found := _read(note)) != settings:
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


def _read(note: Path) -> object:
    try:
        return json.loads(note.read_bytes())
    except ValueError as error:
        raise RequestInvalid(
            f"The demo's settings are damaged: {error}", where=str(note), next_step="Use a new --dir"
        ) from error
