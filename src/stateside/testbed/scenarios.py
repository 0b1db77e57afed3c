"""Chaos scenarios: a system and its faults. Each scenario is a cell of the crash matrix."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from stateside.core.errors import RequestInvalid
from stateside.testbed import faults
from stateside.testbed.faults import AWAY_S, Fault, Happening
from stateside.testbed.system import Guarantee, SystemShape

AT_RANDOM = "at-random"
RANDOM_FAULTS = 4

_FILES = SystemShape()
_CLUSTER = SystemShape(cluster=True)
_EVERYTHING = SystemShape(journal="kafka", cluster=True)

DRIVER_KILLED = Fault("driver", "killed", faults.kill_driver, repeats=True)
DRIVER_PAUSED = Fault("driver", "paused", faults.pause_driver, repeats=True)
WORKER_KILLED = Fault("worker", "killed", faults.kill_worker, AWAY_S)
BOTH_WORKERS_KILLED = Fault("both workers", "killed", faults.kill_both_workers, AWAY_S)
MASTER_KILLED = Fault("master", "killed", faults.kill_master, AWAY_S)
REPLICA_KILLED = Fault("replica", "killed", faults.kill_replica, fails_view=False)
BROKER_KILLED = Fault("broker", "killed", faults.kill_broker, AWAY_S, stops_producer=True)
WRITER_KILLED = Fault("journal writer", "killed", faults.kill_writer, fails_view=False)
STORE_AWAY = Fault("invoice store", "away", faults.move_invoice_store, AWAY_S)
CHECKPOINT_AWAY = Fault("checkpoint store", "away", faults.move_checkpoint, AWAY_S)
DISK_FULL = Fault("disk", "full", faults.fill_disk, AWAY_S, stops_producer=True)
SAVEPOINT_RESTORED = Fault("savepoint", "restored", faults.restore_savepoint)
ANY_OF_EVERYTHING = (
    DRIVER_KILLED,
    WORKER_KILLED,
    BOTH_WORKERS_KILLED,
    MASTER_KILLED,
    REPLICA_KILLED,
    BROKER_KILLED,
    WRITER_KILLED,
    STORE_AWAY,
    CHECKPOINT_AWAY,
)


@dataclass(frozen=True, slots=True)
class ChaosScenario:
    """A system of some shape, and its faults, one after the other."""

    name: str
    part: str
    happening: Happening
    shape: SystemShape
    faults: tuple[Fault, ...]

    @property
    def repeats(self) -> bool:
        """Whether a fault forces the repetition of a batch."""
        return any(fault.repeats for fault in self.faults)


def scenario_of(name: str, shape: SystemShape, *faults: Fault) -> ChaosScenario:
    """A scenario named after its first fault."""
    return ChaosScenario(name, faults[0].part, faults[0].happening, shape, faults)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        scenario_of("driver-killed", _FILES, DRIVER_KILLED),
        scenario_of("driver-paused", SystemShape(drivers=("driver-1", "driver-2")), DRIVER_PAUSED),
        scenario_of("worker-killed", _CLUSTER, WORKER_KILLED),
        scenario_of("both-workers-killed", _CLUSTER, BOTH_WORKERS_KILLED),
        scenario_of("master-killed", _CLUSTER, MASTER_KILLED),
        scenario_of("replica-killed", _FILES, REPLICA_KILLED),
        scenario_of("broker-killed", SystemShape(journal="kafka"), BROKER_KILLED),
        scenario_of("writer-killed", _FILES, WRITER_KILLED),
        scenario_of("invoice-store-away", _FILES, STORE_AWAY),
        scenario_of("checkpoint-away", _FILES, CHECKPOINT_AWAY),
        scenario_of("disk-full", SystemShape(small_disk=True), DISK_FULL),
        scenario_of("savepoint-restored", SystemShape(servers=("replica-1",)), SAVEPOINT_RESTORED),
    )
}
NAMES = (*SCENARIOS, AT_RANDOM)


def at_random(seed: int, count: int = RANDOM_FAULTS) -> ChaosScenario:
    """Faults drawn with this seed, on a broker and a cluster: the same seed draws the same faults."""
    drawn = tuple(random.Random(seed).choices(ANY_OF_EVERYTHING, k=count))
    return ChaosScenario(AT_RANDOM, "anything", "at random", _EVERYTHING, drawn)


def described() -> list[str]:
    """A line for each scenario."""
    width = max(map(len, NAMES)) + 2
    lines = [f"{name:{width}}{each.part} {each.happening}, {_shown(each.shape)}" for name, each in SCENARIOS.items()]
    return [*lines, f"{AT_RANDOM:{width}}{RANDOM_FAULTS} of these, drawn by --seed, {_shown(_EVERYTHING)}"]


def _shown(shape: SystemShape) -> str:
    parts = ["a journal on Kafka" if shape.journal == "kafka" else "a journal on files"]
    parts += ["a Spark cluster"] if shape.cluster else []
    parts += ["a standby"] if shape.standby else []
    parts += ["a small disk (as root only)"] if shape.small_disk else []
    return ", ".join(parts)


def chosen(names: Sequence[str], *, all_: bool, seed: int, guarantee: Guarantee) -> Sequence[ChaosScenario]:
    """The requested scenarios; RequestInvalid, with the next step, for an invalid choice."""
    if all_ == bool(names):
        raise RequestInvalid("Name scenarios, or give --all", next_step=f"There are: {', '.join(NAMES)}")
    for name in names:
        _check_known(name)
    found = [_named(name, seed) for name in (dict.fromkeys(names) or NAMES)]
    if guarantee != "exactly-once":
        _check_control(found)
    return found


def _check_known(name: str) -> None:
    if name not in NAMES:
        near = get_close_matches(name, NAMES, 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise RequestInvalid(f"There is no scenario {name!r}", next_step=f"{hint}There are: {', '.join(NAMES)}")


def _named(name: str, seed: int) -> ChaosScenario:
    return at_random(seed) if name == AT_RANDOM else SCENARIOS[name]


def _check_control(scenarios: Sequence[ChaosScenario]) -> None:
    """The control is meaningful only where a batch is certainly repeated; and it runs on files."""
    fitting = [name for name, each in SCENARIOS.items() if each.repeats and each.shape.journal == "files"]
    if any(scenario.name not in fitting for scenario in scenarios):
        raise RequestInvalid(
            "With --guarantee at-least-once a scenario has to repeat a batch, on files, and not all of these do",
            next_step=f"Name some of: {', '.join(fitting)}",
        )
