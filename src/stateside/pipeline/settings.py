"""Settings of a run: one table, filled in from code, then from a file, then from flags.

    App("shop", settings={"profile": "throughput"})          in code
    profile = "throughput"                                   in stateside.toml
    stateside run shop:app --profile throughput              as a flag, which wins

The fields of `RunSettings` are the table: `docs/settings.md`, the flags of `stateside run` and the validation of the
file are generated from it. A *profile* sets other defaults for some settings; explicit values win over the profile.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from stateside.core.errors import SettingInvalid
from stateside.core.positions import Position
from stateside.pipeline.sources import EVENTS_PER_BATCH_MAX

FILE_NAME = "stateside.toml"
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"


def _setting(default: Any, help: str, *, least: float | None = None, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help, "least": least, "choices": choices})


PROFILES: dict[str, dict[str, Any]] = {
    "low-latency": {},
    "throughput": {
        "events_per_batch_max": 5_000_000,
        "batch_interval_ms": 2_000,
        "driver_memory": "2g",
    },
    "large-state": {
        "driver_memory": "4g",
        "spark": {
            f"{_ROCKSDB}.blockCacheSizeMB": "512",
            f"{_ROCKSDB}.boundedMemoryUsage": "true",
            f"{_ROCKSDB}.maxMemoryUsageMB": "2048",
        },
    },
}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run. `stop_at` is not for files: only tests and tools end a run at a position."""

    profile: str = _setting("low-latency", "Sets other defaults for the settings below.", choices=tuple(PROFILES))
    master: str = _setting("local[2]", "Where Spark runs: local[N], or a cluster: spark://one:7077,two:7077.")
    driver_memory: str = _setting("1g", "The heap of Spark's driver.")
    partitions: int = _setting(
        0,
        "Partitions of a new view's state; 0: as many as Spark has cores. `stateside rescale` changes those of others.",
        least=0,
    )
    events_per_batch_max: int = _setting(EVENTS_PER_BATCH_MAX, "A batch takes in at most so many events.", least=1)
    batch_interval_ms: int = _setting(0, "Batches start at least so many milliseconds apart.", least=0)
    batch_pause_ms: int = _setting(
        0,
        "At least so long from the commit of a batch to the next plan; for journals on files and nodes.",
        least=0,
    )
    batch_target_ms: int = _setting(
        0, "Adapts the events of a batch, up to the limit above, so that batches take about so long; 0: fixed.", least=0
    )
    future_s_max: float = _setting(
        3_600.0, "An event dated more seconds beyond its append time is a dead letter; `inf`: none is.", least=0
    )
    batches_kept: int = _setting(7_200, "For so many batches a replica that was away finds what it missed.", least=2)
    savepoint_every_s: float = _setting(0.0, "Takes a savepoint of all views each so many seconds; 0: none.", least=0)
    savepoints_kept: int = _setting(3, "So many of these savepoints are kept, the newest ones.", least=1)
    restarts_max: int = _setting(5, "A view that fails is started again so often before the run ends.", least=0)
    restart_pause_s: float = _setting(1.0, "The pause before the first restart; each further one doubles it.", least=0)
    hold_s_max: float = _setting(float("inf"), "For so long a batch is held while its sink is away.", least=0)
    stop_s_max: float = _setting(10.0, "A stop waits at most so long for the batch that is running.", least=0)
    lease_s_max: float = _setting(30.0, "A start waits at most so long for the last driver to end.", least=0)
    until_caught_up: bool = _setting(False, "End once all views have the events that their sources had at the start.")
    standby: bool = _setting(False, "Lead this folder, or stand by until its leader is gone.")
    take_over: bool = _setting(False, "Ask the leader to hand over between two batches, then lead.")
    cold: bool = _setting(False, "Start Spark only when this run leads: a standby then takes little memory.")
    lease_s: float = _setting(10.0, "A leader that gives no sign of life for so long is replaced.", least=0.2)
    identity: str = _setting("auto", "The name among leader and standbys; `auto` makes it of host and process.")
    standby_scope: str = _setting(
        "shared", "Whether standbys are on several machines, or all on this one.", choices=("shared", "machine")
    )
    cluster_s_max: float = _setting(60.0, "On a cluster a start waits at most so long for an executor.", least=0)
    accept_changes: bool = _setting(False, "Go on with a changed query whose state has the same columns.")
    spark: dict[str, str] = field(default_factory=dict, metadata={"help": "Further settings, by Spark's own names."})
    stop_at: Position | None = None
    given: frozenset[str] = frozenset()  # names set explicitly by any layer

    @classmethod
    def of(cls, *layers: tuple[str, Mapping[str, Any]]) -> RunSettings:
        """Merge these layers, the last one winning; each layer comes with its name, for messages.

        SettingInvalid names the first entry that does not exist or has an impossible value.
        """
        values: dict[str, Any] = {}
        for where, layer in layers:
            checked = {name: _checked(name, value, where) for name, value in layer.items()}
            values = _merged(values, checked)
        given = frozenset(values)
        return cls(**_merged(PROFILES[values.get("profile", cls.profile_default())], values), given=given)

    @classmethod
    def profile_default(cls) -> str:
        return next(iter(PROFILES))

    def profile_sentence(self) -> str | None:
        """The profile of the run, and what it sets: explicit settings are none of the profile's. None if nothing."""
        chosen = PROFILES[self.profile]
        set_ = {name: getattr(self, name) for name in chosen if name != "spark" and name not in self.given}
        set_ |= {name: value for name, value in chosen.get("spark", {}).items() if self.spark.get(name) == value}
        said = ", ".join(f"{name} = {value}" for name, value in set_.items())
        return f"Profile {self.profile}: {said}." if said else None

    @property
    def future_us_max(self) -> int | None:
        """`future_s_max` in microseconds; None for no limit."""
        return None if math.isinf(self.future_s_max) else round(self.future_s_max * 1_000_000)

    def spark_conf(self) -> dict[str, str]:
        from stateside.spark_state.batch_log import SHUFFLE_PARTITIONS  # brings pyarrow, which `--help` has no need of

        return {
            "spark.driver.memory": self.driver_memory,
            **({SHUFFLE_PARTITIONS: str(self.partitions)} if self.partitions else {}),
            "spark.sql.streaming.minBatchesToRetain": str(self.batches_kept),
            **self.spark,
        }


