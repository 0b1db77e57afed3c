"""A running application is changed: views are folded again beside the old ones, and readers switch at one moment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.processes import EXIT_FINAL, Child, free_port
from stateside.journal import Event, JournalWriter, open_journal
from stateside.pipeline.declaration import state_partitions
from stateside.testing import rows as rows_of
from stateside.views.heartbeat import Heartbeat
from tests.docs.commands import commands
from tests.serving.conftest import wait_until_it_answers
from tests.sizes import in_full, sized
from tests.waiting import WAIT_S_MAX, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(900)]

CODE = """
import stateside
from pyspark.sql import functions as F

app = stateside.App("shop", fields="amount long")

@app.view(key=["entity"], name="{name}"{more})
def total(events):
    return events.groupBy("entity").agg(F.sum("amount").alias("total"){columns})
"""
OLD: dict[str, str] = {"name": "total", "columns": "", "more": ""}
NEW = OLD | {"columns": ', F.count("*").alias("orders")'}
OTHER = """
@app.view(key=["type"])
def types(events):
    return events.groupBy("type").agg(F.count("*").alias("events"))
"""
KILLED = """
import os, signal, sys
from pathlib import Path
from stateside.pipeline.app import load
from stateside.pipeline.apply import apply
from stateside.pipeline.foreground import LinesForPeople, gather_settings

sys.path.insert(0, "")
app = load(sys.argv[1])
step = int(sys.argv[3])
apply(
    app, Path(sys.argv[2]), gather_settings(app, None, {}), LinesForPeople(sys.stderr),
    on_step=lambda at: os.kill(os.getpid(), signal.SIGKILL) if at == step else None,
)
"""
KILLED_RESCALE = """
import os, signal, sys, threading, time
from pathlib import Path
from stateside.pipeline.rescale import rescale

folder = Path(sys.argv[1])
planned = folder / "views" / "total" / "generations" / "2" / "checkpoint" / "offsets"

def kill_once_planned(known):
    while set(os.listdir(planned)) <= known:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

def on_step(step):
    if step == 3:
        threading.Thread(target=kill_once_planned, args=[set(os.listdir(planned))]).start()

