"""The demo, run as people run it: whole processes, killed with SIGKILL in the middle, and every sum even in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.core.layout import Layout
from stateside.journal.backends.kafka.topic_folder import topic_of
from stateside.testbed.component import members
from tests.docs.commands import command as page_command
from tests.journal.kafka.topics import add_partitions
from tests.poisoned import poisoned
from tests.sizes import in_full

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

SETTINGS = ["--customers", "60"]
WAIT_S = 240.0
LEAVING = [("worker-1", 4), ("worker-2", 8)]  # which worker, after which batch


@pytest.fixture
def report_file(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


@pytest.fixture
def demos() -> Iterator[list[subprocess.Popen[str]]]:
    """The demos that a test has started; whatever happens, none outlives it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for demo in started:
        end(demo)


def end(process: subprocess.Popen[str]) -> None:
    """In order if it can be had, and at once if not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start(seconds: int, *arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.Popen[str]:
    stateside = str(Path(sys.executable).with_name("stateside"))
    command = [stateside, "demo", "--seconds", str(seconds), *SETTINGS, *arguments]
    return subprocess.Popen(
        command, env={**os.environ, **environ}, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(demo: subprocess.Popen[str], report_file: Path, seconds_max: float = 200) -> dict[str, Any]:
    output, _ = demo.communicate(timeout=seconds_max)
    assert demo.returncode == 0, output
    report: dict[str, Any] = json.loads(report_file.read_text())
    assert report["ok"], report["problems"]
    assert "Everything adds up." in output
    return report


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the demo got nowhere"
        time.sleep(0.05)


def wait_for_batch(layout: Layout, batch: int) -> None:
    wait_for(lambda: (layout.view("bill").checkpoint / "commits" / str(batch)).exists())


def driver_pids(layout: Layout) -> list[int]:
    """The driver's Python process and its JVM."""
    return [int(pid) for pid in layout.driver_lock.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("victim", ["jvm", pytest.param("python", marks=in_full("the JVM's death shows it"))])
def test_spark_killed_in_the_middle_is_started_again_and_every_sum_is_even(
    tmp_path: Path, report_file: Path, demos: list[subprocess.Popen[str]], victim: str
) -> None:
    layout = Layout(tmp_path / "demo")
    here = poisoned(tmp_path / "here")  # a demo imports nothing from the current folder
    demo = start(12, "--dir", str(layout.root), "--json", str(report_file), cwd=here)
    demos.append(demo)
    wait_for_batch(layout, 4)
    python, jvm = driver_pids(layout)
    os.kill(jvm if victim == "jvm" else python, signal.SIGKILL)
    report = finish(demo, report_file)
    assert report["pipeline"]["restarts"] == 1
    assert_even(report)
    assert not any(alive(pid) for pid in [python, jvm, *driver_pids(layout)])


def assert_even(report: dict[str, Any]) -> None:
    assert report["requests"]["failed"] == 0, "bills must be answered while the job is down"
    assert report["documents"]["corrected"] == report["expected"]["late"]["customers_periods"] > 0
    assert report["dead_letters"] == report["expected"]["dead_letters"]
    assert report["events"]["duplicates"] == report["expected"]["events"]["duplicate"] > 0
    assert report["sums"]["accounts"] == 60 * 4
    assert set(report["laws"].values()) == {0}


def workers_leave_and_join(layout: Layout) -> None:
    """Under load, one after the other: each is killed with its executor, and the demo starts another in its place."""
    for name, batch in LEAVING:
        wait_for_batch(layout, batch)
        (worker,) = processes_with("deploy.worker.Worker", str(layout.root / "cluster" / name))
        for pid in members(worker):
            os.kill(pid, signal.SIGKILL)


def processes_with(*texts: str) -> list[int]:
    """The processes whose command line has all these texts in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            line = (process / "cmdline").read_bytes().decode(errors="replace")
            if all(text in line for text in texts) and int(process.name) != os.getpid():
                found.append(int(process.name))
    return found


@pytest.mark.network
@pytest.mark.timeout(900)
@in_full("`test_chaos` has Kafka, and the test above kills the demo's own Spark")
def test_on_kafka_with_spark_killed_in_the_middle_every_sum_is_even(
    tmp_path: Path, report_file: Path, demos: list[subprocess.Popen[str]]
) -> None:
    layout = Layout(tmp_path / "demo")
    here = poisoned(tmp_path / "here")  # a demo imports nothing from the current folder
    shown = [word for word in page_command("cluster.md", "demo")[1:] if word != "--cluster"]
    demo = start(12, "--dir", str(layout.root), "--json", str(report_file), *shown, cwd=here)
    demos.append(demo)
    wait_for_batch(layout, 1)
    consumer = start_consumer(layout, tmp_path / "consumed.jsonl")
    demos.append(consumer)
    wait_for_batch(layout, 4)
    python, jvm = driver_pids(layout)
    os.kill(jvm, signal.SIGKILL)
    report = finish(demo, report_file, seconds_max=400)
    end(consumer)
    assert_consumed(tmp_path / "consumed.jsonl", report["events"]["events"])
    assert report["pipeline"]["restarts"] == 1
    assert_even(report)
    assert not list(layout.journal.glob("*.segment")), "the events are on Kafka alone"
    assert not any(alive(pid) for pid in [python, jvm, *driver_pids(layout)])
    assert not processes_with(str(layout.root)), "nothing is left running"


@pytest.mark.network
@pytest.mark.timeout(900)
@in_full("`test_chaos` has Kafka and a cluster whose worker is killed, and the first test is the demo's own")
def test_on_kafka_and_a_cluster_every_sum_is_even_as_well(
    tmp_path: Path, report_file: Path, demos: list[subprocess.Popen[str]]
) -> None:
    layout = Layout(tmp_path / "demo")
    shown = page_command("cluster.md", "demo")[1:]
    demo = start(20, "--dir", str(layout.root), "--json", str(report_file), *shown)
    demos.append(demo)
    workers_leave_and_join(layout)
    report = finish(demo, report_file, seconds_max=400)
    assert report["cluster"]["restarts"] >= len(LEAVING), "one may end by itself, too"
    assert report["pipeline"]["restarts"] == 0, "the loss of a worker is Spark's to mend"
    assert_even(report)
    assert not processes_with(str(layout.root)), "nothing is left running"


def start_consumer(layout: Layout, target: Path) -> subprocess.Popen[str]:
    """Follows the stream beside the application, as others do who react to its events."""
    command = [sys.executable, "-m", "stateside", "journal", "read", "--dir", str(layout.root), "--follow", "--json"]
    with target.open("w") as file:
        return subprocess.Popen(command, stdout=file, text=True)


def assert_consumed(target: Path, events: int) -> None:
    """It has got every event once, and each entity's in order. The broker may have ended in the middle of a line."""
    found = [json.loads(line) for line in target.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert len(found) == events
    sequences: dict[str, list[int]] = defaultdict(list)
    for event in found:
        sequences[event["entity"]].append(event["sequence"])
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in sequences.values())


@pytest.mark.network
@pytest.mark.timeout(900)
@in_full("readers and writers refuse such a topic in tests/journal/kafka/test_placed.py")
def test_partitions_that_are_added_to_the_topic_in_the_middle_end_the_demo_and_are_told(
    tmp_path: Path, demos: list[subprocess.Popen[str]]
) -> None:
    layout = Layout(tmp_path / "demo")
    demo = start(60, "--dir", str(layout.root), "--journal", "kafka")
    demos.append(demo)
    wait_for_batch(layout, 3)
    add_partitions(topic_of(layout.journal), 2)
    output, _ = demo.communicate(timeout=200)
    assert demo.returncode == 1, output
    assert "This topic has several partitions" in output
    assert "copy its events into a new topic of one partition" in output
    assert "Traceback" not in output


@pytest.mark.timeout(1_800)
@in_full("one kill in the middle is shown by the first test")
def test_spark_killed_at_twenty_random_moments_changes_nothing_of_what_comes_out(
    tmp_path: Path, report_file: Path, demos: list[subprocess.Popen[str]]
) -> None:
    """Two thousand customers; twenty drivers, each at a random moment after a batch: its JVM or its Python."""
    chance, killed, customers = random.Random(6), list[list[int]](), 2_000
    layout = Layout(tmp_path / "demo")
    settings = ["--customers", str(customers), "--dir", str(layout.root), "--json", str(report_file)]
    demo = start(900, *settings)  # long enough for twenty, on a busy machine too
    demos.append(demo)
    commits = layout.view("bill").checkpoint / "commits"

    def a_new_driver_works() -> bool:
        if demo.poll() is not None:
            return True
        batches = {int(path.name) for path in commits.glob("[0-9]*")}
        return bool(batches - known) and driver_pids(layout) not in killed

    while len(killed) < 20 and demo.poll() is None:
        known = {int(path.name) for path in commits.glob("[0-9]*")}
        wait_for(a_new_driver_works)
        time.sleep(chance.uniform(0, 3))
        if demo.poll() is None:
            killed.append(driver_pids(layout))
            os.kill(chance.choice(killed[-1]), signal.SIGKILL)
    report = finish(demo, report_file, seconds_max=1_200)
    assert report["pipeline"]["restarts"] == len(killed) == 20
    assert report["requests"]["failed"] == 0
    assert report["sums"]["accounts"] == customers * 4
    assert report["documents"]["invoices"] == customers * 3
    assert set(report["laws"].values()) == {0}


@in_full("that Spark may be killed is shown by the first test")
def test_a_demo_killed_whole_goes_on_in_its_folder_and_every_sum_is_even(
    tmp_path: Path, report_file: Path, demos: list[subprocess.Popen[str]]
) -> None:
    layout = Layout(tmp_path / "demo")
    first = start(30, "--dir", str(layout.root))
    demos.append(first)
    wait_for_batch(layout, 4)
    for pid in (driver_pids(layout)[1], first.pid):
        os.kill(pid, signal.SIGKILL)
    first.wait(60)
    second = start(8, "--dir", str(layout.root), "--json", str(report_file))
    demos.append(second)
    report = finish(second, report_file)
    assert report["documents"]["invoices"] == 60 * 3
    assert report["sums"]["found_micros"] == 60 * 4 * report["sums"]["even_micros"]


def test_ctrl_c_thrice_stops_everything_and_leaves_nothing_behind(
    tmp_path: Path, report_file: Path, demos: list[subprocess.Popen[str]]
) -> None:
    report_file.write_text("of an earlier run")
    demo = start(300, "--json", str(report_file), TMPDIR=str(tmp_path))
    demos.append(demo)
    wait_for(lambda: any(tmp_path.glob("stateside-demo-*")))
    (folder,) = tmp_path.glob("stateside-demo-*")
    wait_for_batch(Layout(folder), 1)
    pids = driver_pids(Layout(folder))
    for _ in range(3):
        demo.send_signal(signal.SIGINT)
        time.sleep(0.3)
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert output.splitlines()[0].endswith(f"Everything is in {folder} until the end.")
    assert output.count("Stopping, a moment …") == 1
    assert output.splitlines()[-1] == "Stopped."
    assert "Traceback" not in output
    assert not any(alive(pid) for pid in pids)
    assert not folder.exists()
    assert not report_file.exists()


@in_full("Ctrl-C is tried in the middle of a demo")
def test_ctrl_c_after_the_report_of_a_kept_demo_is_its_normal_end(
    tmp_path: Path, report_file: Path, demos: list[subprocess.Popen[str]]
) -> None:
    demo = start(6, "--keep", "--json", str(report_file), TMPDIR=str(tmp_path))
    demos.append(demo)
    assert demo.stdout is not None
    lines: list[str] = []
    for line in demo.stdout:
        lines.append(line)
        if line.startswith("Serving "):
            break
    assert json.loads(report_file.read_text())["ok"], lines
    url = lines[-1].split()[1]
    assert httpx.get(url).status_code == 200
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 0, output
    assert list(tmp_path.glob("stateside-demo-*")) == []


def test_a_folder_of_another_demo_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text('{"customers": 7}')
    demo = start(10, "--dir", str(tmp_path))
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 1
    assert output.startswith("Error: This folder has a demo with")
    assert "Traceback" not in output
