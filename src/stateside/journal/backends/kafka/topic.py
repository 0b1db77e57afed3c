"""Topics: the address of a journal on Kafka, its client options, and the clients.

    topic = Topic("localhost:9092", "orders")
    topic = Topic("kafka:9093", "orders", {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
                                           "sasl.username": "shop", "sasl.password": "env:KAFKA_PASSWORD"})

Options are librdkafka's, for every client; a value `env:NAME` is read from that environment variable when a client is
created, and appears in no log and no message.

On the command line, a topic is one address:

kafka://localhost:9092/orders
kafka://one:9093,two:9093/orders?security.protocol=SASL_SSL&sasl.username=shop&sasl.password=env:KAFKA_PASSWORD
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from stateside.core.errors import SettingInvalid
from stateside.core.positions import Position
from stateside.core.secrets import with_secrets, without_secrets

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

ANSWER_S_MAX = 15.0  # a broker silent for longer counts as away
FETCH_WAIT_MS = 10  # a broker waits so long for events before an empty answer
PREFETCH_KB = 16_384  # per reader; a quarter of the client's default
log = logging.getLogger(__name__)
Client = TypeVar("Client")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_QUIET = {"log_level": "2"}  # failures raise errors; level 3 logs every failed attempt to connect
_OURS = {
    *("bootstrap.servers", "transactional.id", "enable.idempotence", "acks", "max.in.flight"),
    *("isolation.level", "group.id", "enable.auto.commit", "auto.offset.reset", "enable.partition.eof"),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A value, without a connection. SettingInvalid for an invalid name or a reserved option."""

    servers: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    answer_s_max: float = ANSWER_S_MAX

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in (".", ".."):
            raise SettingInvalid(
                f"{self.name!r} is no name of a Kafka topic", next_step="Use letters, digits, '.', '_', '-'"
            )
        if taken := _OURS & self.options.keys():
            raise SettingInvalid(f"The journal sets {min(taken)!r} itself", next_step="Leave it out of the options")

    def in_stamps(self, position: Position) -> Position:
        """A position in this topic, such as a receipt, in the form of the stamps of a view on the topic: orders-0:12.

        Pass the result as `min_position` to read one's own event.
        """
        return Position.of({f"{self.name}-{partition}": offset for partition, offset in position.parts})

    @property
    def where(self) -> str:
        """For messages."""
        return f"topic {self.name} at {self.servers}"

    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return self._made(AdminClient, {})

    def consumer(self) -> Consumer:
        """A consumer of committed events in assigned partitions; without a group, and never skipping."""
        from confluent_kafka import Consumer

        settings = {
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "queued.max.messages.kbytes": PREFETCH_KB,
            "group.id": "stateside",  # required by the client; never joined, as there is no subscription
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        return self._made(Consumer, settings)

    def producer(self, transactional_id: str, message_bytes_max: int) -> Producer:
        """A transactional producer; its initialisation fences the previous producer with the same id."""
        from confluent_kafka import Producer

        settings = {
            "linger.ms": 0,
            "batch.size": message_bytes_max,
            "message.max.bytes": message_bytes_max,
            "transactional.id": transactional_id,
        }
        return self._made(Producer, settings)

    def _made(self, kind: Callable[..., Client], settings: Mapping[str, Any]) -> Client:
        from confluent_kafka import KafkaException

        given = with_secrets(self.options)
        try:
            return kind({**_QUIET, **settings, **given, "bootstrap.servers": self.servers}, logger=log)
        except (KafkaException, ValueError, TypeError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise SettingInvalid(  # not `from error`: the error's text may contain a secret
            f"Kafka's options are not in order: {without_secrets(reason, self.options)}",
            where=self.where,
            next_step="Mend them, then try again",
        )


def partition_of(entity: str, partitions: int) -> int:
    """The partition of an entity's events, for good: CRC-32 of its UTF-8, modulo the number of partitions.

    (Same as librdkafka's partitioner `consistent`.)
    """
    return zlib.crc32(entity.encode()) % partitions


SCHEME = "kafka"


def topic_at(address: str) -> Topic:
    """The topic at this address, with librdkafka's options after the `?`; SettingInvalid if the address is invalid."""
    parts = urlsplit(address)
    name = parts.path.removeprefix("/")
    if parts.scheme != SCHEME or not parts.netloc or not name or "@" in parts.netloc or parts.fragment:
        raise SettingInvalid(
            "That is no address of a journal on Kafka",  # not repeated here: it may contain a password
            next_step="Write it like kafka://localhost:9092/orders, with options behind a ? and secrets as env:NAME",
        )
    try:
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError as error:
        raise SettingInvalid(
            "The options of that address are none", next_step="Write them like ?sasl.username=shop&client.id=me"
        ) from error
    return Topic(parts.netloc, name, options)