def table() -> Iterator[Field[Any]]:
    """The settings that code, file and flags may set."""
    return (entry for entry in fields(RunSettings) if entry.metadata)


def flag(entry: Field[Any]) -> str:
    return "--" + entry.name.replace("_", "-")


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SettingInvalid(f"There is no file {path}", next_step="Name the settings' file with --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"{path} is no TOML: {error}", next_step="Mend that line, then run again") from error


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    spark = {**below.get("spark", {}), **above.get("spark", {})}
    return {**below, **above} | ({"spark": spark} if spark else {})


def _checked(name: str, value: Any, where: str) -> Any:
    entry = next((entry for entry in table() if entry.name == name), None)
    if entry is None:
        raise _unknown(name, where)
    if name == "spark":
        return _checked_spark(value, where)
    kind = type(entry.default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    least, choices = entry.metadata["least"], entry.metadata["choices"]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _impossible(name, value, where, f"a {_KINDS[kind]}")
    if choices and value not in choices:
        raise _impossible(name, value, where, f"one of {', '.join(choices)}")
    if least is not None and not value >= least:
        raise _impossible(name, value, where, f"{least} or more")
    return value


def _checked_spark(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _impossible("spark", value, where, "a table of Spark's settings")
    for name, given in value.items():
        if isinstance(given, Mapping):
            raise SettingInvalid(
                f"{name!r} {where} is no setting of Spark's, but a table",
                next_step='In TOML a name with dots stands in quotes: "spark.executor.memory" = "2g"',
            )
        if not str(name).startswith("spark."):
            raise SettingInvalid(f"{name!r} {where} is no setting of Spark's", next_step="They begin with `spark.`")
        if not isinstance(given, (str, int, float, bool)):
            raise _impossible(str(name), given, where, "a text or a number")
    return {str(name): _spark_text(given) for name, given in value.items()}


def _spark_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(name: str, where: str) -> SettingInvalid:
    names = [entry.name for entry in table()]
    near = difflib.get_close_matches(name, names, 1)
    advice = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}"
    return SettingInvalid(f"There is no setting {name!r}, which stands {where}", next_step=advice)


def _impossible(name: str, value: Any, where: str, expected: str) -> SettingInvalid:
    return SettingInvalid(f"The setting {name} is {value!r} {where}", next_step=f"It must be {expected}")


_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}