rescale(folder, 16, on_step=on_step)
"""
CHECK, APPLY, REFOLD, ROLLBACK, DROP, RESCALE = range(6)  # the commands on docs/change.md
ENTITIES = 20


class Shop:
    """A folder, and versions of the code that runs in it."""

    def __init__(self, folder: Path) -> None:
        self.layout, self.code = Layout(folder / "app"), folder / "code"
        self.code.mkdir(parents=True)
        self.events: list[Event] = []
        self._started: list[subprocess.Popen[str]] = []

    def version(self, name: str, parts: dict[str, str], more: str = "") -> str:
        (self.code / f"{name}.py").write_text(CODE.format(**parts) + more)
        return f"{name}:app"

    def append(self, count: int) -> None:
        with JournalWriter(self.layout.journal) as writer:
            for _ in range(count):
                number = len(self.events)
                event = Event(f"o{number}", f"e{number % ENTITIES}", f"t{number % 3}", 0, {"amount": number})
                self.events.append(event)
            writer.append(self.events[-count:])

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "stateside", *arguments, "--dir", str(self.layout.root)]
        child = subprocess.Popen(command, cwd=self.code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._started.append(child)
        return child

    def call(self, *arguments: str) -> tuple[int, str]:
        child = self.start(*arguments)
        output = child.communicate(timeout=300)[0]
        return child.returncode, output

    def shown(self, number: int, target: str = "") -> tuple[int, str]:
        """Call a command of the page on changes, by its number there."""
        places = {"shop:app": target, "spending": "total"}
        words = [places.get(word, word) for word in commands("change.md")[number] if word not in ("--dir", "data")]
        return self.call(*words)

    def run_to_end(self, target: str, *views: str) -> None:
        child = self.start("run", target)
        try:
            wait_until(lambda: all(self.has_all(view) for view in views), lambda: f"{child.poll()}")
        finally:
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 0, child.communicate()[0]

    def has_all(self, view: str) -> bool:
        heartbeat = Heartbeat.load(self.layout.view(view).heartbeat)
        return heartbeat is not None and heartbeat.state == "idle" and heartbeat.source_end == self.end()

    def end(self) -> Position:
        return open_journal(self.layout.journal).end()

    def expected(self, position: int | None = None) -> list[dict[str, Any]]:
        """A fold of the events before a position, with plain Python."""
        found: dict[str, list[int]] = defaultdict(list)
        for event in self.events[:position]:
            found[event.entity].append(event.payload["amount"])
        return [{"entity": entity, "total": sum(v), "orders": len(v)} for entity, v in sorted(found.items())]

    def stop(self) -> None:
        for child in self._started:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.stop()


def without(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


@in_full("the next test applies a change; tests/pipeline/test_changed_application.py has refusals")
def test_a_change_is_refused_then_applied_while_nothing_runs_and_taken_back(shop: Shop) -> None:
    old, new = shop.version("old", OLD), shop.version("new", NEW)
    shop.append(300)
    code, said = shop.shown(CHECK, old)
    assert (code, said.split()) == (0, ["total", "new", "300", "events", "to", "fold"]), "it never ran"
    shop.run_to_end(old, "total")

    code, refused = shop.call("run", new)
    assert code == EXIT_FINAL and "needs a backfill" in refused, refused
    code, checked = shop.call("check", new, "--json")
    (told,) = json.loads(checked)
    assert (code, told["view"], told["verdict"], told["events"]) == (1, "total", "needs a backfill", 300)
    assert "its column 'orders' is new; 300 events to fold" in refused and told["why"] in refused
    assert f"stateside apply new:app --dir {shop.layout.root}" in refused

    shop.append(100)
    code, said = shop.shown(APPLY, new)
    assert code == 0 and "generation 2 is served from now on; generation 1 is kept" in said, said
    assert rows_of(shop.layout, "total") == shop.expected()
    shop.append(50)
    code, said = shop.call("apply", old)
    assert code == 0 and "total: 150 events folded" in said, "only what it lacks"
    pointer = shop.layout.pointers()["total"]
    assert (pointer.current.number, [each.number for each in pointer.kept]) == (1, [2])  # type: ignore[union-attr]
    assert rows_of(shop.layout, "total") == without(shop.expected(), "orders")
    assert shop.shown(ROLLBACK)[0] == 0
    assert rows_of(shop.layout, "total") == shop.expected(400), "as of its last batch"
    shop.run_to_end(new, "total")
    assert rows_of(shop.layout, "total") == shop.expected()
    code, said = shop.shown(DROP)
    assert code == 0 and "bytes are free again" in said and shop.layout.pointers()["total"].kept == ()
    assert rows_of(shop.layout, "total") == shop.expected()


@dataclass
class Client:
    """Asks for rows again and again, each time once, at a fixed rate."""

    url: str
    per_s: float = 200.0
    answers: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(timeout=WAIT_S_MAX) as client:
            due_s, number = time.monotonic(), 0
            while not self._ended.is_set():
                due_s, number = due_s + 1 / self.per_s, number + 1
                path = "/v1/views/total/rows" if number % 10 == 0 else f"/v1/views/total/rows/e{number % ENTITIES}"
                try:
                    answer = client.get(self.url + path).raise_for_status().json()
                    self.answers.append((time.time(), answer))
                except httpx.HTTPError as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
                time.sleep(max(0.0, due_s - time.monotonic()))

    def generation(self) -> int:
        return self.answers[-1][1]["stamp"]["generation"] if self.answers else 0


@contextmanager
def producing(shop: Shop) -> Iterator[None]:
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.05):
            shop.append(5)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def serving(shop: Shop, log: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(shop.layout.root), "--port", str(port)]
    child = Child(command, log)
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/v1/views/total/rows/e1", child)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stop()


def check_answers(shop: Shop, client: Client) -> float:
    """No failed or mixed answer, no step back; returns the time of the first answer of the second generation."""
    assert client.failed == []
    last, first_s, rows_at = (0, 0), 0.0, cache(lambda at: {row["entity"]: row for row in shop.expected(at)})
    for time_s, answer in client.answers:
        stamp = answer["stamp"]
        position, generation = Position.parse(stamp["position"]).one(), stamp["generation"]
        assert position >= last[0] and generation >= last[1], (last, stamp)
        last, first_s = (position, generation), first_s or (time_s if generation == 2 else 0.0)
        for row in answer["rows"]:
            expected = rows_at(position)[row["entity"]]
            assert row == (expected if generation == 2 else {n: v for n, v in expected.items() if n != "orders"})
    assert last[1] == 2
    return first_s


def test_readers_of_a_running_job_switch_without_a_failed_or_mixed_answer(shop: Shop, tmp_path: Path) -> None:
    old, new = shop.version("old", OLD), shop.version("new", NEW, OTHER)
    shop.append(1_000)
    job = shop.start("run", old)
    wait_until(lambda: shop.has_all("total"))
    with serving(shop, tmp_path / "serve.log") as url, producing(shop), Client(url) as one, Client(url) as two:
        wait_until(lambda: one.generation() == two.generation() == 1)
        applied = shop.start("apply", new)
        assert job.wait(300) == 0 and "hands over" in job.communicate()[0], applied.poll()
        wait_until(lambda: one.generation() == two.generation() == 2, lambda: str(applied.poll()))
        switched_s = shop.layout.generations.stat().st_mtime
        stood = one.answers[-1][1]["stamp"]["batch"]
        wait_until(lambda: one.answers[-1][1]["stamp"]["batch"] > stood + 2, lambda: "the new job runs")
        wait_until(lambda: httpx.get(f"{url}/v1/views/types/rows/t1").status_code == 200)
    applied.send_signal(signal.SIGTERM)
    assert applied.wait(60) == 0, applied.communicate()[0]
    delays_ms = [1_000 * (check_answers(shop, client) - switched_s) for client in (one, two)]
    asked = len(one.answers) + len(two.answers)
    print(f"{asked} requests, 0 failed, switched after {delays_ms[0]:.0f} and {delays_ms[1]:.0f} ms")
    assert rows_of(shop.layout, "total") == shop.expected(rows_position(shop))


@in_full("the test before has a job without a lease, tests/pipeline/test_leaders.py has leaders")
def test_a_leader_hands_over_to_the_process_that_applies_a_change(shop: Shop) -> None:
    old, new = shop.version("old", OLD), shop.version("new", NEW)
    lease = ("--standby", "--lease-s", "4", "--standby-scope", "machine")
    shop.append(100)
    job = shop.start("run", old, *lease)
    wait_until(lambda: shop.has_all("total"))
    applied = shop.start("apply", new, "--lease-s", "4", "--standby-scope", "machine")
    assert job.wait(120) == 0 and "has handed over" in job.communicate()[0]
    shop.append(10)
    wait_until(lambda: shop.layout.view("total").generation == 2 and shop.has_all("total"))
    applied.send_signal(signal.SIGTERM)
    said = applied.communicate(timeout=60)[0]
    assert applied.returncode == 0 and "leads from epoch 2 on" in said, said
    assert rows_of(shop.layout, "total") == shop.expected()


def rows_position(shop: Shop) -> int:
    from stateside.core.storage import Storage
    from stateside.spark_state.batch_log import Checkpoint

    checkpoint = Checkpoint(Storage.at(shop.layout.view("total").checkpoint))
    return checkpoint.plan(checkpoint.commits()[-1]).position.one()


def test_a_kill_at_any_step_leaves_a_generation_whole_and_the_next_call_goes_on(shop: Shop) -> None:
    old, new = shop.version("old", OLD), shop.version("new", NEW)
    shop.append(500)
    shop.run_to_end(old, "total")
    for step in sized((6, 7), tuple(range(1, 8))):  # not switched yet, switched
        killed = [sys.executable, "-c", KILLED, new, str(shop.layout.root), str(step)]
        ended = subprocess.run(killed, cwd=shop.code, capture_output=True, text=True, timeout=300)
        assert ended.returncode == -signal.SIGKILL, (step, ended.stderr)
        rows = rows_of(shop.layout, "total")
        assert rows == (shop.expected() if step == 7 else without(shop.expected(), "orders")), step
    code, said = shop.shown(REFOLD, new)
    assert code == 0 and "generation 3 is served from now on; generation 2 is kept" in said, said
    shop.append(10)
    shop.run_to_end(new, "total")
    assert rows_of(shop.layout, "total") == shop.expected()


@in_full("a check with a folder plans the same views")
def test_a_check_without_a_folder_plans_every_view(shop: Shop) -> None:
    checked = {}
    for name, wrong in (("right", ""), ("wrong", OTHER.replace('"type"', '"tipe"'))):
        command = [sys.executable, "-m", "stateside", "check", shop.version(name, NEW, wrong)]
        checked[name] = subprocess.run(command, cwd=shop.code, capture_output=True, text=True, timeout=300)
    assert (checked["right"].returncode, checked["right"].stdout.split()) == (0, ["total", "new"])
    assert checked["wrong"].returncode == 1 and "'types' fails" in checked["wrong"].stderr
    assert [path.name for path in shop.code.parent.iterdir()] == ["code"], "nothing is left"


@in_full("tests/pipeline/test_changed_application.py has the verdicts, tests/serving/test_generations.py the switch")
def test_a_renamed_view_keeps_its_state_a_new_one_is_filled_and_a_removed_one_says_so(shop: Shop) -> None:
    old = shop.version("old", OLD, OTHER)
    shop.append(200)
    shop.run_to_end(old, "total", "types")
    third = OTHER.replace("types", "kinds").replace('alias("events")', 'alias("happened")')
    new = shop.version("new", OLD | {"name": "sums"}, third)
    code, said = shop.call("check", new)
    verdicts = {line.split()[0]: line.split()[1] for line in said.splitlines() if line.startswith("  ")}
    assert {name: verdicts[name] for name in ("sums", "kinds", "types")} == {
        "sums": "renamed",
        "kinds": "new",
        "types": "removed",
    }
    assert code == 1 and "stateside apply" in said
    table = [line for line in said.splitlines() if line.startswith("  ") and "stateside" not in line]
    code, said = shop.call("run", new)
    assert code == EXIT_FINAL and "\n".join(table) in said and f"`stateside apply {new} --dir" in said, said
    assert shop.layout.view("sums").root.exists() is False
    code, said = shop.call("apply", new)
    assert code == 0 and "events folded" in said, said
    assert [view.name for view in shop.layout.views()] == ["kinds", "sums", "types"]
    assert rows_of(shop.layout, "sums") == without(shop.expected(), "orders")
    assert [row["happened"] for row in rows_of(shop.layout, "kinds")] == [67, 67, 66]
    heartbeat = Heartbeat.load(shop.layout.view("types").heartbeat)
    assert heartbeat is not None and heartbeat.state == "removed"
    shop.append(10)
    shop.run_to_end(new, "sums", "kinds")
    assert rows_of(shop.layout, "sums") == without(shop.expected(), "orders")


MIGRATED = NEW | {"columns": ', F.count("*").alias("orders"), F.avg("amount").alias("mean")'}
MIGRATION = """
@app.migration("total")
def counted(row):
    number = int(row["entity"][1:])
    orders = len(range(number, {events}, {entities}))
    return {{"orders": orders, "mean": (float(row["total"]), orders)}}
