"""A view that is watched without Spark: its replica is moved, batch by batch, by another process, as in real life."""

from __future__ import annotations

import json
import multiprocessing
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.played_spark import PERIOD_US, PlayedSpark
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.core.storage import Storage
from stateside.replica.bootstrap import NewReplica
from stateside.replica.history import Keep
from stateside.replica.keys import KeyCodec
from stateside.replica.rollup_tables import Rollups, rollups_of
from stateside.replica.store import AppliedBatch, ReplicaWriter
from stateside.views.catalogue import Catalogue
from stateside.views.functions import KnownFunctions

VIEW = "bench"
CODEC = KeyCodec(["long", "timestamp", "string"])
ROLLUPS = (("kind",), ("account",), ())

Key = tuple[int, str]  # account, kind
State = dict[Key, int]  # …and its sum
Changes = Mapping[Key, int | None]


def encoded(changes: Changes) -> list[tuple[bytes, bytes | None]]:
    """These changes as the state has them: a row is a count of one, and the sum."""
    keys = [CODEC.encode([account, PERIOD_US, kind]) for account, kind in changes]
    rows = [None if value is None else struct.pack("<qqq", 0, 1, value) for value in changes.values()]
    return list(zip(keys, rows, strict=True))


def applied(number: int, run: str = "run") -> AppliedBatch:
    return AppliedBatch("played", number, Position.of({"0": 10 * number}), 0, 0, f"{run:_<5}{number:03}")


def laid_out(folder: Path) -> Layout:
    """A folder with the view's catalogue, and of its checkpoint what readers need."""
    layout = Layout(folder)
    PlayedSpark(layout.view(VIEW), rollups=ROLLUPS)
    return layout


class Mover:
    """A process that moves replicas: in one process a replica is open for writing or for reading."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_move, args=(other,), daemon=True)
        self._process.start()

    def apply(self, layout: Layout, number: int, changes: Changes, run: str = "run", keep: Keep | None = None) -> None:
        """Move a view's replica to its next batch, and come back when it is visible."""
        self._do("apply", layout.root, number, encoded(changes), run, keep)

    def load(self, layout: Layout, number: int, state: State, run: str) -> None:
        """Let another environment take the replica's place, as after a rollback: it has no history."""
        self._do("load", layout.root, number, encoded(state), run)

    def forget(self, layout: Layout) -> None:
        """Close a replica."""
        self._do("forget", layout.root)

    def _do(self, *command: Any) -> None:
        self._pipe.send(command)
        answer = self._pipe.recv()
        if answer is not None:
            raise AssertionError(answer)

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _move(pipe: Connection) -> None:
    moved = _Moved()
    while (command := pipe.recv()) is not None:
        name, *arguments = command
        try:
            getattr(moved, name)(*arguments)
            pipe.send(None)
        except Exception as error:
            pipe.send(repr(error))


class _Moved:
    def __init__(self) -> None:
        self._writers: dict[Path, ReplicaWriter] = {}

    def apply(self, root: Path, number: int, changes: list[Any], run: str, keep: Keep | None) -> None:
        self._writer(root, keep).apply(applied(number, run), changes)

    def load(self, root: Path, number: int, rows: list[Any], run: str) -> None:
        writer = self._writer(root)
        new = NewReplica(writer.next_folder(), writer.name(), _rollups(root))
        new.put(sorted(rows))
        new.finish(applied(number, run))
        writer.switch(new.folder)
        writer.keep_rollups(_rollups(root))

    def forget(self, root: Path) -> None:
        writer = self._writers.pop(root, None)
        if writer is not None:
            writer.close()

    def _writer(self, root: Path, keep: Keep | None = None) -> ReplicaWriter:
        if root not in self._writers:
            writer = self._writers[root] = ReplicaWriter(Layout(root).view(VIEW).replica, keep=keep)
            writer.keep_rollups(_rollups(root))
        return self._writers[root]


def _rollups(root: Path) -> Rollups:
    view = Layout(root).view(VIEW)
    return rollups_of(
        Catalogue.load(view.catalogue), Storage.at(str(view.checkpoint)), KnownFunctions(VIEW, view.functions)
    )


@dataclass(frozen=True)
class Told:
    """One event, as a client reads it."""

    kind: str
    data: dict[str, Any]
    id: str | None


def parsed(content: bytes) -> Iterator[Told]:
    """The events in some bytes of a stream, which are whole ones."""
    assert content.endswith(b"\n\n")
    for block in content.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if "event" in fields:
            yield Told(fields["event"], json.loads(fields["data"]), fields.get("id"))


async def events(parts: AsyncIterator[bytes]) -> AsyncIterator[Told]:
    async for part in parts:
        for told in parsed(part):
            yield told


@dataclass
class Follower:
    """A client: what it has after all that it was told, by key; and what it had at each id."""

    key: tuple[str, ...]
    rows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    id: str | None = None
    at: dict[int, dict[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    before: list[tuple[int, dict[tuple[Any, ...], dict[str, Any]]]] = field(default_factory=list)
    _begins: bool = True

    def hear(self, told: Told) -> None:
        """Do what a client does with an event."""
        self.told.append(told)
        match told.kind:
            case "snapshot":
                if self._begins:
                    self.rows = {}
                self.rows |= {self._of(row): row for row in told.data["rows"]}
                self._begins = told.data["last"]
            case "changes":
                if self._begins:
                    self.before.append((told.data["after"], dict(self.rows)))
                self.rows |= {self._of(row): row for row in told.data["changed"]}
                for gone in told.data["removed"]:
                    assert self.rows.pop(self._of(gone), None) is not None, "what is removed was there"
                self._begins = told.data["last"]
            case "reset":
                self.id, self._begins = None, True
        if told.id is not None:
            self.id = told.id
            self.at[int(told.id.split("-")[0])] = dict(self.rows)

    def drop(self) -> None:
        """Keep what is whole: what came of a batch or a snapshot that was not told to its end does not count."""
        self.rows = dict(self.at[int(self.id.split("-")[0])]) if self.id else {}
        self._begins = True

    def _of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)
