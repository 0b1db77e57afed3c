"""Two drivers on one checkpoint, and drivers and JVMs that are killed: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .checkpoint_files import versions_and_ids
from .driver import counts
from .harness import Feed, Lab, wait_until
from .months import usage

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

START_TIMEOUT_S = 90
EXIT_TIMEOUT_S = 90


class Driver:
    """Another process with a JVM of its own, which holds one batch of the test's query inside the sink."""

    def __init__(self, folder: Path, held_batch: int) -> None:
        self._talk = folder / "talk"
        self._talk.mkdir()
        command = [sys.executable, "-m", "semantics.driver", str(folder), str(held_batch)]
        with (folder / "driver.log").open("w") as log:
            self._process = subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdout=log, stderr=log)
        self.wait_for("reached", START_TIMEOUT_S)
        self._jvm_pid = int((self._talk / "jvm_pid").read_text())

    def wait_for(self, file: str, timeout_s: float = EXIT_TIMEOUT_S) -> str:
        wait_until(lambda: (self._talk / file).exists() or self._process.poll() is not None, timeout_s)
        return (self._talk / file).read_text()

    def release(self) -> None:
        """Let the sink return."""
        (self._talk / "go").touch()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def kill_jvm(self) -> None:
        os.kill(self._jvm_pid, signal.SIGKILL)

    def jvm_is_alive(self) -> bool:
        """A process that is dead but not yet reaped counts as dead."""
        try:
            status = Path(f"/proc/{self._jvm_pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return status.rpartition(")")[2].split()[0] not in "ZX"

    def close(self) -> None:
        self.kill()
        if self.jvm_is_alive():
            self.kill_jvm()


@pytest.fixture
def driver(feed: Feed, tmp_path: Path) -> Iterator[Driver]:
    """Has committed batch 0 of four, and has written the state of batch 1."""
    for customer in ("emma", "omar", "emma", "lena"):
        feed.add(usage(customer, 1, 0))
    driver = Driver(tmp_path, held_batch=1)
    yield driver
    driver.close()


def test_a_second_driver_may_start_and_the_first_one_then_fails_at_its_commit(
    lab: Lab, feed: Feed, driver: Driver
) -> None:
    """Spark has no lease: a takeover finds nothing that stops it, and the old driver learns of it only when its
    sink has already run. Format v2 keeps the state right, because commits name the successor's files; the sink
    needs an epoch.
    """
    taken_over = lab.run(counts(feed), mode="update")
    driver.release()
    error, message = json.loads(driver.wait_for("outcome"))
    feed.add(usage("omar", 1, 0))
    after = lab.run(counts(feed), mode="update")

    assert sorted(taken_over) == [1, 2, 3]
    assert error == "StreamingQueryException"
    assert "CONCURRENT_STREAM_LOG_UPDATE" in message
    assert [(row.customer, row["count"]) for row in after[4]] == [("omar", 2)]
    assert _counts_in_state(lab) == {"emma": 2, "omar": 2, "lena": 1}
    for partition in (0, 1):
        files = versions_and_ids(lab.checkpoint.state_folder(partition=partition), "changelog")
        assert len([version for version, _ in files if version == 2]) == 2  # the attempts of both drivers at batch 1
        assert all((batch + 1, lab.checkpoint.state_ids(batch)[partition][0]) in files for batch in range(5))


def test_the_jvm_exits_within_seconds_when_its_driver_is_killed(lab: Lab, feed: Feed, driver: Driver) -> None:
    """A supervisor that finds the Python process dead may start a successor: the JVM sees the end of its
    standard input and exits by itself (seen: 0.7 s), without committing the batch that the sink had in its
    hands.
    """
    driver.kill()
    wait_until(lambda: not driver.jvm_is_alive(), EXIT_TIMEOUT_S)

    assert lab.checkpoint.committed() == [0]
    assert sorted(lab.run(counts(feed), mode="update")) == [1, 2, 3]
    assert _counts_in_state(lab) == {"emma": 2, "omar": 1, "lena": 1}


def test_a_driver_whose_jvm_is_killed_gets_a_connection_error_and_its_sink_runs_on(
    lab: Lab, feed: Feed, driver: Driver
) -> None:
    """The runner must take such an error for the end of the engine: it is no StreamingQueryException. The
    sink's thread notices nothing and would still write, after a successor has started; so sinks check the epoch
    in their transaction.
    """
    driver.kill_jvm()
    error, _ = json.loads(driver.wait_for("outcome"))
    lab.run(counts(feed), mode="update")
    driver.release()

    assert error in {"ConnectionRefusedError", "ConnectionResetError", "Py4JNetworkError", "Py4JError"}
    assert driver.wait_for("sink_returned") == ""
    assert lab.checkpoint.committed() == [0, 1, 2, 3]


def _counts_in_state(lab: Lab) -> dict[str, int]:
    return {row.key.customer: row.value["count"] for row in lab.state().collect()}