"""


@in_full("tests/pipeline/test_migration.py migrates in one session")
def test_a_state_is_migrated_instead_of_folded_again_and_goes_on(shop: Shop) -> None:
    old = shop.version("old", OLD)
    shop.append(500)
    shop.run_to_end(old, "total")
    new = shop.version("new", MIGRATED, MIGRATION.format(events=500, entities=ENTITIES))
    code, told = shop.call("check", new)
    assert code == 1 and "total  can be migrated   its column 'orders' is new; its column 'mean' is new" in told
    code, told = shop.call("apply", new)
    assert code == 0 and "total: 20 rows carried over" in told and "generation 2 is served from now on" in told, told
    assert "events folded" not in told
    shop.append(300)
    shop.run_to_end(new, "total")
    means = [{**row, "mean": row["total"] / row["orders"]} for row in shop.expected()]
    assert rows_of(shop.layout, "total") == means


@in_full("tests/pipeline/test_migration.py has such functions")
def test_a_migration_that_fails_at_a_row_changes_nothing(shop: Shop) -> None:
    old = shop.version("old", OLD)
    shop.append(100)
    shop.run_to_end(old, "total")
    new = shop.version("new", MIGRATED, MIGRATION.format(events="1 // (number != 7)", entities=ENTITIES))
    code, told = shop.call("apply", new)
    assert code != 0 and "fails at the row ['e7']: ZeroDivisionError" in told and "Traceback" not in told, told
    assert shop.layout.view("total").generation == 1
    shop.run_to_end(old, "total")


@in_full("tests/pipeline/test_rescale.py: a failure leaves the old generation")
def test_a_rescale_killed_while_spark_repartitions_changes_nothing_and_is_repeated(shop: Shop) -> None:
    app = shop.version("app", NEW)
    shop.append(300)
    code, said = shop.call("run", app, "--until-caught-up", "--master", "local[3]")
    assert code == 0 and state_partitions(shop.layout.view("total")) == 3, said
    killed = [sys.executable, "-c", KILLED_RESCALE, str(shop.layout.root)]
    ended = subprocess.run(killed, cwd=shop.code, capture_output=True, text=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert shop.layout.pointers() == {} and rows_of(shop.layout, "total") == shop.expected()
    code, said = shop.shown(RESCALE)
    assert code == 0 and "total: 20 rows in 16 partitions; generation 2 is served from now on" in said, said
    assert rows_of(shop.layout, "total") == shop.expected()
    shop.append(100)
    code, said = shop.call("run", app, "--until-caught-up", "--partitions", "16")
    assert code == 0 and rows_of(shop.layout, "total") == shop.expected(), said
    code, said = shop.call("run", app, "--partitions", "4")
    assert code == EXIT_FINAL and "stateside rescale --dir" in said, said
