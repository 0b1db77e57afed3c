"""Interrupts: one, and none at the end."""

from __future__ import annotations

import os
import signal

import pytest

from stateside.ops.demo.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_interrupts_and_those_after_it_do_not(number: signal.Signals) -> None:
    put_away = []
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        try:
            os.kill(os.getpid(), number)
        finally:
            for step in range(3):
                os.kill(os.getpid(), number)
                put_away.append(step)
    assert put_away == [0, 1, 2]


def test_after_hold_no_signal_interrupts() -> None:
    with Interrupts() as interrupts:
        interrupts.hold()
        os.kill(os.getpid(), signal.SIGINT)


def test_afterwards_signals_do_what_they_did_before() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupts():
        pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
