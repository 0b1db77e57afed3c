"""Interrupts: noted, and raised where the program asks for them."""

from __future__ import annotations

import os
import signal

import pytest

from stateside.testbed.component import HEARD, Interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_at_the_next_check_and_not_before(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        send(number)
        begun_and_finished = True
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert begun_and_finished


def test_a_pause_ends_with_a_check() -> None:
    with Interrupts() as interrupts:
        interrupts.pause(0)
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.pause(0)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_is_put_away_is_put_away_whole_however_often_they_come(number: signal.Signals) -> None:
    put_away = []
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        try:
            send(number)
            interrupts.check()
        finally:
            for step in range(3):
                send(number)
                put_away.append(step)
    assert put_away == [0, 1, 2]


def test_a_long_computation_is_interrupted_in_the_middle_and_only_once() -> None:
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt), interrupts.at_once():
        try:
            send(signal.SIGINT)
            raise AssertionError("it goes on")
        finally:
            send(signal.SIGINT)


def test_a_signal_that_came_before_stops_a_long_computation_from_starting() -> None:
    with Interrupts() as interrupts:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.at_once():
            raise AssertionError("it starts")


def test_it_is_said_once_that_it_was_heard(capfd: pytest.CaptureFixture[str]) -> None:
    with Interrupts():
        send(signal.SIGINT)
        send(signal.SIGTERM)
    assert capfd.readouterr().err == HEARD


def test_afterwards_signals_do_what_they_did_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        pass
    assert [signal.getsignal(number) for number in SIGNALS] == before
