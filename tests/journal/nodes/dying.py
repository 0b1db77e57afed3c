"""Processes that die or pause at an exact moment, told by the calls that they make to the operating system."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from stateside.core.lease import Held
from stateside.journal import Event
from stateside.journal.backends.nodes import NodeWriter


class Killed(BaseException):
    """Stands for SIGKILL where the moment must be exact: nothing of ours catches it."""


def die() -> None:
    raise Killed


@contextmanager
def at_call(name: str, call: int, action: Callable[[], None], owner: Any = os) -> Iterator[list[int]]:
    """Do something just before the nth call of a function from now on; tells how many calls there were."""
    real, calls = getattr(owner, name), [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            with patch.object(owner, name, real):
                action()
        return real(*arguments, **options)

    with patch.object(owner, name, counted):
        yield calls


@contextmanager
def after_check(call: int, action: Callable[[], None]) -> Iterator[None]:
    """Do something just after the owner was let through by the nth check of a fence."""
    real, calls = Held.check, [0]

    def checked(held: Held[Any]) -> None:
        real(held)
        calls[0] += 1
        if calls[0] == call:
            with patch.object(Held, "check", real):
                action()

    with patch.object(Held, "check", checked):
        yield


def kill(node: NodeWriter) -> None:
    """What the operating system does for a process that was killed: its locks and files are given back."""
    node._index.close()
    node._known.close()
    node._log._close_all()
    os.close(node._lock)
    os.close(node._claim_lock)


def event(id_: str, entity: str = "emma") -> Event:
    return Event(id_, entity, "call", 1, {"id": id_})
