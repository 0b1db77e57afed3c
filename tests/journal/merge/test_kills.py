"""Real processes, killed and paused by the operating system: nodes that append and move entities, and a merger."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from stateside.core.positions import Position
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter
from tests.journal.nodes.dying import event
from tests.sizes import sized
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

HEAD = """
import os, random, signal, sys, threading, types
sys.modules["pandas"] = types.SimpleNamespace(__version__="0")  # the real one, which pyarrow imports, takes a second
from pathlib import Path
from stateside.core.errors import EntityElsewhere, JournalFenced
from stateside.journal.event import Event
from stateside.journal.backends.nodes import Merger
from stateside.journal.backends.nodes import NodeWriter
folder = Path(sys.argv[1])
"""

NODE = """
name, life = sys.argv[2], sys.argv[3]
chance = random.Random(life)
with NodeWriter(folder, name, take_over=life.endswith("t"), segment_bytes_max=8_000) as node:
    number = 0
    while True:
        entity = chance.choice("abcdefgh")
        ids = [f"{life}.{number + more}" for more in range(chance.randint(1, 3))]
        try:
            receipt = node.append_to(entity, [Event(id_, entity, "call", 1, {}) for id_ in ids])
        except EntityElsewhere:
            node.release(chance.sample(node.slots, min(2, len(node.slots))))
            continue
        number += len(ids)
        print(entity, ",".join(ids), receipt.first_sequence, receipt.position, flush=True)
"""

MERGER = """
with Merger(folder, partitions=2, waiting_bytes_max=int(sys.argv[2])) as merger:
    print("merging", flush=True)
    merger.run(threading.Event())
"""

PAUSED = """
with NodeWriter(folder, "a") as node:
    node.append_to("emma", [Event("before", "emma", "call", 1, {})])
    real = getattr(os, sys.argv[2])
    def pause(*arguments):
        setattr(os, sys.argv[2], real)
        print("paused", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return real(*arguments)
    setattr(os, sys.argv[2], pause)
    try:
        print(node.append_to("emma", [Event("paused", "emma", "call", 1, {})]).position, flush=True)
    except JournalFenced:
        print("fenced", flush=True)
"""


@contextmanager
def process(script: str, *arguments: object) -> Iterator[Any]:
    command = [sys.executable, "-c", HEAD + script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


class Acknowledged:
    """What the nodes printed: a thread reads each one's lines until it is dead."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def follow(self, child: Any) -> None:
        Thread(target=self._read, args=[child.stdout]).start()

    def has_more_than(self, count: int) -> bool:
        return len(self.lines) > count

    def _read(self, lines: Iterator[str]) -> None:
        self.lines.extend(line for line in lines if line.endswith("\n"))

    def events(self) -> dict[str, tuple[str, int]]:
        found = {}
        for line in list(self.lines):
            entity, ids, first, _ = line.split()
            found.update({id_: (entity, int(first) + more) for more, id_ in enumerate(ids.split(","))})
        return found

    def receipts(self) -> list[tuple[Position, str]]:
        return [(Position.parse(line.split()[3]), line.split()[1].split(",")[-1]) for line in list(self.lines)]


def merged(folder: Path) -> dict[str, list[tuple[str, str, int | None]]]:
    stream = MergedJournal(folder)
    return {
        name: [(found.id, found.entity, found.sequence) for found in stream.log(name).events()]
        for name in stream.partitions()
    }


@pytest.mark.parametrize("seed", range(sized(1, 25)))
def test_nodes_and_mergers_killed_at_any_moment_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    chance, acknowledged, seen = random.Random(seed), Acknowledged(), defaultdict[str, list[Any]](list)
    with ExitStack() as running:
        nodes: dict[str, Any] = {}
        merger = None
        for life in range(sized(8, 16)):
            name = "abc"[life % 3]
            if name in nodes:
                nodes[name].send_signal(signal.SIGKILL)
                nodes[name].wait()
            taking_over = "t" if chance.random() < 0.5 else ""
            before = len(acknowledged.lines)
            nodes[name] = running.enter_context(process(NODE, tmp_path, name, f"{seed}-{life}{taking_over}"))
            acknowledged.follow(nodes[name])
            if merger is None or chance.random() < 0.5:
                if merger is not None:
                    merger.send_signal(signal.SIGKILL)
                    merger.wait()
                merger = running.enter_context(process(MERGER, tmp_path, chance.choice([0, 5_000, 1 << 20])))
            wait_until(partial(acknowledged.has_more_than, before))
            time.sleep(chance.uniform(0, 0.4))
            for partition, events in merged(tmp_path).items():
                assert events[: len(seen[partition])] == seen[partition], "an offset has another event now"
                seen[partition] = events
    for name in nodes:
        with NodeWriter(tmp_path, name):
            pass
    with Merger(tmp_path, partitions=2) as last:
        for _ in range(3):
            last.merge()
        assert last.gaps() == []
        assert last.duplicates == 0
    _check(tmp_path, acknowledged, seen)


def _check(folder: Path, acknowledged: Acknowledged, seen: dict[str, list[Any]]) -> None:
    found, stream = merged(folder), MergedJournal(folder)
    entities: dict[str, list[int | None]] = defaultdict(list)
    for partition, events in found.items():
        assert events[: len(seen[partition])] == seen[partition]
        for _, entity, sequence in events:
            entities[entity].append(sequence)
    assert all(sequences == list(range(1, len(sequences) + 1)) for sequences in entities.values())
    places = {id_: (entity, sequence) for events in found.values() for id_, entity, sequence in events}
    assert len(places) == sum(len(events) for events in found.values())
    promised = acknowledged.events()
    assert len(promised) > 20
    assert {id_: places.get(id_) for id_ in promised} == promised
    for receipt, id_ in acknowledged.receipts()[:: sized(20, 5)]:
        ((partition, behind),) = (stream.position_of(receipt) or Position.start()).parts
        assert found[partition][behind - 1][0] == id_


@pytest.mark.parametrize(("where", "kept"), [("pwrite", False), ("fdatasync", True)])
def test_a_paused_process_finds_itself_fenced_when_it_goes_on(tmp_path: Path, where: str, kept: bool) -> None:
    with process(PAUSED, tmp_path, where) as paused:
        assert paused.stdout.readline() == "paused\n"
        with NodeWriter(tmp_path, "a", take_over=True) as node:
            assert node.append_to("emma", [event("after")]).first_sequence == 2 + kept
            os.kill(paused.pid, signal.SIGCONT)
            assert paused.stdout.readline() == "fenced\n"
            assert node.append_to("emma", [event("later")]).first_sequence == 3 + kept
    with Merger(tmp_path) as merger:
        merger.merge()
    ids = [id_ for id_, _, _ in merged(tmp_path)["0"]]
    assert ids == ["before", *(["paused"] if kept else []), "after", "later"]
