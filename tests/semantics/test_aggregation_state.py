"""The names and the order of the columns that an aggregation keeps in its state."""

from collections.abc import Callable

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from .checkpoint_files import StateSchema
from .harness import Feed, Lab
from .months import usage

pytestmark = pytest.mark.spark

# What each aggregate keeps, as SQL types; `name?` marks a column that the schema calls nullable.
BUFFERS = {
    "count(*)": "count bigint",
    "count(amount)": "count bigint",
    "count_if(amount > 0)": "count bigint",
    "sum(amount)": "sum? bigint",
    "sum(CAST(amount AS int))": "sum? bigint",
    "sum(CAST(amount AS double))": "sum? double",
    "sum(CAST(amount AS decimal(18,2)))": "sum? decimal(28,2), isEmpty boolean",
    "try_sum(amount)": "sum? bigint, isEmpty boolean",
    "avg(amount)": "sum? double, count? bigint",
    "avg(CAST(amount AS decimal(18,2)))": "sum? decimal(28,2), count? bigint",
    "min(amount)": "min? bigint",
    "max(at)": "max? timestamp",
    "bool_and(amount > 0)": "min? boolean",
    "bool_or(amount > 0)": "max? boolean",
    "first(kind)": "first? string, valueSet? boolean",
    "first(kind, true)": "first? string, valueSet? boolean",
    "any_value(amount)": "first? bigint, valueSet? boolean",
    "last(kind)": "last? string, valueSet? boolean",
    "max_by(kind, at)": "valueWithExtremumOrdering? string, extremumOrdering? timestamp",
    "min_by(kind, at_ms)": "valueWithExtremumOrdering? string, extremumOrdering? bigint",
    "bit_or(amount)": "bit_or? bigint",
    "stddev(amount)": "n double, avg double, m2 double",
    "collect_list(kind)": "buf? binary",
    "collect_set(kind)": "buf? binary",
    "percentile_approx(amount, 0.5)": "buf? binary",
}

Query = Callable[[DataFrame], DataFrame]


def test_each_aggregate_keeps_its_buffers_under_fixed_names_in_the_order_of_the_select_list(
    lab: Lab, feed: Feed
) -> None:
    """The catalogue maps buffers to declared columns. Names say what a buffer is and are not unique (`sum`,
    `count`), so it must go by position; a Spark that renames or reorders them would make it serve one column as
    another.
    """
    [_, value] = _state_schema(lab, feed, _by_customer(*BUFFERS))

    assert _described(value) == ", ".join(BUFFERS.values())


@pytest.mark.parametrize(
    ("aggregates", "buffers"),
    [
        pytest.param(
            ["sum(amount) AS a", "count(*) AS b", "sum(amount) AS c", "count(1) AS d"],
            "sum? bigint, count bigint",
            id="the same aggregate twice",
        ),
        pytest.param(
            ["count(*)", "count(amount)"],
            "count bigint, count bigint",
            id="counts of different things",
        ),
        pytest.param(
            ["sum(amount) / count(*) AS mean", "max(amount) - min(amount) AS spread", "sum(amount) + 1 AS more"],
            "sum? bigint, count bigint, max? bigint, min? bigint",
            id="expressions over aggregates",
        ),
        pytest.param(
            ["sum(amount)", "avg(amount)", "count(amount)"],
            "sum? bigint, sum? double, count? bigint, count bigint",
            id="an average shares nothing with a sum and a count",
        ),
        pytest.param(
            ["sum(amount) FILTER (WHERE kind = 'usage') AS u", "sum(amount) AS s"],
            "sum? bigint, sum? bigint",
            id="with and without FILTER",
        ),
        pytest.param(["upper(customer) AS upper", "count(*)"], "count bigint", id="expressions over keys keep nothing"),
    ],
)
def test_equal_aggregates_share_their_buffers_and_expressions_keep_those_of_their_parts(
    lab: Lab, feed: Feed, aggregates: list[str], buffers: str
) -> None:
    """The catalogue must find the buffers of a declared column by the aggregate inside its expression, not by
    counting columns: equal aggregates are kept once, at the first place they occur.
    """
    [_, value] = _state_schema(lab, feed, _by_customer(*aggregates))

    assert _described(value) == buffers


