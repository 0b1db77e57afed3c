"""A journal on Kafka: the same contract, on a topic.

    create_topic(topic_at("kafka://localhost:9092/orders"), partitions=4)     # once; never by mistake

    journal = open_journal("kafka://localhost:9092/orders", index=folder / "index")
    with journal.writer() as writer:                       # the owner of all partitions, from now on
        receipt = writer.append_to("emma", [Event("o-1", "emma", "order", ..., {})], expected_sequence=0)

    journal.end().covers(receipt.position)                 # True
    with QueryViews(journal, folder / "views") as views:
        Queries(journal, views).entity("emma").current()

| module | has |
|---|---|
| `topic`, `admin`, `messages`, `kafka_errors` | address and settings, broker metadata, message format, errors |
| `topic_reader` | fetching messages, reading events |
| `topic_owner`, `transactions`, `topic_index` | the writer, ownership and transactions, the writer's index |
| `topic_folder` | a folder whose journal is a topic, and its writers |
"""

from stateside.journal.backends.kafka.admin import create_topic
from stateside.journal.backends.kafka.topic import Topic
from stateside.journal.backends.kafka.topic_folder import topic_of
from stateside.journal.backends.kafka.topic_owner import KafkaWriter
from stateside.journal.backends.kafka.topic_reader import KafkaJournal

__all__ = ["KafkaJournal", "KafkaWriter", "Topic", "create_topic", "topic_of"]
