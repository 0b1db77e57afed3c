"""Addresses: a journal on Kafka in one line, for the command line.

kafka://localhost:9092/orders
kafka://one:9093,two:9093/orders?security.protocol=SASL_SSL&sasl.username=shop&sasl.password=env:KAFKA_PASSWORD
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from stateside.errors import SettingInvalid
from stateside.journal.kafka.topic import Topic

SCHEME = "kafka"


def topic_at(address: str) -> Topic:
    """The topic at this address; SettingInvalid if it is none. What follows the `?` are librdkafka's options."""
    parts = urlsplit(address)
    name = parts.path.removeprefix("/")
    if parts.scheme != SCHEME or not parts.netloc or not name or "@" in parts.netloc or parts.fragment:
        raise SettingInvalid(
            "That is no address of a journal on Kafka",  # which is not told again: it may have a password in it
            next_step="Write it like kafka://localhost:9092/orders, with options behind a ? and secrets as env:NAME",
        )
    try:
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError as error:
        raise SettingInvalid(
            "The options of that address are none", next_step="Write them like ?sasl.username=shop&client.id=me"
        ) from error
    return Topic(parts.netloc, name, options)