@pytest.mark.parametrize(
    ("query", "buffers"),
    [
        pytest.param(
            lambda grouped: grouped.agg(sf.sum("amount").alias("t"), sf.count("*").alias("n")).select("n", "t"),
            "count bigint, sum? bigint",
            id="select reorders",
        ),
        pytest.param(
            lambda grouped: grouped.agg(sf.sum("amount").alias("t"), sf.count("*").alias("n")).select("n"),
            "count bigint",
            id="select drops",
        ),
        pytest.param(
            lambda grouped: grouped.agg(sf.sum("amount").alias("t")).where("t > 0"),
            "sum? bigint",
            id="a filter on a column adds none",
        ),
    ],
)
def test_a_select_after_the_aggregation_reorders_and_drops_buffers(
    lab: Lab, feed: Feed, query: Callable[[GroupedData], DataFrame], buffers: str
) -> None:
    """The state follows the optimised plan, not the text of the view, so the catalogue must derive its mapping
    from that plan.
    """
    [_, value] = _state_schema(lab, feed, lambda stream: query(stream.groupBy("customer")))

    assert _described(value) == buffers


def test_a_restart_is_refused_for_other_types_of_buffers_only(lab: Lab, feed: Feed) -> None:
    """Spark compares the number and the types of buffers, nothing else. The runner must itself compare the
    catalogue of the new code with the one beside the checkpoint: here a count goes on from a sum of money, and
    nobody complains.
    """
    feed.add(usage("emma", 700, 0))
    lab.run(_by_customer("sum(amount) AS amount")(feed.stream()), mode="update")
    feed.add(usage("emma", 1, 0))

    with pytest.raises(StreamingQueryException, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
        lab.run(_by_customer("avg(amount) AS mean")(feed.stream()), mode="update")
    emitted = lab.run(_by_customer("count(*) AS orders")(feed.stream()), mode="update")

    assert [row.orders for row in emitted[1]] == [701]


def test_a_having_clause_keeps_buffers_of_its_own_after_the_others(lab: Lab, feed: Feed) -> None:
    """SQL views may have buffers that belong to no declared column; the catalogue must not take them for one."""

    def query(stream: DataFrame) -> DataFrame:
        stream.createOrReplaceTempView("events")
        return lab.spark.sql("SELECT customer, count(*) FROM events GROUP BY customer HAVING max(at_ms) > 0")

    [_, value] = _state_schema(lab, feed, query)

    assert _described(value) == "count bigint, max? bigint"


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        pytest.param(lambda s: s.groupBy("kind", "customer"), "kind? string, customer? string", id="columns in order"),
        pytest.param(lambda s: s.groupBy("Customer"), "Customer? string", id="spelled as in groupBy"),
        pytest.param(
            lambda s: s.withColumnRenamed("customer", "who").groupBy("who"), "who? string", id="renamed before"
        ),
        pytest.param(
            lambda s: s.withColumn("who", sf.upper("customer")).groupBy("who"), "who? string", id="computed before"
        ),
        pytest.param(
            lambda s: s.groupBy(sf.col("customer").alias("who")), "customer? string", id="an alias in groupBy is lost"
        ),
        pytest.param(
            lambda s: s.groupBy(sf.upper("customer").alias("who"), sf.to_date("at").alias("day")),
            "_groupingexpression? string, _groupingexpression? date",
            id="expressions in groupBy all get the same name",
        ),
        pytest.param(
            lambda s: s.groupBy(sf.window("at", "1 minute"), "customer"),
            "window struct<start:timestamp,end:timestamp>, customer? string",
            id="a window",
        ),
        pytest.param(lambda s: s.groupBy("customer", "customer"), "customer? string", id="a column twice is kept once"),
        pytest.param(
            lambda s: s.groupBy("customer", sf.lit(1).alias("one")), "customer? string", id="a literal is not kept"
        ),
        pytest.param(lambda s: s.groupBy(), "", id="no key at all"),
    ],
)
def test_key_columns_have_the_names_that_they_had_before_group_by(
    lab: Lab, feed: Feed, query: Callable[[DataFrame], GroupedData], keys: str
) -> None:
    """A view's key is looked up by these names and in this order. What is computed or renamed inside `groupBy`
    has no usable name in the state, so the catalogue goes by position there too, or refuses.
    """
    [key, _] = _state_schema(lab, feed, lambda stream: query(stream).count())

    assert _described(key) == keys


