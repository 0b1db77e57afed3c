"""What a server tells of a journal that nodes write."""

from __future__ import annotations

from pathlib import Path

from stateside.core.clock import ManualClock
from stateside.core.layout import Layout
from stateside.journal.backends.nodes import Merger, NodeWriter
from stateside.serving.health.merge_status import MergeCondition, merge_condition
from stateside.serving.health.metrics import merge_families, text
from stateside.serving.rows.view_readers import ViewReaders
from tests.journal.nodes.dying import event


def metrics(folder: Path, now_us: int) -> dict[str, float]:
    """What /metrics tells of the merge, by name and labels."""
    condition = ViewReaders(Layout(folder), ManualClock(now_us)).merge_condition()
    told = "" if condition is None else text(merge_families(condition)).decode()
    lines = (line.rpartition(" ") for line in told.splitlines() if line.startswith("stateside_merge"))
    return {name: float(value) for name, _, value in lines}


def test_a_gap_is_seen_with_its_age_and_each_log_with_what_is_not_merged(tmp_path: Path) -> None:
    journal, clock = Layout(tmp_path).journal, ManualClock(5_000_000)
    with NodeWriter(journal, "b", clock=clock) as other:
        other.append_to("emma", [event("0")])
        other.release(other.slots)
    with NodeWriter(journal, "a", clock=clock) as node, Merger(journal) as merger:
        node.append_to("emma", [event("1"), event("2")])
        away = (journal / "nodes" / "b" / "1").rename(tmp_path / "away")
        merger.merge()
        told = metrics(tmp_path, 65_000_000)
        assert (told["stateside_merge_gaps"], told["stateside_merge_gap_seconds"]) == (1, 60)
        assert told['stateside_merge_lag_events{log="a.1"}'] == 2
        away.rename(journal / "nodes" / "b" / "1")
        merger.merge()
        told = metrics(tmp_path, 65_000_000)
        assert (told["stateside_merge_gaps"], told["stateside_merge_gap_seconds"]) == (0, 0)
        assert {told[f'stateside_merge_lag_events{{log="{log}"}}'] for log in ("a.1", "b.1")} == {0}
        assert told["stateside_merge_trouble"] == 0


def test_logs_that_nobody_merges_fall_behind_visibly(tmp_path: Path) -> None:
    with NodeWriter(Layout(tmp_path).journal, "a") as node:
        node.append_to("emma", [event("1"), event("2")])
    assert metrics(tmp_path, 0)['stateside_merge_lag_events{log="a.1"}'] == 2


def test_what_cannot_be_read_is_trouble_and_no_failure_of_the_server(tmp_path: Path) -> None:
    journal = Layout(tmp_path).journal
    Merger(journal).close()
    NodeWriter(journal, "a").close()
    (journal / "merged" / "born").write_text("?")
    assert metrics(tmp_path, 0) == {"stateside_merge_trouble": 1}


def test_a_journal_without_nodes_has_no_such_metrics(tmp_path: Path) -> None:
    assert merge_condition(Layout(tmp_path).journal, 0) is None
    assert metrics(tmp_path, 0) == {}
    assert MergeCondition().behind == {}
