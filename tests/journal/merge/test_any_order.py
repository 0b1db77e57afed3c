"""Any order of appends, moves, takeovers, merges, trims, deaths, torn writes: what is acknowledged is there once."""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stateside.core.errors import EntityElsewhere, JournalFenced
from stateside.core.lease import Held
from stateside.journal import JournalWriter
from stateside.journal.admin import JournalFiles, trim, verify
from stateside.journal.backends.files.segment import DurableEnd, segment_path
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter
from stateside.journal.backends.nodes.log import node_logs
from stateside.journal.backends.nodes.ownership import slot_of
from stateside.journal.receipt import Receipt
from tests.journal.nodes.dying import Killed, after_check, at_call, event, kill
from tests.sizes import examples, sized

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # losses of power are made by hand: no disk is needed
NODES = st.sampled_from(["a", "b", "c"])
ENTITIES = st.sampled_from(["emma", "ben", "zoe", "ada", "max"])
DEATHS = st.tuples(st.sampled_from(["pwrite", "fdatasync"]), st.integers(1, 6))
PAUSES = st.sampled_from(["pwrite", "fdatasync", "fence", "behind the fence"])
CUTS = st.floats(0, 1)


@contextmanager
def dying(function: str, call: int) -> Iterator[list[tuple[str, int]]]:
    """Die at the nth call of a function of `os`; tells what was called for which file before."""
    real = {name: getattr(os, name) for name in ("pwrite", "fdatasync")}
    calls: list[tuple[str, int]] = []

    def recorded(name: str) -> Any:
        def record(handle: int, *arguments: Any) -> Any:
            if [done for done, _ in calls].count(function) + 1 == call and name == function:
                raise Killed
            calls.append((name, handle))
            return real[name](handle, *arguments)

        return record

    with patch.object(os, "pwrite", recorded("pwrite")), patch.object(os, "fdatasync", recorded("fdatasync")):
        yield calls


def tear(log: JournalWriter, calls: list[tuple[str, int]], cut: float, zeros: bool) -> None:
    """What a loss of power does to a frame that was not synced: a part of it is gone, or was never written."""
    mark = DurableEnd.read(log._directory)
    own = [name for name, handle in calls if handle == log._file]
    if mark is None or own[-1:] != ["pwrite"]:
        return
    path = segment_path(log._directory, log._end.segment_offset)
    content = path.read_bytes()
    begin = mark.segment_bytes if mark.segment_offset == log._end.segment_offset else len(content)
    at = begin + round(cut * (len(content) - begin))
    path.write_bytes(content[:at] + (b"\0" * (len(content) - at) if zeros else b""))