def test_a_select_after_the_aggregation_does_not_change_the_key(lab: Lab, feed: Feed) -> None:
    """The state keeps all grouping columns under their old names, whatever the view calls them or leaves out."""

    def query(stream: DataFrame) -> DataFrame:
        return stream.groupBy("customer", "kind").count().select(sf.col("kind").alias("sort"), "count")

    [key, _] = _state_schema(lab, feed, query)

    assert _described(key) == "customer? string, kind? string"


def test_the_schema_file_and_the_state_reader_tell_the_same(lab: Lab, feed: Feed) -> None:
    """`serve` reads the schema file and never starts Spark; Spark's state reader is the oracle of its tests."""
    [key, value] = _state_schema(lab, feed, _by_customer("sum(amount)", "avg(amount)", "last(kind)"))

    file = StateSchema.read(lab.checkpoint.state_folder(partition=0) / "_metadata" / "schema")

    assert file.version == "v2"
    assert file.key == key.jsonValue()["fields"]
    assert file.value == value.jsonValue()["fields"]
    assert not (lab.checkpoint.state_folder(partition=1) / "_metadata").exists()


def test_the_state_metadata_names_operator_store_and_number_of_partitions(lab: Lab, feed: Feed) -> None:
    """`inspect` shows these, and the reader learns from them how many partitions to read."""
    feed.add(usage("emma", 1, 0))
    lab.run(feed.stream().groupBy("customer").count(), mode="update")

    [row] = lab.spark.read.format("state-metadata").load(str(lab.checkpoint.path)).collect()

    assert row.asDict() == {
        "operatorId": 0,
        "operatorName": "stateStoreSave",
        "stateStoreName": "default",
        "numPartitions": 2,
        "minBatchId": 0,
        "maxBatchId": 0,
        "operatorProperties": None,
    }
    assert (lab.checkpoint.path / "state" / "0" / "_metadata" / "metadata").read_text() == (
        'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},'
        '"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":2}]}'
    )


def test_an_aggregation_without_a_key_keeps_its_row_in_one_partition_and_notes_more(lab: Lab, feed: Feed) -> None:
    """The reader looks for one partition's files then: those of the others, which the metadata counts, never come."""
    feed.add(usage("emma", 1, 0))
    lab.run(feed.stream().groupBy().count(), mode="update")

    assert '"numPartitions":2' in (lab.checkpoint.path / "state" / "0" / "_metadata" / "metadata").read_text()
    assert [path.name for path in (lab.checkpoint.path / "state" / "0").iterdir() if path.name.isdigit()] == ["0"]
    assert len(lab.checkpoint.state_ids(0)) == 1


@pytest.mark.parametrize("within_watermark", [False, True])
def test_a_removal_of_duplicates_keeps_the_keys_that_it_has_seen(lab: Lab, feed: Feed, within_watermark: bool) -> None:
    """Views of other people's queries are inferred by the operator's name, and what is always null is not shown."""
    feed.add(usage("emma", 1, 0))
    stream = feed.stream()
    if within_watermark:
        unique = stream.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["customer"])
    else:
        unique = stream.dropDuplicates(["customer"])
    lab.run(unique)

    [row] = lab.spark.read.format("state-metadata").load(str(lab.checkpoint.path)).collect()
    schema = StateSchema.read(lab.checkpoint.state_folder() / "_metadata" / "schema")
    assert row.operatorName == ("dedupeWithinWatermark" if within_watermark else "dedupe")
    assert [(column["name"], column["type"]) for column in schema.key] == [("customer", "string")]
    [value] = [(column["name"], column["type"]) for column in schema.value]
    assert value == (("expiresAtMicros", "long") if within_watermark else ("__dummy__", "void"))


def _by_customer(*aggregates: str) -> Query:
    expressions: list[Column] = [sf.expr(text) for text in aggregates]
    return lambda stream: stream.groupBy("customer").agg(*expressions)


def _state_schema(lab: Lab, feed: Feed, query: Query) -> tuple[StructType, StructType]:
    """Key and value schema of the state, after one batch of one row."""
    feed.add(usage("emma", 1, 0))
    lab.run(query(feed.stream()), mode="update")
    schema = lab.state().schema
    return schema["key"].dataType, schema["value"].dataType  # type: ignore[return-value]


def _described(schema: StructType) -> str:
    return ", ".join(f"{column.name}{'?' * column.nullable} {column.dataType.simpleString()}" for column in schema)
