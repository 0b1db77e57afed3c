"""Queries against a plain model: whatever is appended, restarted, deleted or damaged, they say what the model says."""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stateside.journal import Event, JournalWriter
from stateside.journal.backends.files import frames
from stateside.journal.backends.files.file_journal import FileJournal
from stateside.journal.queries import Queries, QueryViews, indexer, predicate, query_reader, query_views
from stateside.journal.queries import entities as entities_module
from stateside.journal.queries import format as form
from stateside.journal.queries import generation as generations
from tests.journal.queries.streams import Model, SparseStream
from tests.sizes import examples, sized

ENTITIES = ["a", "ab", "b", "ä", "漢" * 200, "漢" * 199 + "x", "zed"]
TAGS = ["red", "green", "漢" * 200]
TYPES = ["call", "fee"]
TIMES = [0, 5, 1_000, 10**15, 7 * 10**15]
SMALL = [
    (query_views, "TRANSACTION_EVENTS", 5),
    (frames, "GROUP_BYTES", 2_000),
    (query_reader, "PAGE_EVENTS", 3),
    (predicate, "LOOK_EVENTS", 4),
    (indexer, "ZONE_EVENTS", 4),
    (form, "BLOCK_EVENTS_MAX", 3),
    (form, "ZONE_SPANS_MAX", 2),
    (entities_module, "PAGE_IDS", 2),
    (entities_module, "TAIL_IDS_MAX", 2),
]

