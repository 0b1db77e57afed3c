"""The harness that kills sinks. A sink joins with a few lines:

    class TestFiles(SinkSuite):
        case = SinkCase("files", factory, read_back, steps=range(1, 7))

A real child process plays Spark's part without Spark (`child.py`): it plans a batch, hands its rows to the sink, then
commits it, and after a restart goes on at the first batch that is not committed. It is killed with SIGKILL at each
numbered step of the sink's protocol, twice in a row, and at random moments (seeded). Then what the sink's other side
holds is compared with the rows that plain Python makes again from the seed.

`world.address` is for sinks with another side of their own (a server, a broker): override the fixture `address`. Rows
that a sink needs in another shape: give the case `schema` and `rows`.
"""

from __future__ import annotations

import json
import random
import secrets
import subprocess
import sys
import time
from abc import ABC
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from stateside.core.layout import Layout
from stateside.core.storage import write_atomically
from stateside.leadership import ApplicationLease, Gates
from stateside.pipeline.sinks.sink import (
    BatchId,
    Guarantee,
    OnStep,
    Sink,
    SinkContext,
    SinkFactory,
    ignore_step,
    with_guarantee,
)
from tests.sizes import sized

Row = dict[str, Any]
Values = tuple[Any, ...]  # a row as its values, in the order of the schema

VIEW = "killed"
BEFORE, AFTER = 0, 99  # the harness's own steps: the batch is planned; the sink has returned, the commit is yet to come
MOMENTS = sized(short=8, full=30)
OPENING_MS_MAX = 30
SEED = 20260
ROOT = Path(__file__).parents[3]

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


def some_rows(batch: int) -> list[Row]:
    """A batch's rows, the same each time it is asked: up to 12 of them, none in every fifth batch."""
    chance = random.Random(f"{SEED}/{batch}")
    size = 0 if batch % 5 == 4 else chance.randint(1, 12)
    return [{"id": f"{batch}-{n}", "n": chance.randrange(10**9), "at": chance.randrange(10**15)} for n in range(size)]


@dataclass(frozen=True, slots=True)
class World:
    """Where a sink under test lives: an application's folder, and the address of its other side if it has one."""

    layout: Layout
    address: str = ""

    def context(self, schema: pa.Schema) -> SinkContext:
        """What the sink is opened with."""
        return SinkContext(self.layout, VIEW, schema)

    def query_id(self) -> str:
        """The query's id, which Spark draws once and writes into the checkpoint before the first batch."""
        path = self.layout.view(VIEW).checkpoint / "metadata"
        if not path.exists():
            write_atomically(path, json.dumps({"id": secrets.token_hex(8)}).encode(), durable=False)
        return str(json.loads(path.read_bytes())["id"])


@dataclass(frozen=True, slots=True)
class SinkCase:
    """A sink under test.

    `factory` makes it with the harness's `on_step`; `read_back` tells what its other side holds, as values in the order
    of the schema; `steps` are the numbers that it announces; `moment_ms_max` is how late a random kill may come after
    the sink is open (choose some ten batches); `imports` are modules that it would import in each life again.
    """

    name: str
    factory: Callable[[World, OnStep], SinkFactory]
    read_back: Callable[[World], list[Values]]
    steps: Sequence[int]
    schema: pa.Schema = SCHEMA
    rows: Callable[[int], list[Row]] = some_rows
    moment_ms_max: int = 60
    imports: Sequence[str] = ()

    def open(self, world: World, guarantee: Guarantee = "exactly-once", on_step: OnStep = ignore_step) -> Sink:
        """The sink, opened as the runner opens it."""
        sink = self.factory(world, on_step)(world.context(self.schema))
        return with_guarantee(sink, guarantee, world.layout.view(VIEW))

    def table(self, batch: int) -> pa.Table:
        """A batch's rows as Spark hands them over, in an order that differs from attempt to attempt."""
        rows = self.rows(batch)
        random.SystemRandom().shuffle(rows)  # a fork would inherit the state of any other
        return pa.Table.from_pylist(rows, self.schema)

    def expected(self, batches: int) -> list[Values]:
        """What the other side must hold after so many batches."""
        rows = [row for batch in range(batches) for row in self.rows(batch)]
        return [tuple(row.values()) for row in pa.Table.from_pylist(rows, self.schema).to_pylist()]


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the child: which world, and how it ends: at a step, after a while, or by itself before a batch."""

    root: str
    address: str
    guarantee: Guarantee
    until_batch: int = 1_000_000
    kill_at_step: int | None = None
    kill_after_ms: float | None = None
    counted_from_open: bool = False  # the time until it is killed: from when the sink is open, or from the life's start


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found."""

    lost: Counter[Values] = field(default_factory=Counter)
    doubled: Counter[Values] = field(default_factory=Counter)
    strange: Counter[Values] = field(default_factory=Counter)

    @classmethod
    def of(cls, expected: list[Values], found: list[Values]) -> Verdict:
        """Compare as multisets: the order of rows is nobody's promise."""
        wanted, there = Counter(expected), Counter(found)
        extra = there - wanted
        doubled = Counter({row: count for row, count in extra.items() if row in wanted})
        return cls(wanted - there, doubled, extra - doubled)


