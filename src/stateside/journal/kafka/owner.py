"""Owners: who may write to partitions, by Kafka's fence of transactional ids.

Whoever initialises a transactional id ends what the producer that had it before left open, and nothing of that one is
taken from then on, wherever it was paused. A topic has these ids:

    stateside-journal.TOPIC.P        the owner of partition P alone writes with it
    stateside-journal.TOPIC.all      the owner of all partitions writes with it

How a process becomes the owner of partitions:

1. It initialises the ids that it will write with: `all`, or one for each of its partitions.
2. It initialises the ids with which others could write to the same partitions: the owner of all those of every
   partition, the owner of some `all`. These are given up at once: what counts is that the others are fenced.
3. Only now it looks where the partitions end. Kafka settles what the former owners left before it answers steps 1 and
   2; so whatever they have acknowledged, or may have stored without a receipt, lies before that end.

Why there are never two owners of a partition who both can write. Of two with the same id the later one has fenced the
other in step 1. Let A own all and B some. A can write only if nobody initialised `all` after its step 1, so B's step 2
came before that; B can write only if nobody initialised its id after its own step 1, so A's step 2 came before that.
But A's step 2 comes after its step 1, which comes after B's step 2, which comes after B's step 1, which comes after A's
step 2: that cannot be. (It can be that both are fenced, if they come at the same moment. Who opens again is owner.)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from stateside.journal.kafka.failures import asking
from stateside.journal.kafka.lane import Lane
from stateside.journal.kafka.topic import Topic

if TYPE_CHECKING:
    from confluent_kafka import Producer

AT_ONCE = 8
_ALL = "all"


def own_all(topic: Topic, partitions: int, message_bytes_max: int) -> Lane:
    """Steps 1 and 2 for all partitions: one lane, so that one transaction may have events of any of them."""
    (producer,) = _initialised(topic, [_ALL], message_bytes_max)
    _fence(topic, [str(number) for number in range(partitions)], message_bytes_max)
    return Lane(topic, producer, range(partitions))


def own_some(topic: Topic, partitions: Sequence[int], message_bytes_max: int) -> list[Lane]:
    """Steps 1 and 2 for some partitions: a lane for each."""
    producers = _initialised(topic, [str(number) for number in partitions], message_bytes_max)
    _fence(topic, [_ALL], message_bytes_max)
    return [Lane(topic, producer, [number]) for producer, number in zip(producers, partitions, strict=True)]


def _fence(topic: Topic, names: Sequence[str], message_bytes_max: int) -> None:
    """Nobody who has these ids can write any more; some at a time, as each is a client with threads of its own."""
    for first in range(0, len(names), AT_ONCE):
        _initialised(topic, names[first : first + AT_ONCE], message_bytes_max)


def _initialised(topic: Topic, names: Sequence[str], message_bytes_max: int) -> list[Producer]:
    def initialise(name: str) -> Producer:
        producer = topic.producer(f"stateside-journal.{topic.name}.{name}", message_bytes_max)
        producer.init_transactions(topic.answer_s_max)
        return producer

    with asking(topic), ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(initialise, names))