wanted_events = st.lists(
    st.tuples(
        st.sampled_from(ENTITIES),
        st.sampled_from(TYPES),
        st.sampled_from(TIMES),
        st.lists(st.sampled_from(TAGS), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


class QueriesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stateside-queries-"))
        self.patches = [patch.object(module, name, value) for module, name, value in SMALL]
        for each in self.patches:
            each.start()
        self.writer = self.new_writer()
        self.model = Model()
        self.open()

    def new_writer(self) -> Any:
        return JournalWriter(self.folder / "journal", segment_bytes_max=4_000)

    def new_stream(self) -> Any:
        return FileJournal(self.folder / "journal")

    def open(self) -> None:
        self.stream = self.new_stream()
        self.views = QueryViews(self.stream, self.folder / "views")
        self.queries = Queries(self.stream, self.views)

    def teardown(self) -> None:
        self.views.close()
        self.writer.close()
        for each in self.patches:
            each.stop()
        shutil.rmtree(self.folder)

    @initialize(wanted=st.lists(wanted_events, min_size=2, max_size=6))
    def begin(self, wanted: list[list[tuple[str, str, int, list[str]]]]) -> None:
        for some in wanted:
            self.append(some, follow=True)

    @rule(wanted=wanted_events, follow=st.booleans())
    def append(self, wanted: list[tuple[str, str, int, list[str]]], follow: bool) -> None:
        events = [
            Event(f"e{len(self.model.events) + n}", entity, type_, time, {"n": n}, tuple(tags))
            for n, (entity, type_, time, tags) in enumerate(wanted)
        ]
        self.writer.append(events)
        self.model.append(events)
        if follow:
            self.follow()

    @rule()
    def follow(self) -> None:
        assert self.views.follow() == self.stream.end()

    @rule()
    def restart(self) -> None:
        self.views.close()
        self.open()

    @rule()
    def rebuild(self) -> None:
        seen: list[tuple[int, int]] = []
        assert self.views.rebuild(lambda done, total: seen.append((done, total))) == self.stream.end()
        assert seen == sorted(seen)
        assert not seen or seen[-1][0] == seen[-1][1]

    @rule()
    def delete_while_open(self) -> None:
        shutil.rmtree(self.folder / "views", ignore_errors=True)

    @precondition(lambda self: generations.current(self.folder / "views") is not None)
    @rule(keep=st.integers(0, 3))
    def cut_the_file_short(self, keep: int) -> None:
        self.views.close()
        generation = generations.current(self.folder / "views")
        if generation is not None and (file := generation / "data.mdb").exists():
            with file.open("r+b") as opened:
                opened.truncate(min(keep * 4_096, file.stat().st_size))
        self.open()

    @rule(data=st.data())
    def change_or_lose_a_value(self, data: st.DataObject) -> None:
        self.follow()
        generation = self.views._current()
        assert generation is not None
        name = data.draw(st.sampled_from(["meta", "terms", "blocks", "zones", "born"]))
        with generation.environment.begin(write=True) as transaction:
            cursor = transaction.cursor(generation.databases[name])
            keys = list(cursor.iternext(values=False))
            key = data.draw(st.sampled_from(keys))
            value = bytes(transaction.get(key, db=generation.databases[name]) or b"")
            if data.draw(st.booleans()):
                transaction.delete(key, db=generation.databases[name])
            else:
                at = data.draw(st.integers(0, len(value) - 1))
                changed = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
                transaction.put(key, changed, db=generation.databases[name])
        self.ask_for_everything()

    @rule()
    def ask_for_everything(self) -> None:
        for entity in ENTITIES:
            found = [(each.event.sequence, each.event) for each in self.queries.entity(entity).current()]
            assert found == self.model.entity(entity)
            assert self.queries.last_sequence(entity) == len(found)
        for tag in TAGS:
            assert [each.event for each in self.queries.tagged(tag).current()] == self.model.tagged(tag)
        for type_ in TYPES:
            assert [each.event for each in self.queries.typed(type_).current()] == self.model.typed(type_)
        for low, high in pairwise(TIMES):
            assert [each.event for each in self.queries.between(low, high).current()] == self.model.between(low, high)
        assert [born.entity for born in self.queries.born().current()] == self.model.born()
        assert sorted(self.queries.entities().current(), key=str.encode) == self.model.entities()

    @rule(entity=st.sampled_from([*ENTITIES, "nobody"]), low=st.integers(1, 5), more=st.none() | st.integers(0, 5))
    def ask_for_an_entity(self, entity: str, low: int, more: int | None) -> None:
        high = None if more is None else low + more
        found = [(each.event.sequence, each.event) for each in self.queries.entity(entity, low, high).current()]
        assert found == self.model.entity(entity, low, high)
        assert self.queries.last_sequence(entity) == len(self.model.entity(entity))

    @rule(tag=st.sampled_from([*TAGS, "none"]), data=st.data())
    def ask_for_a_tag(self, tag: str, data: st.DataObject) -> None:
        self.check(self.queries.tagged(tag), self.model.tagged(tag), data)

    @rule(type_=st.sampled_from([*TYPES, "none"]), data=st.data())
    def ask_for_a_type(self, type_: str, data: st.DataObject) -> None:
        self.check(self.queries.typed(type_), self.model.typed(type_), data)

    @rule(low=st.sampled_from(TIMES), high=st.sampled_from(TIMES), data=st.data())
    def ask_for_times(self, low: int, high: int, data: st.DataObject) -> None:
        self.check(self.queries.between(low, high), self.model.between(low, high), data)

    @rule(data=st.data())
    def ask_for_all(self, data: st.DataObject) -> None:
        self.check(self.queries.all(), self.model.events, data)

    @rule(entity=st.sampled_from(ENTITIES), data=st.data())
    def ask_for_an_entity_from_a_position(self, entity: str, data: st.DataObject) -> None:
        self.check(self.queries.entity(entity), [event for _, event in self.model.entity(entity)], data)

    @rule(prefix=st.sampled_from(["", "a", "漢", "漢" * 199, "no"]), data=st.data())
    def ask_for_ids(self, prefix: str, data: st.DataObject) -> None:
        found = list(self.queries.entities(prefix).current())
        assert sorted(found, key=str.encode) == self.model.entities(prefix)
        assert [id_ for id_ in found if len(id_) < 100] == [
            id_ for id_ in self.model.entities(prefix) if len(id_) < 100
        ]
        if found:
            at = data.draw(st.integers(0, len(found) - 1))
            assert list(self.queries.entities(prefix, after=found[at]).current()) == found[at + 1 :]

    @rule(data=st.data())
    def ask_for_births(self, data: st.DataObject) -> None:
        found = list(self.queries.born().current())
        assert [born.entity for born in found] == self.model.born()
        if found:
            at = data.draw(st.integers(0, len(found) - 1))
            assert list(self.queries.born().current(found[at].position)) == found[at + 1 :]

    @invariant()
    def the_views_never_claim_more_than_there_is(self) -> None:
        assert self.stream.end().covers(self.views.position())

    def check(self, query: Any, expected: list[Event], data: st.DataObject) -> None:
        found = list(query.current())
        assert [each.event for each in found] == expected
        if found:
            at = data.draw(st.integers(0, len(found) - 1))
            assert list(query.current(found[at].position)) == found[at + 1 :]


class SparseQueriesMachine(QueriesMachine):
    """The same, of a stream that has gaps between its events."""

    def new_writer(self) -> Any:
        return SparseStream()

    def new_stream(self) -> Any:
        return self.writer


TestQueries = QueriesMachine.TestCase
TestQueries.settings = settings(
    max_examples=examples(40, 200), stateful_step_count=sized(8, 40), deadline=None, print_blob=True
)
TestQueriesOfASparseStream = SparseQueriesMachine.TestCase
TestQueriesOfASparseStream.settings = TestQueries.settings
