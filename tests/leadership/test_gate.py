"""Gates: what goes through an open one, and that nothing does through one that is shut."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from stateside.archive import ArchiveTable, TableSpec
from stateside.core.errors import ArchiveInvalid, LeadershipLost, SinkAway
from stateside.core.layout import Layout
from stateside.leadership import ApplicationLease, Gates, ungated
from stateside.pipeline.sinks.delta import DeltaSink
from stateside.pipeline.sinks.sink import BatchId

ROWS = pa.table({"customer": ["emma"], "total": [100]})
SPEC = TableSpec("invoices", ROWS.schema, sealed=False)


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    ApplicationLease(tmp_path).make()
    return Gates(tmp_path)


def test_through_an_open_gate_everything_is_where_it_is(tmp_path: Path, gates: Gates) -> None:
    layout = Layout(gates.open(1))
    layout.view("bill").checkpoint.mkdir(parents=True)
    (layout.view("bill").checkpoint / "metadata").write_text("{}")
    assert (Layout(tmp_path).view("bill").checkpoint / "metadata").read_text() == "{}"


def test_through_a_shut_gate_nothing_can_be_read_written_renamed_or_made(tmp_path: Path, gates: Gates) -> None:
    through = gates.open(1)
    (tmp_path / "offsets").mkdir()
    (through / "offsets" / ".7.tmp").write_text("planned")
    gates.shut_before(2)
    for act in (
        lambda: (through / "offsets" / ".7.tmp").rename(through / "offsets" / "7"),
        lambda: (through / "offsets" / "7").write_text("planned"),
        lambda: (through / "offsets" / ".7.tmp").read_text(),
        lambda: (through / "offsets").mkdir(),
        lambda: (through / "offsets" / "again").mkdir(parents=True, exist_ok=True),
        lambda: list((through / "offsets").iterdir()),
    ):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            act()
    assert [path.name for path in (tmp_path / "offsets").iterdir()] == [".7.tmp"]


def test_every_leader_knows_a_thing_by_the_name_that_it_has_without_a_gate(tmp_path: Path, gates: Gates) -> None:
    for path in (tmp_path, tmp_path / "files" / "out", Path("/d/lease/gates"), Path("/d/lease/gates/x/y")):
        assert ungated(path) == path
    assert ungated(gates.path(12) / "files" / "out") == tmp_path / "files" / "out"
    assert ungated(gates.path(1)) == tmp_path


def test_a_gate_is_opened_once_and_never_after_it_was_shut(gates: Gates) -> None:
    gates.open(1)
    gates.shut_before(4)
    assert [gates.is_shut(epoch) for epoch in (1, 2, 3, 4)] == [True, True, True, False]
    for epoch in (1, 3):
        with pytest.raises(LeadershipLost, match=f"epoch {epoch} was replaced before it began"):
            gates.open(epoch)
    gates.shut_before(4)  # again: nothing changes
    gates.open(4)
    with pytest.raises(LeadershipLost):
        gates.open(4)


def table(layout: Layout, on_step: object = None) -> ArchiveTable:
    steps = {} if on_step is None else {"on_step": on_step}
    return ArchiveTable(layout.table("invoices"), SPEC, layout.view("bill").mark("invoices"), **steps)  # type: ignore[arg-type]


def test_an_old_leader_opens_no_table_any_more(tmp_path: Path, gates: Gates) -> None:
    old = table(Layout(gates.open(1)))
    old.create()
    old.append(ROWS, "query", 0)
    gates.shut_before(2)
    for write in (old.append, lambda *args: old.insert_absent(args[0], ["customer"], *args[1:])):
        with pytest.raises((ArchiveInvalid, OSError, RuntimeError)):
            write(ROWS, "query", 1)
    assert table(Layout(gates.open(2))).count() == 1


@pytest.mark.parametrize("key", [(), ("customer",)], ids=["appended", "inserted if absent"])
@pytest.mark.parametrize("first", ["the new leader", "the old leader"])
def test_a_table_that_an_old_leader_holds_opened_takes_the_batch_once(
    tmp_path: Path, gates: Gates, key: tuple[str, ...], first: str
) -> None:
    """The old one is paused with the table open and the batch's rows in its hand; the new one repeats that batch."""
    new: list[DeltaSink] = []

    def pause(step: int) -> None:
        if step == 3 and not new:
            gates.shut_before(2)
            new.append(DeltaSink(table(Layout(gates.open(2))), key))
            if first == "the new leader":
                new[0].write(ROWS, BatchId("query", 5))

    old = table(Layout(gates.open(1)), pause)
    old.create()
    with suppress(SinkAway):  # it would be held; before the next attempt the old leader is told that it leads no longer
        DeltaSink(old, key).write(ROWS, BatchId("query", 5))
    new[0].write(ROWS, BatchId("query", 5))
    assert new[0].table.count() == 1
