"""Where Spark runs: addresses of clusters, and what is told of one that does not answer."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from stateside.core.errors import ClusterAway, SettingInvalid
from stateside.core.processes import free_port
from stateside.pipeline.master import check_reachable, cluster_conf, masters_of, python_path


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]", "yarn", "k8s://https://one:6443"])
def test_what_is_no_standalone_cluster_has_no_masters_to_look_for(master: str) -> None:
    assert masters_of(master) == []
    assert cluster_conf(master) == {}
    check_reachable(master)


def test_a_cluster_may_have_several_masters() -> None:
    assert masters_of("spark://one:7077") == [("one", 7077)]
    assert masters_of("spark://one:7077,two:7078") == [("one", 7077), ("two", 7078)]
    assert masters_of("spark://[::1]:7077") == [("::1", 7077)]


@pytest.mark.parametrize(
    "master",
    [
        *("", "locla[2]", "sprak://one:7077", "spark://", "spark://one", "spark://one:", "spark://one:http"),
        *("spark://one:0", "spark://one:70777", "spark://one:7077,", "spark://one:7077,two", "http://one:8080"),
        *("spark://one:7077/", "spark://one:٣", "one:7077"),
    ],
)
def test_what_is_no_address_of_a_cluster_is_told_so(master: str) -> None:
    with pytest.raises(SettingInvalid, match="is no place where Spark can run") as refusal:
        masters_of(master)
    assert "spark://one:7077,two:7077" in str(refusal.value)


@pytest.mark.timeout(60)
def test_a_cluster_where_nobody_listens_is_told_with_each_address_and_in_time() -> None:
    one, two = free_port(), free_port()
    with pytest.raises(ClusterAway, match="No Spark master answers") as refusal:
        check_reachable(f"spark://127.0.0.1:{one},127.0.0.1:{two}", wait_s=0.3)
    assert f"127.0.0.1:{one} Connection refused; 127.0.0.1:{two} Connection refused" in str(refusal.value)


def test_a_host_that_does_not_exist_is_told_so() -> None:
    with pytest.raises(ClusterAway, match=r"no-such-host\.invalid:7077 "):
        check_reachable("spark://no-such-host.invalid:7077", wait_s=0.1)


def test_one_master_that_listens_is_enough() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        check_reachable(f"spark://127.0.0.1:{free_port()},127.0.0.1:{listener.getsockname()[1]}", wait_s=1)


def test_executors_find_what_the_driver_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages").mkdir()
    monkeypatch.chdir(tmp_path)
    found = ["", str(tmp_path / "packages"), str(tmp_path / "missing"), *sys.path, str(tmp_path / "packages")]
    monkeypatch.setattr(sys, "path", found)
    places = python_path().split(":")
    assert places[:2] == [str(tmp_path), str(tmp_path / "packages")]
    assert str(tmp_path / "missing") not in places
    assert len(places) == len(set(places))
    assert not [place for place in places if place.endswith(("site-packages", "lib-dynload"))]
    assert cluster_conf("spark://one:7077") == {"spark.executorEnv.PYTHONPATH": python_path()}
