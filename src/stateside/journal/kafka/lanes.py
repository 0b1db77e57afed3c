"""The lanes of an owner: which of them takes an append, and what this owner cannot take."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stateside.errors import EntityElsewhere, EventRefused, SettingInvalid, StatesideError
from stateside.journal.kafka.lane import Lane
from stateside.journal.kafka.topic import Topic, partition_of


class Lanes:
    """Those of some of a topic's partitions, or one for all of them."""

    def __init__(self, topic: Topic, partitions: int, lanes: Sequence[Lane]) -> None:
        """`partitions`: how many the topic has."""
        self._topic, self._partitions = topic, partitions
        self._by_partition = {number: lane for lane in lanes for number in lane.partitions}

    def of(self, entities: Sequence[str]) -> Lane:
        """The one of these entities' partitions; EntityElsewhere or EventRefused if there is no one for all."""
        found: dict[Lane, int] = {}
        for entity in dict.fromkeys(entities):
            number = partition_of(entity, self._partitions)
            if number not in self._by_partition:
                raise self._elsewhere(entity, number)
            found.setdefault(self._by_partition[number], number)
        if len(found) > 1:
            raise self._several(sorted(found.values()))
        return next(iter(found), next(iter(self._by_partition.values())))

    def of_batch(self, batch: pa.RecordBatch) -> Lane:
        """The one of these events' partitions."""
        return self.of(pc.unique(batch.column("entity")).to_pylist())

    def end(self, why: StatesideError) -> None:
        """Let none of them take anything more."""
        for lane in self._by_partition.values():
            lane.end(why)

    def _elsewhere(self, entity: str, number: int) -> EntityElsewhere:
        return EntityElsewhere(
            f"{entity!r} belongs to partition {number}, and this writer owns {_listed(sorted(self._by_partition))}",
            where=self._topic.where,
            next_step="Append them at the owner of that partition",
        )

    def _several(self, numbers: Sequence[int]) -> EventRefused:
        return EventRefused(
            f"The events of this append belong to partitions {_listed(numbers)}: only the owner of all partitions "
            "stores such ones, all or none",
            where=self._topic.where,
            next_step="Nothing was stored. Append the events of each partition by themselves",
        )


def wanted_partitions(topic: Topic, partitions: Sequence[int] | None, there: int) -> list[int]:
    """Those that are to be owned, of so many: all of them if none are named. SettingInvalid if they are not there."""
    if partitions is None:
        return list(range(there))
    wanted = sorted(set(partitions))
    if not wanted or not 0 <= wanted[0] <= wanted[-1] < there:
        raise SettingInvalid(
            f"The partitions {_listed(wanted) or 'none'} are to be owned, and there are 0 to {there - 1}",
            where=topic.where,
            next_step="Name some of these, or none at all to own them all",
        )
    return wanted


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
