"""How long a demo stands still, and that it does not do so for ever."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from stateside.core.errors import PipelineFailed
from stateside.core.layout import Layout
from stateside.testbed.component import Interrupts
from stateside.testbed.demo import PIPELINE, Demo, DemoSettings
from stateside.testbed.demo_report import Display
from stateside.testbed.system import Standstill


def test_a_standstill_lasts_since_the_value_was_another_one() -> None:
    standstill = Standstill(10.0)
    assert standstill.lasted_s(None, 12.0) == 2.0
    assert standstill.lasted_s("0:1", 13.0) == 0.0
    assert standstill.lasted_s("0:1", 15.5) == 2.5
    assert standstill.lasted_s("0:2", 20.0) == 0.0


def test_a_demo_whose_pipeline_gets_nowhere_ends_with_its_last_words(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lasts long enough each time to be started again, and the feeder waits for it."""
    monkeypatch.setattr("stateside.testbed.demo.STANDSTILL_S_MAX", 0.5)
    monkeypatch.setattr(Demo, "_moment", lambda demo, phase, share_done: None)
    with Interrupts() as interrupts:
        demo = Demo(DemoSettings(), layout, Console(file=io.StringIO()), interrupts)
        part = SimpleNamespace(supervise=lambda: None, child=SimpleNamespace(tail=lambda lines: "no memory"))
        part = cast(Any, part)
        demo._system.ground, demo._system.parts = SimpleNamespace(supervise=lambda held: None), {PIPELINE: part}  # type: ignore[assignment]
        demo._feeder = SimpleNamespace(done=False, share_done=0.4)  # type: ignore[assignment]
        demo._witness = SimpleNamespace(seen=SimpleNamespace(stamp={"position": "0:17"}))  # type: ignore[assignment]
        display = cast(Display, SimpleNamespace(show=lambda moment: None))
        with pytest.raises(PipelineFailed, match="there is not an end of 'months pass'") as stuck:
            demo._let_pass(display)
    assert "no memory" in str(stuck.value)
