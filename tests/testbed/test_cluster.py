"""A local Spark cluster: a query on it outlives a master and a worker, and what is wrong with it is told in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from stateside.cli import main
from stateside.core.errors import SettingInvalid
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.leadership import standing
from stateside.testbed.cluster import Cluster
from stateside.testbed.component import members
from stateside.testing import append, rows
from tests.docs.commands import command as page_command
from tests.sizes import FULL, in_full
from tests.waiting import wait_until

SMALL = ["--spark", "spark.executor.memory=512m", "--partitions", "2"]

# Its function is found by executors only if they know where the driver found the module.
SHOP = """
import stateside
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

app = stateside.App("shop", fields="amount long")

def doubled(amount):
    return 2 * amount

@app.view(key=["entity"])
def spending(events):
    twice = events.withColumn("twice", F.udf(doubled, LongType())("amount"))
    return twice.groupBy("entity").agg(F.sum("twice").alias("total"), F.count("*").alias("orders"))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two masters, two workers; gone without a trace afterwards."""
    running = Cluster(tmp_path_factory.mktemp("cluster"), worker_memory="512m")
    with running:
        pids = [running.pid(name) for name in running.parts]
        yield running
        pids += [running.pid(name) for name in running.parts]
    assert [pid for pid in pids if members(pid)] == []


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def command(master: str, *more: str) -> list[str]:
    """The command of docs/cluster.md that runs an application on a cluster."""
    shown = page_command("cluster.md", "shop:app", dir="data", master=master)
    return [sys.executable, "-m", "stateside", *shown, *SMALL, *more]


def buy(layout: Layout, first: int, count: int) -> None:
    append(
        layout, [Event(f"o{n}", f"customer-{n % 5}", "order", n, {"amount": n}) for n in range(first, first + count)]
    )


def totals(layout: Layout) -> dict[str, tuple[int, int]]:
    if not (layout.view("spending").checkpoint / "commits" / "0").exists():
        return {}
    return {row["entity"]: (row["total"], row["orders"]) for row in rows(layout, "spending")}


def expected(count: int) -> dict[str, tuple[int, int]]:
    whose = {f"customer-{n}": range(n, count, 5) for n in range(5)}
    return {name: (2 * sum(numbers), len(numbers)) for name, numbers in whose.items()}


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(600)
@in_full("tests/e2e/test_chaos.py kills a master and a worker")
def test_a_query_goes_on_when_the_leading_master_and_a_worker_are_killed(cluster: Cluster, shop: Path) -> None:
    layout, log = Layout(shop / "data"), shop / "run.log"
    buy(layout, 0, 100)
    with log.open("wb") as output:
        process = subprocess.Popen(command(cluster.address), cwd=shop, stderr=output)
    try:
        wait_until(lambda: totals(layout) == expected(100) or process.poll() is not None, log.read_text)
        assert process.poll() is None, log.read_text()
        assert cluster.cores_taken() == 2

        killed = cluster.await_leader()
        cluster.kill(killed)
        buy(layout, 100, 100)
        wait_until(lambda: totals(layout) == expected(200), log.read_text)  # batches need no master
        assert cluster.await_leader() != killed
        wait_until(lambda: cluster.workers_known() == 2)

        cluster.kill("worker-1")
        buy(layout, 200, 100)
        wait_until(lambda: totals(layout) == expected(300), log.read_text)
        assert cluster.add_worker() == "worker-3"
        wait_until(lambda: cluster.cores_taken() == 2)  # it joins the query that runs
        cluster.remove_worker("worker-2")
        buy(layout, 300, 100)
        wait_until(lambda: totals(layout) == expected(400), log.read_text)

        cluster.restart(killed)
        assert cluster.leader() != killed  # it stands by
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(600)
@in_full("take-over is tested without a cluster")
def test_a_standby_takes_over_on_a_cluster(cluster: Cluster, shop: Path) -> None:
    """The leader holds all executors until it ends: the standby starts its driver only then."""
    layout = Layout(shop / "data")
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in ("one", "two"):
            flags = ["--standby", "--identity", name, "--lease-s", "3", "--standby-scope", "machine"]
            with (shop / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(command(cluster.address, *flags), cwd=shop, stderr=log)
            wait_until(lambda: _stand(layout)[0] == "one", (shop / "one.log").read_text)
        buy(layout, 0, 100)
        wait_until(lambda: totals(layout) == expected(100), (shop / "one.log").read_text)
        wait_until(lambda: _stand(layout) == ("one", ["two"]), (shop / "two.log").read_text)
        running["one"].kill()
        buy(layout, 100, 100)
        wait_until(lambda: _stand(layout)[0] == "two", (shop / "two.log").read_text)
        wait_until(lambda: totals(layout) == expected(200), (shop / "two.log").read_text)
        running["two"].send_signal(signal.SIGTERM)
        assert running["two"].wait(120) == 0, (shop / "two.log").read_text()
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def _stand(layout: Layout) -> tuple[str | None, list[str]]:
    """Who leads, and who stands by."""
    told = standing(layout.root, 0) or {"leader": None, "standbys": []}
    return told["leader"] and told["leader"]["identity"], [standby["identity"] for standby in told["standbys"]]


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(600)
@in_full("a worker without memory for an executor is refused when it starts")
def test_a_cluster_whose_workers_have_no_room_for_an_executor_is_told_in_time(cluster: Cluster, shop: Path) -> None:
    large = ["--spark", "spark.executor.memory=600g", "--cluster-s-max", "3"]
    done = subprocess.run(command(cluster.address, *large), cwd=shop, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "has given no executor within 3 s: each needs 600g of a worker's memory" in done.stderr
    assert "--spark spark.executor.memory=512m" in done.stderr
    assert "Traceback" not in done.stderr
    jvm = int(Layout(shop / "data").driver_lock.read_text().split()[1])
    assert not Path(f"/proc/{jvm}").exists()


@pytest.mark.e2e
@pytest.mark.spark
@in_full("takes a minute; where nobody listens at all is tested in test_master")
def test_an_address_where_somebody_else_listens_is_told_in_time(cluster: Cluster, shop: Path) -> None:
    page = cluster._masters["master-1"][1]
    done = subprocess.run(command(f"spark://127.0.0.1:{page}"), cwd=shop, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert f"No master at spark://127.0.0.1:{page} took this driver" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.e2e
@pytest.mark.spark
def test_people_start_one_and_end_it_with_ctrl_c(tmp_path: Path) -> None:
    fewer = {} if FULL else {"masters": 1, "workers": 1}  # the page's cluster has two, and ZooKeeper
    shown = page_command("cluster.md", "dev", "cluster", **fewer)
    started = [sys.executable, "-m", "stateside", *shown]
    process = subprocess.Popen(
        [*started, "--folder", str(tmp_path / "cluster")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and process.stderr
        assert "--master spark://127.0.0.1:" in process.stdout.readline()
        told = [process.stderr.readline() for _ in range(4)]
        pids = [int(line.split("process ")[1].split(",")[0]) for line in told[1:3]]
        assert [line.split(":")[0] for line in told[1:3]] == ["master-1", "worker-1"]
        assert told[3] == "master-1 leads. Ctrl-C ends it.\n"
        os.kill(pids[1], signal.SIGKILL)
        assert process.stderr.readline().startswith("worker-1 has ended")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert [pid for pid in pids if members(pid)] == []
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("memory", ["0", "100m", "1", "1t", "-1g", "lots", ""])
def test_a_worker_without_memory_for_an_executor_is_refused(memory: str, tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match="has no room for an executor"):
        Cluster(tmp_path, worker_memory=memory)
    done = CliRunner().invoke(main, ["dev", "cluster", "--memory", memory, "--folder", str(tmp_path)])
    assert done.exit_code == 1
    assert "Give it 512m or more, like 1g." in done.output


def test_an_address_names_all_masters_and_a_part_that_is_none_is_told(tmp_path: Path) -> None:
    two = Cluster(tmp_path, masters=2)
    assert two.address.startswith("spark://127.0.0.1:")
    assert two.address.count(":") == 3
    with pytest.raises(SettingInvalid, match="The cluster has no part 'master-9'"):
        two.kill("master-9")
    two.stop()  # nothing runs yet
