"""LMDB's files that were cut short: told, or made again, and no process ends by a signal. So each has its own here."""

import os
from collections.abc import Callable
from pathlib import Path

RunPython = Callable[..., str]

FILL = """
import sys
from pathlib import Path
from stateside.journal import Event, JournalWriter, index
from stateside.journal.backends.kafka.admin import Described
from stateside.journal.backends.nodes import NodeWriter

folder = Path(sys.argv[1])
events = [Event(f"e{number}", f"entity-{number}", "call", 0, {}) for number in range(5_000)]
"""


def cut(folder: Path) -> None:
    """So that LMDB's head is there, and most of its pages are not."""
    path = folder / "data.mdb"
    assert path.stat().st_size > 100_000
    os.truncate(path, 16_384)


def test_verify_and_stat_tell_of_an_index_that_was_cut_short(tmp_path: Path, run_python: RunPython) -> None:
    fill = """
index.WRITTEN_AT_ONCE = 100
with JournalWriter(folder) as writer:
    writer.append(events)
    writer.append(events[:1])
"""
    run_python(FILL + fill, tmp_path)
    cut(tmp_path / "ids")
    look = """
from stateside.journal.admin import JournalFiles, statistics, verify
print(verify(JournalFiles.of(folder)).findings.counts, statistics(JournalFiles.of(folder)).ids_cover)
"""
    assert run_python(FILL + look, tmp_path) == "{'ids': 1} None\n"


def test_the_index_of_a_writer_on_kafka_that_was_cut_short_is_told(tmp_path: Path, run_python: RunPython) -> None:
    fill = """
from stateside.journal.columns import encode
from stateside.journal.backends.kafka.topic_index import TopicIndex
from stateside.journal.index import numbered

batch, _ = numbered(encode(events, 0), lambda names: [0] * len(names))
index = TopicIndex(folder, Described("topic", 1))
index.note(0, range(len(events)), batch)
index.close()
index.close()
"""
    run_python(FILL + fill, tmp_path)
    cut(tmp_path / "0" / "data")
    look = """
from stateside.core.errors import JournalAway
from stateside.journal.backends.kafka.topic_index import TopicIndex
try:
    print(TopicIndex(folder, Described("topic", 1)).lasts(event.entity for event in events))
except JournalAway as error:
    print(error)
"""
    told = run_python(FILL + look, tmp_path)
    assert "cut short" in told
    assert "may be deleted" in told


def test_a_successor_makes_an_index_anew_whose_last_epoch_s_was_cut_short(
    tmp_path: Path, run_python: RunPython
) -> None:
    fill = """
with NodeWriter(folder, "a") as node:
    node.append(events)
    node._index.flush()
"""
    run_python(FILL + fill, tmp_path)
    cut(tmp_path / "nodes" / "a" / "1" / "index")
    succeed = """
with NodeWriter(folder, "a", take_over=True) as node:
    print(node.last_sequence("entity-7"))
"""
    assert run_python(FILL + succeed, tmp_path) == "1\n"
