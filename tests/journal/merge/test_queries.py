"""Queries and views over a merged stream: an entity's events in order, wherever they were written."""

from pathlib import Path

from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter
from stateside.journal.contract import Journal
from stateside.journal.event import Event
from stateside.journal.queries import Queries, QueryViews


def test_an_entity_that_moved_is_found_in_order_and_by_tag(tmp_path: Path) -> None:
    stream: Journal = MergedJournal(tmp_path)
    with Merger(tmp_path, partitions=2) as merger, QueryViews(stream, tmp_path / "views") as views:
        for number, name in enumerate("cabbac"):
            with NodeWriter(tmp_path, name) as node:
                for entity in ("emma", "ben"):
                    node.append_to(entity, [Event(f"{entity}-{number}", entity, "call", number, {}, ("night",))])
                node.release(node.slots)
            if number == 2:
                merger.merge()
                views.follow()
        merger.merge()
        queries = Queries(stream, views)
        for following in (False, True):
            if following:
                views.follow()
            found = [one.event for one in queries.entity("emma").current()]
            assert [(event.id, event.sequence) for event in found] == [(f"emma-{n}", n + 1) for n in range(6)]
            tagged = [one.event for one in queries.tagged("night").current()]
            assert [event.sequence for event in tagged if event.entity == "ben"] == [1, 2, 3, 4, 5, 6]
            assert len(tagged) == 12
            assert queries.last_sequence("ben") == 6
