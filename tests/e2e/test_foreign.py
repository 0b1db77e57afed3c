"""`stateside serve CHECKPOINT` beside a plain Spark job that knows nothing of it: running, killed, running again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.core.processes import Child, free_port
from stateside.pipeline.java import java_environment
from tests.sizes import sized

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

JOB = Path(__file__).parent / "word_count.py"
WAIT_S_MAX = 120.0
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORES: dict[str, list[str]] = {"Spark's default": [], "RocksDB": [f"{PROVIDER}={ROCKSDB}"]}


class Job:
    """The word count as a process, and what it should have counted."""

    def __init__(self, folder: Path, settings: list[str]) -> None:
        self.incoming, self.checkpoint, self.log = folder / "incoming", folder / "words", folder / "job.log"
        self.incoming.mkdir()
        self._settings, self._files = settings, 0
        self.counted: Counter[str] = Counter()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, str(JOB), str(self.incoming), str(self.checkpoint), *self._settings]
        with self.log.open("ab") as log:
            environ = {**os.environ, **java_environment()}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True)

    def kill(self) -> None:
        """Python and the JVM, all at once."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def say(self, text: str) -> None:
        self.counted.update(text.split())
        hidden = self.incoming / f".{self._files}"
        hidden.write_text(text + "\n")
        hidden.rename(self.incoming / f"{self._files}.txt")
        self._files += 1


@pytest.fixture(params=sized(short=list(STORES)[:1], full=list(STORES)))
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path, STORES[request.param])
    yield started
    started.kill()


@pytest.fixture
def url(job: Job, tmp_path: Path) -> Iterator[str]:
    """The server's address; it waits for the job's checkpoint, with replicas in a folder of its own."""
    port = free_port()
    command = [sys.executable, "-m", "stateside", "serve", str(job.checkpoint), "--wait", "--port", str(port)]
    child = Child([*command, "--dir", str(tmp_path / "replicas")], tmp_path / "server.log")
    yield f"http://127.0.0.1:{port}/v1/views/words/rows"
    child.stop()


def ask(url: str, word: str) -> tuple[int | None, dict[str, Any]]:
    """The count of a word, and the stamp."""
    answer = httpx.get(f"{url}/{word}", timeout=30).raise_for_status().json()
    return next((row["count"] for row in answer["rows"]), None), answer["stamp"]


def wait_until_counted(url: str, job: Job) -> dict[str, Any]:
    """Every word has the count that it should have, in the answers; the newest stamp."""
    deadline, found = time.monotonic() + WAIT_S_MAX, object()
    while time.monotonic() < deadline:
        assert job.process is None or job.process.poll() is None, job.log.read_text()[-2_000:]
        try:
            answers = {word: ask(url, word) for word in job.counted}
        except httpx.HTTPError as error:
            found = repr(error)
        else:
            found = {word: count for word, (count, _) in answers.items()}
            if found == job.counted:
                return max((stamp for _, stamp in answers.values()), key=lambda stamp: stamp["batch"])
        time.sleep(0.2)
    raise AssertionError(f"{found} instead of {job.counted}")


def test_a_plain_word_count_is_served_while_it_runs_after_it_was_killed_and_when_it_runs_again(
    job: Job, url: str
) -> None:
    job.start()
    job.say("to be or not to be")
    first = wait_until_counted(url, job)
    assert (first["view"], first["age_basis"]) == ("words", "commit")
    job.say("that is the question")
    running = wait_until_counted(url, job)
    assert running["batch"] > first["batch"]

    job.kill()
    assert wait_until_counted(url, job)["batch"] == running["batch"]
    ages_ms = []
    for _ in range(3):
        ages_ms.append(ask(url, "be")[1]["age_ms"])
        time.sleep(0.3)
    assert ages_ms[0] < ages_ms[1] < ages_ms[2]
    assert ages_ms[2] - ages_ms[0] >= 500

    job.start()
    job.say("be brief")
    again = wait_until_counted(url, job)
    assert again["batch"] > running["batch"]
