"""The index of last sequences: derived from logs, in any order, and never ahead of them."""

from pathlib import Path

import pytest

from stateside.core.errors import JournalAway
from stateside.journal import index as index_module
from stateside.journal.backends.nodes import NodeWriter
from stateside.journal.backends.nodes.log import node_logs
from stateside.journal.backends.nodes.node_index import Lasts
from tests.journal.nodes.dying import event


def index(folder: Path) -> Lasts:
    return Lasts(folder / "index", lambda: node_logs(folder))


def fill(folder: Path) -> None:
    """Emma has 1 and 2 in b, and 3 in a."""
    for name, ids in (("b", ["1", "2"]), ("a", ["3"])):
        with NodeWriter(folder, name) as node:
            node.append_to("emma", [event(id_) for id_ in ids])
            node.release(node.slots)


@pytest.mark.parametrize("unwritten_max", [1, 50_000])
def test_the_highest_sequence_counts_whichever_log_is_read_last(
    tmp_path: Path, unwritten_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "UNWRITTEN_MAX", unwritten_max)
    fill(tmp_path)
    followed = index(tmp_path)
    followed.follow()
    assert followed.last(["emma", "nobody"]) == {"emma": 3, "nobody": 0}
    followed.close()
    again = index(tmp_path)
    assert again.last(["emma"]) == {"emma": 3 if unwritten_max == 1 else 0}
    again.follow()
    assert again.last(["emma"]) == {"emma": 3}
    again.close()


def test_an_index_grows_beyond_its_first_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAP_BYTES_START", 64 << 10)
    with NodeWriter(tmp_path, "a") as node:
        node.append([event(f"{number}", f"entity-{number}") for number in range(5_000)])
    followed = index(tmp_path)
    followed.follow()
    followed.flush()
    followed.close()
    again = index(tmp_path)
    assert again.covers("a.1") == 5_000
    assert set(again.last(f"entity-{number}" for number in range(5_000)).values()) == {1}
    again.close()


def test_a_log_that_is_away_when_the_index_is_written_is_read_again(tmp_path: Path) -> None:
    fill(tmp_path)
    followed = index(tmp_path)
    followed.follow()
    away = (tmp_path / "nodes" / "b").rename(tmp_path / "away")
    followed.flush()
    followed.close()
    away.rename(tmp_path / "nodes" / "b")
    again = index(tmp_path)
    assert (again.covers("a.1"), again.covers("b.1")) == (1, 0)
    again.follow()
    assert again.last(["emma"]) == {"emma": 3}
    again.close()


def test_a_damaged_index_is_told_with_its_place(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "data.mdb").write_bytes(b"?" * 10_000)
    with pytest.raises(JournalAway, match="the folder may be deleted"):
        index(tmp_path)
