"""Upcasting: events stored with an older schema of their type are read in the newest one.

    upcasters = Upcasters()
    upcasters.register("call", 1, lambda payload: {**payload, "seconds": payload["minutes"] * 60})
    Journal(folder, upcasters=upcasters).events()      # calls of version 1 come as version 2

Stored events never change. A type's newest version is the one after the last registered; events of a still newer
version are left unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from stateside.core.errors import SettingInvalid
from stateside.journal.event import VERSION_MAX, Event

Upcast = Callable[[Any], Any]


class Upcasters:
    """The steps from each version of a type's payload to the next."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, dict[int, Upcast]] = defaultdict(dict)

    def register(self, type: str, from_version: int, function: Upcast) -> None:
        """`function` returns the payload of version `from_version` + 1 for one of `from_version`, and mutates neither.

        Steps may be registered in any order. SettingInvalid for an impossible version, or one that has a step already.
        """
        if not 1 <= from_version < VERSION_MAX:
            raise SettingInvalid(
                f"An upcaster of {type!r} begins at version {from_version}", next_step=f"Give 1 to {VERSION_MAX - 1}"
            )
        if from_version in self._steps[type]:
            raise SettingInvalid(
                f"There are two upcasters of {type!r} from version {from_version} to {from_version + 1}",
                next_step="Register one for each version",
            )
        self._steps[type][from_version] = function

    def upcast(self, event: Event) -> Event:
        """The event in its type's newest schema; SettingInvalid if a step is missing."""
        steps = self._steps.get(event.type)
        if not steps or event.version > max(steps):
            return event
        payload = event.payload
        for version in range(event.version, max(steps) + 1):
            payload = self._step(event, version)(payload)
        return replace(event, payload=payload, version=max(steps) + 1)

    def all(self, events: Iterable[Event]) -> Iterator[Event]:
        return map(self.upcast, events)

    def _step(self, event: Event, version: int) -> Upcast:
        steps = self._steps[event.type]
        if version not in steps:
            raise SettingInvalid(
                f"There is no upcaster of {event.type!r} from version {version} to {version + 1}, which the event "
                f"{event.id!r} of version {event.version} needs on its way to version {max(steps) + 1}",
                next_step="Register it; nothing was changed",
            )
        return steps[version]
