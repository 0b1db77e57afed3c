from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stateside.core.errors import SetupError
from stateside.pipeline.jars import LOCK, cache_folder, fetch, locked

GOOD = b"the jar that was locked"
GOOD_SHA256 = hashlib.sha256(GOOD).hexdigest()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock of one jar, in two groups."""
    file = tmp_path / "jars.lock"
    file.write_text(
        f"# a comment\n\ntools org.example:tool:1.0 {GOOD_SHA256}\nother org.example:other:2.0 {'0' * 64}\n"
    )
    return file


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository on disk, which the real Ivy is told of by a settings file; returns where the locked jar goes."""
    jar = tmp_path / "repository" / "org" / "example" / "tool" / "1.0" / "tool-1.0.jar"
    jar.parent.mkdir(parents=True)
    pattern = f"{tmp_path}/repository/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="disk"/><resolvers><filesystem name="disk" m2compatible="true">'
        f'<artifact pattern="{pattern}"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setenv("STATESIDE_IVY_SETTINGS", str(settings))
    return jar


def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateside.pipeline.jars.find_java", lambda: pytest.fail("Java was looked for"))


def cached(cache: Path, content: bytes) -> Path:
    file = cache / "jars" / "tool-1.0.jar"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return file


def test_the_lock_names_the_four_jars_that_work_together_with_kafka() -> None:
    jars = [jar for jar in locked(LOCK.read_text()) if jar.group == "kafka"]
    assert [jar.coordinate for jar in jars] == [
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ]


def test_the_lock_names_the_broker_with_all_that_it_needs_at_run_time() -> None:
    jars = [jar for jar in locked(LOCK.read_text()) if jar.group == "broker"]
    assert jars[0].coordinate == "org.apache.kafka:kafka_2.13:4.1.0"
    assert len({jar.name for jar in jars}) == len(jars) == 46  # Kafka, its 44 run-time dependencies, and a logger


def test_a_jar_that_is_there_already_is_used_without_starting_anything(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_java(monkeypatch)
    file = cached(tmp_path, GOOD)
    assert fetch("tools", cache=tmp_path, lock=lock) == [file]


def test_a_tampered_jar_in_the_cache_is_refused_by_name_and_both_hashes_and_stays_there(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_java(monkeypatch)
    file = cached(tmp_path, GOOD + b"!")
    with pytest.raises(SetupError) as refusal:
        fetch("tools", cache=tmp_path, lock=lock)
    message = str(refusal.value)
    assert refusal.value.where == str(file)
    assert GOOD_SHA256 in message and hashlib.sha256(GOOD + b"!").hexdigest() in message
    assert "delete it" in message
    assert file.read_bytes() == GOOD + b"!"


@pytest.mark.parametrize(
    "line",
    [
        f"tools org.example:tool {GOOD_SHA256}",
        f"tools org.example:tool:1.0 {GOOD_SHA256[:-2]}",
        f"tools org.example:tool:1.0 {'x' * 64}",
        "tools org.example:tool:1.0",
    ],
)
def test_a_tampered_line_of_the_lock_is_named(line: str) -> None:
    with pytest.raises(SetupError, match=r"A line of jars\.lock is not") as refusal:
        locked(line)
    assert line in str(refusal.value)


def test_the_cache_is_where_the_variable_says_or_in_the_home_folder() -> None:
    assert cache_folder({"STATESIDE_CACHE": "/somewhere"}) == Path("/somewhere")
    assert cache_folder({}) == Path.home() / ".cache" / "stateside"


def test_a_group_that_is_not_in_the_lock_is_a_mistake_of_the_programmer(lock: Path) -> None:
    with pytest.raises(AssertionError, match="nothing"):
        fetch("nothing", lock=lock)


@pytest.mark.spark
def test_ivy_brings_a_jar_once_and_the_cache_has_it_from_then_on(
    tmp_path: Path, lock: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write_bytes(GOOD)
    (file,) = fetch("tools", cache=tmp_path, lock=lock)
    assert file.read_bytes() == GOOD
    assert [each.name for each in file.parent.iterdir()] == ["tool-1.0.jar"]
    without_java(monkeypatch)
    assert fetch("tools", cache=tmp_path, lock=lock) == [file]


@pytest.mark.spark
def test_a_tampered_jar_from_the_repository_is_set_aside_and_a_mended_repository_mends_it(
    tmp_path: Path, lock: Path, repository: Path
) -> None:
    repository.write_bytes(b"tampered")
    with pytest.raises(SetupError) as refusal:
        fetch("tools", cache=tmp_path, lock=lock)
    refused = tmp_path / "jars" / "tool-1.0.jar.refused"
    assert refusal.value.where == str(refused)
    assert refused.read_bytes() == b"tampered"
    repository.write_bytes(GOOD)
    assert fetch("tools", cache=tmp_path, lock=lock)[0].read_bytes() == GOOD


@pytest.mark.spark
def test_a_jar_that_cannot_be_had_is_named_with_ways_out(tmp_path: Path, lock: Path, repository: Path) -> None:
    with pytest.raises(SetupError) as refusal:
        fetch("tools", cache=tmp_path, lock=lock)
    assert refusal.value.what == "org.example:tool:1.0 could not be fetched"
    assert "org.example#tool;1.0: not found" in str(refusal.value.where)
    assert f"put the file as tool-1.0.jar into {tmp_path / 'jars'}" in str(refusal.value.next_step)


@pytest.mark.spark
def test_of_several_jars_the_first_that_cannot_be_had_is_told_and_those_before_it_are_kept(
    tmp_path: Path, lock: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one run of Ivy was to bring them all."""
    monkeypatch.setattr("stateside.pipeline.jars.FETCHES_AT_ONCE", 1)
    lines = [f"tools org.example:{name}:1.0 {GOOD_SHA256}" for name in ("tool", "missing", "third")]
    lock.write_text("\n".join(lines))
    repository.write_bytes(GOOD)
    with pytest.raises(SetupError) as refusal:
        fetch("tools", cache=tmp_path, lock=lock)
    assert refusal.value.what == "org.example:missing:1.0 could not be fetched"
    assert "org.example#missing;1.0: not found" in str(refusal.value.where)
    assert [each.name for each in (tmp_path / "jars").iterdir()] == ["tool-1.0.jar"]


@pytest.mark.spark
def test_without_a_network_the_error_says_that_the_server_was_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1")
    with pytest.raises(SetupError, match="Check the network") as refusal:
        fetch("kafka", cache=tmp_path)
    assert "Server access error" in str(refusal.value.where)


@pytest.mark.spark
@pytest.mark.network
def test_the_real_jars_are_the_ones_that_were_locked(tmp_path: Path) -> None:
    files = fetch("kafka", cache=tmp_path)
    assert [file.name for file in files] == [jar.name for jar in locked(LOCK.read_text()) if jar.group == "kafka"]