class Nursery:
    """A process that has imported what a case needs, and forks a child for each of its lives, in milliseconds."""

    def __init__(self, suite: type[SinkSuite]) -> None:
        module = "tests.pipeline.sinks.child"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, suite.__module__, suite.__qualname__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live(self, life: Life) -> int:
        """Let a child live; returns its exit status, negative for a signal."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(asdict(life)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the nursery has died: its standard error says why"
        return int(answer)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()  # its end of input: it exits
        self._process.stdout.close()
        self._process.wait(timeout=60)


@dataclass(frozen=True, slots=True)
class Trial:
    """One world, in which a sink is killed over and over, and judged."""

    case: SinkCase
    world: World
    nursery: Nursery
    guarantee: Guarantee

    def run(self, seed: int = SEED) -> Verdict:
        """Kill it at every step and at random moments, let it end in peace, and compare."""
        for step in [BEFORE, *self.case.steps, AFTER] * sized(1, 2):
            for _ in range(2):  # the second time in the attempt to make good
                self.kill_at(step)
            self.live_in_peace(batches=2)  # so that other steps are hit in other batches
        self.kill_at_moments(seed)
        return self.judge()

    def kill_at(self, step: int) -> None:
        """A life that ends when the step is reached."""
        assert self._live(kill_at_step=step) == -9, f"step {step} was not reached"

    def kill_at_moments(self, seed: int) -> None:
        """Lives that end at random moments."""
        chance = random.Random(seed)
        for _ in range(MOMENTS):
            self.kill_after(chance.uniform(0, self.case.moment_ms_max), counted_from_open=True)

    def kill_after(self, life_ms: float, *, counted_from_open: bool = False) -> None:
        """A life that ends after so long."""
        status = self._live(kill_after_ms=life_ms, counted_from_open=counted_from_open)
        assert status == -9, f"it ended by itself, with status {status}"

    def judge(self) -> Verdict:
        """Let it go on for a few batches more, unharmed; compare the other side with plain Python."""
        self.live_in_peace(batches=3)
        return Verdict.of(self.case.expected(self.committed()), self.case.read_back(self.world))

    def live_in_peace(self, batches: int) -> None:
        """A life that ends by itself, after so many batches."""
        assert self._live(until_batch=self.committed() + batches) == 0

    def committed(self) -> int:
        """How many batches are committed."""
        commits = self.world.layout.view(VIEW).checkpoint / "commits"
        return sum(path.name.isdecimal() for path in commits.iterdir()) if commits.exists() else 0

    def _live(self, **how: Any) -> int:
        life = Life(str(self.world.layout.root), self.world.address, self.guarantee, **how)
        return self.nursery.live(life)


class SinkSuite(ABC):
    """What every sink promises."""

    case: ClassVar[SinkCase]

    @pytest.fixture
    def address(self, layout: Layout) -> str:
        """The address of the sink's other side, which this fixture starts and stops; none by default."""
        return ""

    @pytest.fixture
    def world(self, layout: Layout, address: str) -> World:
        return World(layout, address)

    @pytest.fixture(scope="class")
    @classmethod
    def nursery(cls) -> Iterator[Nursery]:
        with Nursery(cls) as nursery:
            yield nursery

    @pytest.fixture
    def trial(self, world: World, nursery: Nursery) -> Callable[[Guarantee], Trial]:
        return lambda guarantee: Trial(self.case, world, nursery, guarantee)

    @pytest.mark.e2e
    def test_killed_at_every_step_and_at_random_moments_it_neither_loses_nor_doubles_a_row(
        self, trial: Callable[[Guarantee], Trial]
    ) -> None:
        assert trial("exactly-once").run() == Verdict()

    @pytest.mark.e2e
    def test_the_same_run_at_least_once_doubles_and_loses_nothing(self, trial: Callable[[Guarantee], Trial]) -> None:
        verdict = trial("at-least-once").run()
        assert verdict.doubled
        assert not verdict.lost
        assert not verdict.strange

    @pytest.mark.e2e
    def test_the_same_run_at_most_once_loses_and_doubles_nothing(self, trial: Callable[[Guarantee], Trial]) -> None:
        verdict = trial("at-most-once").run()
        assert verdict.lost
        assert not verdict.doubled
        assert not verdict.strange

    def test_a_batch_that_comes_again_changes_nothing_whatever_the_order_of_its_rows(self, world: World) -> None:
        for _ in range(2):
            sink = self.case.open(world)
            for batch in (0, 0, 1, 1, 1):
                sink.write(self.case.table(batch), BatchId(world.query_id(), batch))
        assert Verdict.of(self.case.expected(2), self.case.read_back(world)) == Verdict()

    def test_leaders_one_after_the_other_go_on_with_what_a_run_without_a_lease_began(self, world: World) -> None:
        """Each leader reaches the folder through a gate of its own; the one before has done the same batch last."""
        ApplicationLease(world.layout.root).make()
        gates, through = Gates(world.layout.root), world
        for epoch in range(4):
            if epoch:
                gates.shut_before(epoch)
                through = replace(world, layout=Layout(gates.open(epoch)))
            sink = self.case.open(through)
            for batch in (epoch, epoch + 1):
                sink.write(self.case.table(batch), BatchId(world.query_id(), batch))
        assert Verdict.of(self.case.expected(5), self.case.read_back(world)) == Verdict()

    def test_batches_without_rows_store_nothing(self, world: World) -> None:
        sink = self.case.open(world)
        for batch in range(3):
            sink.write(self.case.schema.empty_table(), BatchId(world.query_id(), batch))
        assert self.case.read_back(world) == []


class FolderSuite(SinkSuite):
    """What sinks promise beside that which have nothing outside of the application's folder."""

    @pytest.mark.e2e
    def test_killed_while_it_is_opened_for_the_first_time_it_is_none_the_worse(
        self, layout: Layout, trial: Callable[[Guarantee], Trial]
    ) -> None:
        chance = random.Random(SEED)
        for number in range(12):
            world = World(Layout(layout.root / f"{number}"))
            born = replace(trial("exactly-once"), world=world)
            born.kill_after(chance.uniform(0, OPENING_MS_MAX))
            assert born.judge() == Verdict()


def write_cost_ms(case: SinkCase, world: World, batches: int = 50) -> float:
    """What a small batch's write costs in the median, in ms: for reports, nothing is asserted of it."""
    sink = case.open(world)
    costs = []
    for batch in range(batches):
        rows = case.table(batch % 4)
        began = time.perf_counter()
        sink.write(rows, BatchId(world.query_id(), batch))
        costs.append(time.perf_counter() - began)
    return sorted(costs)[batches // 2] * 1e3
