"""Settings: one table, three layers, errors that say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stateside
from stateside.core.errors import SettingInvalid
from stateside.pipeline.foreground import gather_settings
from stateside.pipeline.settings import PROFILES, RunSettings, flag, read_file, table


def test_flags_win_over_the_file_and_the_file_over_the_application(tmp_path: Path) -> None:
    file = tmp_path / "stateside.toml"
    file.write_text('partitions = 3\nstop_s_max = 7\n[spark]\n"spark.a" = 1\n"spark.b" = true\n')
    app = stateside.App("shop", settings={"partitions": 2, "restarts_max": 9, "spark": {"spark.a": "x"}})
    settings = gather_settings(app, file, {"partitions": 4, "spark": {"spark.c": "z"}})
    assert (settings.partitions, settings.stop_s_max, settings.restarts_max) == (4, 7.0, 9)
    assert settings.spark == {"spark.a": "1", "spark.b": "true", "spark.c": "z"}


def test_a_profile_sets_defaults_and_loses_against_what_is_given() -> None:
    assert RunSettings.of(("in code", {"profile": "throughput"})).events_per_batch_max == 5_000_000
    given = RunSettings.of(("in code", {"events_per_batch_max": 10}), ("as a flag", {"profile": "throughput"}))
    assert given.events_per_batch_max == 10
    large = RunSettings.of(("in code", {"profile": "large-state", "spark": {"spark.x": "1"}}))
    assert large.spark["spark.x"] == "1"
    assert any("blockCacheSizeMB" in name for name in large.spark)


def test_a_run_says_what_its_profile_sets_and_claims_no_explicit_setting() -> None:
    def said(layer: dict[str, Any]) -> str:
        return RunSettings.of(("in the file", layer)).profile_sentence() or ""

    assert said({}) == "", "the default sets nothing"
    throughput = {"profile": "throughput", "driver_memory": "2g"}
    assert said(throughput) == "Profile throughput: events_per_batch_max = 5000000, batch_interval_ms = 2000."
    cache = "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB"
    large = said({"profile": "large-state", "spark": {cache: 64}})
    assert large.startswith("Profile large-state: driver_memory = 4g, spark.")
    assert cache not in large


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_made_of_settings_that_exist(profile: str) -> None:
    RunSettings.of(("in the profile", PROFILES[profile] | {"profile": profile}))


def test_what_spark_is_told_follows_from_the_settings() -> None:
    conf = RunSettings.of(("in code", {"driver_memory": "3g", "partitions": 7, "batches_kept": 50})).spark_conf()
    assert conf["spark.driver.memory"] == "3g"
    assert conf["spark.sql.shuffle.partitions"] == "7"
    assert conf["spark.sql.streaming.minBatchesToRetain"] == "50"
    assert "spark.sql.shuffle.partitions" not in RunSettings().spark_conf(), "it follows the session's cores"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"partitons": 2}, "There is no setting 'partitons', which stands in the file. Did you mean partitions?"),
        ({"zzz": 2}, "There are: profile, master"),
        ({"partitions": "2"}, "The setting partitions is '2' in the file. It must be a whole number."),
        ({"partitions": True}, "must be a whole number"),
        ({"partitions": -1}, "must be 0 or more"),
        ({"hold_s_max": float("nan")}, "must be 0 or more"),
        ({"profile": "fast"}, "must be one of low-latency, throughput, large-state"),
        ({"accept_changes": "yes"}, "must be a true or false"),
        ({"stop_at": "0:1"}, "There is no setting 'stop_at'"),
        ({"spark": {"shuffle": 1}}, "'shuffle' in the file is no setting of Spark's. They begin with `spark.`"),
        ({"spark": {"spark.x": [1]}}, "must be a text or a number"),
        ({"spark": {"spark": {"x": 1}}}, "In TOML a name with dots stands in quotes"),
        ({"spark": 1}, "must be a table of Spark's settings"),
    ],
)
def test_what_is_no_setting_is_refused_with_its_place(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingInvalid) as refused:
        RunSettings.of(("in the file", given))
    assert message in str(refused.value)


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match="There is no file"):
        read_file(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("partitions = \n")
    with pytest.raises(SettingInvalid, match=r"bad\.toml is no TOML: .*line 1"):
        read_file(tmp_path / "bad.toml")


def test_the_documented_table_is_the_table() -> None:
    """docs/settings.md has a line for each setting, with its default and what it says about itself."""
    document = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    lines = [line for line in document.splitlines() if line.startswith("| `")]
    expected = [
        f"| `{entry.name}` | `{flag(entry)}` | {'' if entry.name == 'spark' else f'`{entry.default}`'} "
        f"| {entry.metadata['help']} |"
        for entry in table()
    ]
    assert lines[: len(expected)] == expected


def test_a_secret_of_spark_is_refused_where_every_user_could_read_it(tmp_path: Path) -> None:
    from stateside.pipeline.session import start_session

    with pytest.raises(SettingInvalid, match=r"spark\.authenticate\.secret would be in the process list"):
        start_session("shop", tmp_path, conf={"spark.authenticate.secret": "s3cret"})
