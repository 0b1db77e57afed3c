"""Settings of the shared Spark session, for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from pyspark.sql import SparkSession

from stateside.spark_state.provider import Provider

STATE = "spark.sql.streaming.stateStore"


@contextmanager
def conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """These settings, and afterwards those that were there before."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def stored(spark: SparkSession, provider: Provider, codec: str) -> AbstractContextManager[None]:
    """States in this store, in the newest format that it knows, and in this codec."""
    return conf(
        spark,
        {
            f"{STATE}.providerClass": provider.value,
            f"{STATE}.checkpointFormatVersion": "1" if provider is Provider.HDFS else "2",
            f"{STATE}.compression.codec": codec,
        },
    )