class Nodes(RuleBasedStateMachine):
    """Three nodes, five entities, a merger and a reader."""

    @initialize(partitions=st.integers(1, 3), waiting_bytes_max=st.sampled_from([0, 4_000, 1 << 20]))
    def begin(self, partitions: int, waiting_bytes_max: int) -> None:
        self.stack = ExitStack()
        self.folder = Path(self.stack.enter_context(TemporaryDirectory(prefix="stateside-merge-", dir=MEMORY)))
        self.partitions, self.waiting_bytes_max = partitions, waiting_bytes_max
        self.nodes: dict[str, NodeWriter] = {}
        self.fenced: list[NodeWriter] = []
        self.merger: Merger | None = None
        self.acknowledged: dict[str, tuple[str, int]] = {}
        self.receipts: list[tuple[Receipt, str]] = []
        self.unsure: list[tuple[str, list[str]]] = []
        self.tried: set[str] = set()
        self.seen: dict[str, list[str]] = defaultdict(list)
        self.number = 0

    # Nodes

    @rule(name=NODES)
    def open(self, name: str) -> None:
        if name not in self.nodes:
            self.nodes[name] = NodeWriter(self.folder, name, segment_bytes_max=1_500)

    @rule(name=NODES)
    def take_over(self, name: str) -> None:
        if name in self.nodes:
            self.fenced.append(self.nodes.pop(name))
        self.nodes[name] = NodeWriter(self.folder, name, take_over=True, segment_bytes_max=1_500)

    @rule(name=NODES)
    def close(self, name: str) -> None:
        if name in self.nodes:
            self.nodes.pop(name).close()

    @rule(name=NODES, entity=ENTITIES)
    def release(self, name: str, entity: str) -> None:
        if name in self.nodes:
            self.nodes[name].release([slot_of(entity)])

    @rule(name=NODES, entity=ENTITIES, count=st.integers(1, 3))
    def append(self, name: str, entity: str, count: int) -> None:
        if name in self.nodes:
            ids = self._new_ids(count)
            try:
                self._append(self.nodes[name], entity, ids)
            except EntityElsewhere:
                self.tried.difference_update(ids)

    @rule(name=NODES, entity=ENTITIES, count=st.integers(1, 3), death=DEATHS, cut=CUTS, zeros=st.booleans())
    def die_appending(
        self, name: str, entity: str, count: int, death: tuple[str, int], cut: float, zeros: bool
    ) -> None:
        if name not in self.nodes:
            return
        node, ids = self.nodes[name], self._new_ids(count)
        with dying(*death) as calls:
            try:
                self._append(node, entity, ids)
            except EntityElsewhere:
                self.tried.difference_update(ids)
            except Killed:
                self.unsure.append((entity, ids))
                kill(self.nodes.pop(name))
                tear(node._log, calls, cut, zeros)

    @rule(name=NODES, entity=ENTITIES, pause=PAUSES, call=st.integers(1, 3), count=st.integers(0, 2))
    def be_taken_over_from_while_appending(self, name: str, entity: str, pause: str, call: int, count: int) -> None:
        if name not in self.nodes:
            return
        paused, ids, later = self.nodes[name], self._new_ids(2), self._new_ids(count)

        def succeed() -> None:
            self.take_over(name)
            if later:
                self._append_if_here(self.nodes[name], entity, later)

        owner: Any = Held if pause == "fence" else os
        pausing = after_check(call, succeed) if pause == "behind the fence" else None
        with pausing or at_call("check" if pause == "fence" else pause, call, succeed, owner):
            try:
                self._append(paused, entity, ids)
            except EntityElsewhere:
                self.tried.difference_update(ids)
            except JournalFenced:
                self.unsure.append((entity, ids))

    @precondition(lambda self: self.fenced)
    @rule(entity=ENTITIES)
    def append_fenced(self, entity: str) -> None:
        for node in self.fenced:
            with pytest.raises(JournalFenced):
                node.append_to(entity, [event("fenced", entity)])
            with pytest.raises(JournalFenced):
                node.release([slot_of(entity)])

    @precondition(lambda self: self.unsure)
    @rule(name=NODES)
    def repeat(self, name: str) -> None:
        if name in self.nodes:
            entity, ids = self.unsure[0]
            if self._append_if_here(self.nodes[name], entity, ids):
                self.unsure.pop(0)

    # The merger

    @rule()
    def merge(self) -> None:
        if self.merger is None:
            self.merger = Merger(self.folder, self.partitions, waiting_bytes_max=self.waiting_bytes_max)
        self.merger.merge()
        assert self.merger.duplicates == 0

    @rule(death=DEATHS, cut=CUTS, zeros=st.booleans())
    def die_merging(self, death: tuple[str, int], cut: float, zeros: bool) -> None:
        self.merge()
        assert self.merger is not None
        for node in self.nodes.values():
            for entity in ("emma", "ben", "zoe"):
                self._append_if_here(node, entity, self._new_ids(1))
        with dying(*death) as calls:
            try:
                self.merger.merge()
            except Killed:
                logs = list(self.merger._logs.values())
                self._kill_merger()
                for log in logs:
                    tear(log, calls, cut, zeros)

    @rule(deleted=st.booleans())
    def restart_merger(self, deleted: bool) -> None:
        if self.merger is not None:
            self._kill_merger()
        if deleted:
            shutil.rmtree(self.folder / "merged" / "index", ignore_errors=True)

    # Upkeep

    @rule()
    def trim(self) -> None:
        if MergedJournal(self.folder).id() is not None:
            trim(self.folder)

    @rule(name=NODES, index=st.sampled_from(["index", "places"]))
    def delete_an_index(self, name: str, index: str) -> None:
        """Of a node that nobody has open: it is made again, whatever was trimmed meanwhile."""
        if name not in self.nodes:
            for path in (self.folder / "nodes" / name).glob(f"*/{index}"):
                if not any(node.name == name for node in self.fenced):
                    shutil.rmtree(path)

    # What must hold

    @invariant()
    def offsets_keep_their_events_and_entities_their_order(self) -> None:
        stream, sequences = MergedJournal(self.folder), defaultdict(list)
        for name in stream.partitions():
            events = list(stream.log(name).events())
            ids = [found.id for found in events]
            assert ids[: len(self.seen[name])] == self.seen[name], "an offset has another event now"
            self.seen[name] = ids
            for found in events:
                sequences[found.entity].append(found.sequence)
        assert all(found == list(range(1, len(found) + 1)) for found in sequences.values())
        merged = [id_ for ids in self.seen.values() for id_ in ids]
        assert len(set(merged)) == len(merged)
        assert set(merged) <= self.tried

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        for node in self.fenced:
            kill(node)
        for name in ("a", "b", "c"):
            self.open(name)
            self.nodes[name].release(self.nodes[name].slots)
        for entity, ids in self.unsure:
            self._append(self.nodes["a"], entity, ids)
        self.merge()
        self.offsets_keep_their_events_and_entities_their_order()
        self._check_acknowledged()
        self._kill_merger()
        for node in self.nodes.values():
            node.close()
        self.stack.close()

    def _check_acknowledged(self) -> None:
        stream = MergedJournal(self.folder)
        found = {
            one.id: (one.entity, one.sequence) for name in stream.partitions() for one in stream.log(name).events()
        }
        assert found == self.acknowledged, {
            id_: (found.get(id_), self.acknowledged.get(id_))
            for id_ in found.keys() | self.acknowledged.keys()
            if found.get(id_) != self.acknowledged.get(id_)
        }
        assert self.merger is not None
        assert self.merger.gaps() == []
        for receipt, id_ in self.receipts:
            position = stream.position_of(receipt.position)
            assert position is not None
            ((log, offset),) = receipt.position.parts
            if offset <= node_logs(self.folder)[log].begin()["0"]:
                assert position == stream.end()
            else:
                ((partition, behind),) = position.parts
                assert self.seen[partition][behind - 1] == id_
        assert verify(JournalFiles.of(self.folder)).ok

    def _new_ids(self, count: int) -> list[str]:
        ids = [f"{number}" for number in range(self.number, self.number + count)]
        self.number += count
        self.tried.update(ids)
        return ids

    def _append(self, node: NodeWriter, entity: str, ids: list[str]) -> None:
        receipt = node.append_to(entity, [event(id_, entity) for id_ in ids])
        sequences = range(receipt.first_sequence, receipt.last_sequence + 1)
        self.acknowledged.update(zip(ids, ((entity, sequence) for sequence in sequences), strict=True))
        self.receipts.append((receipt, ids[-1]))

    def _append_if_here(self, node: NodeWriter, entity: str, ids: list[str]) -> bool:
        try:
            self._append(node, entity, ids)
        except EntityElsewhere:
            self.tried.difference_update(set(ids) - {id_ for _, unsure in self.unsure for id_ in unsure})
            return False
        return True

    def _kill_merger(self) -> None:
        if self.merger is not None:
            for log in self.merger._logs.values():
                log._close_all()
            assert self.merger._index is not None
            self.merger._index.close()
            os.close(self.merger._lock)
            self.merger = None


TestNodes = Nodes.TestCase
TestNodes.settings = settings(
    max_examples=examples(15, 400),
    stateful_step_count=sized(30, 60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
