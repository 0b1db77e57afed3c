"""Advice follows from figures, and figures from the files of a checkpoint, without Spark."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.played_spark import PlayedSpark
from stateside.cli import main
from stateside.core.errors import CheckpointInvalid, RequestInvalid
from stateside.core.layout import Layout, ViewLayout
from stateside.core.storage import Storage
from stateside.ops import advise as advising
from stateside.ops.advise import (
    BATCHES_MIN,
    COPIED_KEYS_FREE,
    COPIED_KEYS_PER_UPDATE,
    HEAP_BYTES_PER_ROW,
    OBSERVED_S_MIN,
    PARTITION_BYTES_MAX,
    Advice,
    Measured,
    Recommendation,
    advise,
    measure_checkpoint,
    measure_folder,
    parse_size,
)
from stateside.ops.doctor import MEMORY_BYTES_MIN
from stateside.pipeline.settings import RunSettings
from stateside.spark_state import rocksdb_snapshot
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.provider import Provider
from tests.docs.commands import DOCS, command, commands
from tests.sizes import examples
from tests.written import WORDS, Written, WrittenOperator, words

GIB = 1 << 30
FEW = Measured(10_000, 100, 5_000, 8 * GIB, 2, updates_per_batch=5_000)
MANY = Measured(1_000_000, 100, 10_000, 8 * GIB, 2, updates_per_batch=10_000)
HUGE = Measured(50_000_000, 1_000, 50_000, 16 * GIB, 2, updates_per_batch=50_000)
ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"


def topic(advice: Advice, name: str) -> Recommendation:
    (found,) = (each for each in advice.recommendations if each.topic == name)
    return found


class TestTheStore:
    @pytest.mark.parametrize(
        ("keys", "changed", "in_memory"),
        [
            (COPIED_KEYS_FREE, 1, True),
            (COPIED_KEYS_FREE + 1, 1, False),
            (COPIED_KEYS_PER_UPDATE * 10_000, 10_000, True),
            (COPIED_KEYS_PER_UPDATE * 10_000 + 1, 10_000, False),
        ],
    )
    def test_memory_is_for_few_keys_and_for_batches_that_change_many_of_them(
        self, keys: int, changed: int, in_memory: bool
    ) -> None:
        advice = advise(replace(MANY, keys=keys, updates_per_batch=changed))
        assert advice.in_memory is in_memory
        assert f"{keys:,} keys" in advice.recommendations[0].reason

    def test_memory_is_for_states_that_fit_into_half_of_what_is_left(self) -> None:
        heap_bytes = 10_000 * (100 + HEAP_BYTES_PER_ROW)
        fits = replace(FEW, memory_bytes=MEMORY_BYTES_MIN + 2 * heap_bytes)
        assert advise(fits).in_memory
        too_little = advise(replace(fits, memory_bytes=fits.memory_bytes - 2))
        assert not too_little.in_memory
        assert "of heap, and" in too_little.recommendations[0].reason

    def test_a_state_that_works_in_rocksdb_alone_stays_there(self) -> None:
        advice = advise(replace(FEW, rocksdb_because="Timers."))
        assert (advice.in_memory, advice.recommendations[0].reason) == (False, "Timers.")

    def test_a_state_in_the_other_store_has_to_be_folded_again(self) -> None:
        stays, leaves = (advise(replace(MANY, provider=store)) for store in (Provider.ROCKSDB, Provider.HDFS))
        assert "--refold" not in advising.render(stays)
        assert "a run of it with these settings fails" in leaves.recommendations[0].reason
        assert "In stateside.toml, from the `stateside apply --refold` on:" in advising.render(leaves)

    def test_without_known_batches_those_of_a_second_count(self) -> None:
        known = replace(MANY, updates_per_s=100_000, updates_per_batch=100)
        assert not advise(known).in_memory
        assert advise(replace(known, updates_per_batch=None)).in_memory

    @pytest.mark.parametrize("store", Provider)
    def test_the_advice_for_a_given_store_is_for_this_one(self, store: Provider) -> None:
        assert advise(MANY, store).in_memory is (store is Provider.HDFS)

    def test_format_2_and_changelogs_go_with_rocksdb_alone(self) -> None:
        spark = advise(MANY).settings()["spark"]
        assert spark["spark.sql.streaming.stateStore.checkpointFormatVersion"] == "2"
        assert spark[f"{ROCKSDB}.changelogCheckpointing.enabled"] == "true"
        in_memory = advise(FEW).settings()["spark"]
        assert in_memory["spark.sql.streaming.stateStore.checkpointFormatVersion"] == "1"
        assert not any(name.startswith(ROCKSDB) for name in in_memory)


class TestSizes:
    @pytest.mark.parametrize(
        ("state_bytes", "count"), [(1, 2), (2 * PARTITION_BYTES_MAX, 2), (2 * PARTITION_BYTES_MAX + 2, 4)]
    )
    def test_partitions_are_as_many_as_cores_or_a_multiple_for_large_states(self, state_bytes: int, count: int) -> None:
        measured = replace(HUGE, keys=1, row_bytes=state_bytes)
        assert advise(measured, Provider.ROCKSDB).settings()["partitions"] == count

    def test_another_number_of_partitions_than_now_names_the_command(self) -> None:
        assert "stateside rescale" not in topic(advise(replace(MANY, partitions=2)), "partitions").reason
        assert "There are 5 now; `stateside rescale`" in topic(advise(replace(MANY, partitions=5)), "partitions").reason

    def test_the_heap_is_that_of_the_state_and_one_gib(self) -> None:
        assert advise(FEW).settings()["driver_memory"] == "2g"
        state = replace(FEW, keys=10_000_000, row_bytes=100, updates_per_batch=1_000_000, memory_bytes=16 * GIB)
        assert advise(state).settings()["driver_memory"] == "4g", "2.8 GiB of state"

    def test_the_block_cache_holds_a_state_that_fits(self) -> None:
        assert advise(MANY).settings()["spark"][f"{ROCKSDB}.blockCacheSizeMB"] == "64", "48 MiB in each of two stores"
        small = replace(MANY, row_bytes=1)
        assert advise(small).settings()["spark"][f"{ROCKSDB}.blockCacheSizeMB"] == "8", "Spark's own default"

    def test_the_stores_of_a_larger_state_share_a_bounded_memory(self) -> None:
        spark = advise(HUGE).settings()["spark"]
        assert spark[f"{ROCKSDB}.boundedMemoryUsage"] == "true"
        assert spark[f"{ROCKSDB}.maxMemoryUsageMB"] == "7168", "half of 16 GiB without the 2 of Spark and Python"
        assert f"{ROCKSDB}.blockCacheSizeMB" not in spark

    def test_write_buffers_of_many_stores_are_smaller(self) -> None:
        assert topic(advise(MANY), "write buffers").settings == {}
        assert topic(advise(replace(MANY, stores=10)), "write buffers").settings == {f"{ROCKSDB}.writeBufferSizeMB": 16}
        assert topic(advise(replace(MANY, stores=1_000)), "write buffers").settings == {
            f"{ROCKSDB}.writeBufferSizeMB": 4
        }


class TestTimes:
    @pytest.mark.parametrize(
        ("updates_per_s", "batches_per_s", "settings_"),
        [
            (0, 1, {}),
            (10_000, 1, {}),
            (100_000, 1, {"maintenanceInterval": "39s"}),
            (10_000_000, 1, {"maintenanceInterval": "10s", "minDeltasForSnapshot": 2}),
            (1_000, 100, {"maintenanceInterval": "19s"}),
            (100_000, 0.1, {"maintenanceInterval": "39s", "minDeltasForSnapshot": 3}),
        ],
    )
    def test_snapshots_are_closer_where_a_crash_would_replay_for_long(
        self, updates_per_s: float, batches_per_s: float, settings_: dict[str, Any]
    ) -> None:
        measured = replace(MANY, updates_per_s=updates_per_s, updates_per_batch=updates_per_s / batches_per_s)
        found = topic(advise(measured, Provider.ROCKSDB), "snapshots").settings
        assert found == {f"spark.sql.streaming.stateStore.{name}": value for name, value in settings_.items()}

    def test_a_replay_is_estimated_from_the_real_distance_of_snapshots(self) -> None:
        """Ten batches at least, here of twenty seconds."""
        slow = replace(MANY, updates_per_s=2_500, updates_per_batch=50_000)
        found = topic(advise(slow), "snapshots")
        assert (found.choice, found.settings) == ("200 s apart, as by default", {})
        assert found.reason.endswith("for an estimated 1.3 s.")

    @pytest.mark.parametrize(("batch_ms", "target"), [(None, None), (5_000, None), (5_001, 2_000)])
    def test_long_batches_get_a_target(self, batch_ms: float | None, target: int | None) -> None:
        assert advise(replace(MANY, batch_ms=batch_ms)).settings().get("batch_target_ms") == target


def test_the_profile_follows_from_size_and_rate() -> None:
    assert advise(MANY).settings()["profile"] == "low-latency"
    assert advise(replace(MANY, updates_per_s=50_000)).settings()["profile"] == "low-latency"
    assert advise(replace(MANY, updates_per_s=50_001)).settings()["profile"] == "throughput"
    assert advise(HUGE).settings()["profile"] == "large-state"


@settings(max_examples=examples(200, 2_000), deadline=None)
@given(
    st.builds(
        Measured,
        keys=st.integers(1, 10**10),
        row_bytes=st.floats(1, 10**6),
        updates_per_s=st.floats(0, 10**8),
        memory_bytes=st.integers(MEMORY_BYTES_MIN + 1, 10**13),
        cores=st.integers(1, 512),
        updates_per_batch=st.none() | st.floats(0, 10**8),
        batch_ms=st.none() | st.floats(0, 10**7),
        stores=st.integers(1, 40),
        partitions=st.none() | st.integers(1, 1_000),
    )
)
def test_every_advice_is_settings_that_exist_and_reasons_in_a_sentence(measured: Measured) -> None:
    advice = advise(measured)
    set_ = RunSettings.of(("as advised", advice.settings()))
    assert set_.spark.items() >= advice.settings()["spark"].items(), "explicit settings win over the profile"
    assert all(each.reason.endswith(".") and "\n" not in each.reason for each in advice.recommendations)
    assert all(each.topic in advising.render(advice) for each in advice.recommendations)
    json.dumps(advising.as_json(advice))


class TestRefusals:
    @pytest.mark.parametrize(
        ("figures", "message"),
        [
            ({"keys": 0}, "--keys is 0. It must be a number from 1 on."),
            ({"keys": -5}, "--keys is -5"),
            ({"row_bytes": float("nan")}, "--row-bytes is nan"),
            ({"row_bytes": 0}, "--row-bytes is 0"),
            ({"updates_per_s": -1}, "--updates-per-s is -1. It must be a number from 0 on."),
            ({"updates_per_s": float("inf")}, "--updates-per-s is inf"),
            ({"cores": 0}, "--cores is 0"),
            ({"memory_bytes": MEMORY_BYTES_MIN}, "2.0 GiB of memory are too little for any state"),
            ({"observed_s": OBSERVED_S_MIN - 1, "batches": 99}, "known: 99 batches in 599 s. Run it for an hour"),
            ({"observed_s": 9_999, "batches": BATCHES_MIN - 1}, "Not enough is known: 9 batches in 9,999 s"),
            ({"keys": 0, "observed_s": 9_999, "batches": 99}, "Not enough is known: no batch has changed a row"),
        ],
    )  # fmt: skip
    def test_impossible_and_insufficient_figures_are_refused(self, figures: dict[str, Any], message: str) -> None:
        with pytest.raises(RequestInvalid) as refused:
            advise(replace(MANY, **figures))
        assert message in str(refused.value)

    def test_just_enough_is_enough(self) -> None:
        assert advise(replace(MANY, observed_s=OBSERVED_S_MIN, batches=BATCHES_MIN))

    @pytest.mark.parametrize("text", ["8x", "", "-1g", "g", "1e3", "nan"])
    def test_a_size_without_meaning_is_refused(self, text: str) -> None:
        with pytest.raises(RequestInvalid, match="Write it like 8g or 512m"):
            parse_size(text)

    def test_sizes_are_written_in_several_ways(self) -> None:
        assert {parse_size(text) for text in ("2g", "2G", "2 GiB", "2gb", "2048m", "2147483648")} == {2 * GIB}


def planned(checkpoint: Path, every_s: float, took_s: float = 0.5) -> None:
    """Give the batches of a checkpoint these times."""
    for plan in (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()):
        version, head, *rest = plan.read_text().split("\n")
        at_ms = 1_700_000_000_000 + int(int(plan.name) * every_s * 1_000)
        plan.write_text("\n".join([version, json.dumps({**json.loads(head), "batchTimestampMs": at_ms}), *rest]))
        plan.with_name(f".{plan.name}.crc").unlink(missing_ok=True)
        os.utime(checkpoint / "commits" / plan.name, times=(at_ms / 1_000 + took_s,) * 2)


def in_memory_checkpoint(folder: Path, operator: WrittenOperator = WORDS) -> Path:
    """Twenty batches, each with one new word and one known one, a minute apart."""
    written = Written(folder, operator)
    for number in range(20):
        written.batch(words(**{f"word{number}": 1, "the": number}))
    planned(folder, 60)
    return folder


def rocksdb_view(view: ViewLayout, accounts: int) -> ViewLayout:
    """A snapshot of so many accounts, then ten batches of 30 of them, two minutes apart."""
    spark = PlayedSpark(view, partitions=3)
    spark.snapshot(0, accounts)
    for number in range(10):
        spark.commit(spark.changelogs(np.arange(30, dtype=np.int64), number))
    planned(view.checkpoint, 120)
    return view


class TestMeasuring:
    def test_the_figures_of_a_state_in_memory(self, tmp_path: Path) -> None:
        measured = measure_checkpoint(str(in_memory_checkpoint(tmp_path / "c")), memory=8 * GIB, cores=4)
        assert (measured.keys, measured.updates_per_batch, measured.batches) == (21, 2, 20)
        assert measured.updates_per_s == pytest.approx(2 / 60)
        assert measured.batch_ms == pytest.approx(500, abs=1)
        assert (measured.observed_s, measured.partitions) == (19 * 60, 2)
        assert 40 <= measured.row_bytes <= 60, "a word and a count, an UnsafeRow each"
        assert measured.provider is Provider.HDFS
        assert advise(measured).in_memory

    def test_the_figures_of_a_state_in_rocksdb(self, tmp_path: Path) -> None:
        view = rocksdb_view(Layout(tmp_path).view("bills"), 3_000)
        measured = measure_folder(tmp_path, memory=8 * GIB, cores=4)
        assert (measured.keys, measured.updates_per_batch, measured.partitions) == (3_000, 30, 3)
        assert (measured.row_bytes, measured.provider) == (40 + 24, Provider.ROCKSDB)
        assert measure_checkpoint(str(view.checkpoint), 8 * GIB, 4) == measured

    def test_keys_of_large_snapshots_are_added_up_by_the_properties_of_their_tables(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rocksdb_view(Layout(tmp_path).view("bills"), 3_000)
        monkeypatch.setattr(rocksdb_snapshot, "KEYS_COUNTED_MAX", 10)
        monkeypatch.setattr(rocksdb_snapshot, "read_keys", None)
        assert measure_folder(tmp_path).keys == 3_000

    def test_a_damaged_table_is_named(self, tmp_path: Path) -> None:
        view = rocksdb_view(Layout(tmp_path).view("bills"), 300)
        (table,) = (view.checkpoint / "state/0/1/SSTs").glob("[!.]*.sst")
        table.write_bytes(table.read_bytes()[:-20])
        with pytest.raises(
            CheckpointInvalid, match=r"cannot be counted: it is no table of RocksDB's .*state/0/1/1.zip"
        ):
            measure_folder(tmp_path)

    def test_the_views_of_an_application_share_its_memory(self, tmp_path: Path) -> None:
        for name, accounts in (("bills", 3_000), ("usage", 1_000)):
            rocksdb_view(Layout(tmp_path).view(name), accounts)
        measured = measure_folder(tmp_path)
        assert (measured.keys, measured.updates_per_batch, measured.stores) == (4_000, 60, 2)

    def test_a_folder_with_standbys_stays_in_rocksdb(self, tmp_path: Path) -> None:
        rocksdb_view(Layout(tmp_path).view("bills"), 300)
        assert advise(measure_folder(tmp_path)).in_memory
        (tmp_path / "lease" / "claims").mkdir(parents=True)
        advice = advise(measure_folder(tmp_path))
        assert not advice.in_memory
        assert "a paused old leader" in advice.recommendations[0].reason

    def test_batches_are_sampled_from_the_whole_history(self, tmp_path: Path) -> None:
        written = Written(tmp_path / "c", WORDS)
        for number in range(40):
            written.batch(words(**{f"word{n}": number for n in range(100 if number < 20 else 0)}))
        planned(tmp_path / "c", 60)
        assert measure_checkpoint(str(tmp_path / "c")).updates_per_batch == 50

    def test_a_history_with_a_gap_is_measured_by_what_is_left_of_it(self, tmp_path: Path) -> None:
        folder = in_memory_checkpoint(tmp_path / "c")
        for number in (0, 1):
            (folder / f"state/0/{number}/20.snapshot").write_bytes((folder / f"state/0/{number}/20.delta").read_bytes())
            (folder / f"state/0/{number}/5.delta").unlink()
        assert measure_checkpoint(str(folder)).updates_per_batch == 2

    def test_the_durations_of_a_copied_checkpoint_are_unknown(self, tmp_path: Path) -> None:
        folder = in_memory_checkpoint(tmp_path / "c")
        for commit in (folder / "commits").iterdir():
            os.utime(commit)
        assert measure_checkpoint(str(folder)).batch_ms is None

    def test_keys_in_two_parts_are_told_by_the_operator_alone(self, tmp_path: Path) -> None:
        checkpoint = Checkpoint(Storage.at(in_memory_checkpoint(tmp_path / "c")))
        assert not checkpoint.is_prefixed(0)
        path = tmp_path / "c/state/0/_metadata/metadata"
        path.write_text(path.read_text().replace('"numColsPrefixKey": 0', '"numColsPrefixKey": 1'))
        assert checkpoint.is_prefixed(0)


def stateside(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["advise", *map(str, arguments)])


class TestTheCommand:
    def test_it_prints_settings_for_an_application_and_conf_for_a_foreign_query(self, tmp_path: Path) -> None:
        view = rocksdb_view(Layout(tmp_path).view("bills"), 300)
        ours = stateside("--dir", tmp_path, "--memory", "8g", "--cores", "4")
        assert ours.exit_code == 0, ours.output
        assert "Measured: 300 keys at 64 bytes" in ours.output
        assert "\npartitions = 4\n" in ours.output
        theirs = stateside(view.checkpoint, "--memory", "8g", "--cores", "4")
        assert "\nspark.sql.shuffle.partitions=4\n" in theirs.output
        assert "profile =" not in theirs.output

    def test_its_json_has_figures_reasons_and_settings(self) -> None:
        done = stateside(
            "--keys", "1000000", "--row-bytes", "100", "--updates-per-s", "5000", "--memory", "8g", "--json"
        )
        document = json.loads(done.output)
        assert document["measured"]["keys"] == 1_000_000
        assert document["recommendations"][0]["choice"] == "RocksDB"
        assert RunSettings.of(("as advised", document["settings"])).partitions

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "There is nothing to advise on, or more than one thing."),
            (["--keys", "5"], "all of --keys, --row-bytes and --updates-per-s"),
            (["--dir", "{}", "{}"], "or more than one thing"),
            (["--dir", "{}/nowhere"], "nowhere. Name the --dir that `stateside run` works in."),
            (["--dir", "{}"], "has finished a batch. `stateside run` it for an hour, then ask again, or give --keys"),
            (["{}/nowhere"], "there is no folder yet. Run the query for an hour"),
            (["{}/other"], "This folder is no checkpoint"),
            (["{}/stateless"], "keeps no state"),
            (["{}/young"], "Not enough is known: 1 batch in 0 s. Run it for an hour"),
        ],
    )
    def test_what_cannot_be_advised_on_is_one_sentence(
        self, tmp_path: Path, arguments: list[str], message: str
    ) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").touch()
        Written(tmp_path / "stateless").batch()
        Written(tmp_path / "young", WORDS).batch(words(a=1))
        done = stateside(*(each.format(tmp_path) for each in arguments))
        assert done.exit_code == 1
        assert message in done.output
        assert len(done.output.splitlines()) == 1

    def test_the_guide_shows_what_it_prints(self) -> None:
        (example,) = (each for each in commands("tuning.md") if "--keys" in each)
        done = stateside(*example[1:])
        assert done.exit_code == 0
        assert f"{done.output}```" in (DOCS / "tuning.md").read_text()

    def test_the_commands_of_the_guide_measure_folders_and_checkpoints(self, tmp_path: Path) -> None:
        view = rocksdb_view(Layout(tmp_path).view("bills"), 300)
        by_folder = command("tuning.md", "advise", "--dir", dir=tmp_path)
        (by_checkpoint,) = (each for each in commands("tuning.md") if "s3:" in each[1])
        by_checkpoint[1] = str(view.checkpoint)
        assert [stateside(*each[1:]).exit_code for each in (by_folder, by_checkpoint)] == [0, 0]
