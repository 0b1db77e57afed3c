"""Planning a view whose Spark ends meanwhile: nobody's function is to blame."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stateside
from stateside.core.errors import PipelineFailed, ViewInvalid
from stateside.core.layout import Layout
from stateside.pipeline.settings import RunSettings
from stateside.pipeline.view_plan import Planner


class Refusing:
    """A source that gets no connection: to Spark's process, or to something of its own."""

    needs_jars = ()

    def load(self, session: object, reading: object) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(("command", "error"), [("true", PipelineFailed), ("sleep", ViewInvalid)])
def test_a_broken_connection_is_sparks_only_if_its_process_has_ended(
    command: str, error: type[Exception], tmp_path: Path
) -> None:
    app = stateside.App("shop", source=Refusing())
    app.view(key=["entity"], name="total")(lambda events: events)
    planner = Planner(app, Layout(tmp_path), RunSettings(), tmp_path / "pause")
    with subprocess.Popen([command, "60"]) as process:
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))
        with pytest.raises(error):
            planner.plan(app.views["total"], session)
        process.kill()
