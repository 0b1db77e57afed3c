"""Watchers of live and sealed rows: what they have is, at each batch, what the relation has. Real sink, no Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import RequestInvalid
from stateside.replica.batch_marker import AppliedBatch
from stateside.serving.changes import subscription
from stateside.serving.changes.feed import Feed
from stateside.serving.changes.subscription import ChangePages, ChangesPage, RowsPage, Subscription
from stateside.serving.rows import archive
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.stamp import Source
from tests.replica.spark_job import Changes, Rows
from tests.serving.changes.watched import Follower, parsed
from tests.serving.rows.closing_shop import CUSTOMERS, SOURCES, ClosingShop
from tests.sizes import examples, not_in_fast

KEY = ("customer", "country")


class Watching:
    """A watcher that reads its own pages; it has what it was told."""

    def __init__(self, shop: ClosingShop, source: Source) -> None:
        self._shop, self._source = shop, source
        self._follower = Follower(KEY)
        self.stand: AppliedBatch | None = None

    def catch_up(self, *, stepwise: bool) -> None:
        with self._shop.reader() as reader:
            question = Subscription.ask(Relation(reader), (), source=self._source)
            read = ChangePages(question)
            if self.stand is None:
                page: RowsPage | ChangesPage = read.rows()
                self._hear(page, question)
                while page.beyond is not None:
                    page = read.rows(page)  # type: ignore[arg-type]
                    self._hear(page, question)
                return
            steps = read.steps(self.stand) if stepwise else None
            if steps is not None:
                for step in steps.pages:
                    self._hear(step, question)
                self.stand = steps.now
                return
            since, change = self.stand, read.changes(self.stand)
            self._hear(change, question)
            while change.beyond is not None:
                change = read.changes(since, change)
                self._hear(change, question)

    def _hear(self, page: RowsPage | ChangesPage, question: Subscription) -> None:
        for told in parsed(page.event(question)):
            assert told.data["stamp"]["source"] == self._source
            self._follower.hear(told)
        self.stand = page.batch

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [self._follower.rows[key] for key in sorted(self._follower.rows)]


KEYS = st.tuples(st.sampled_from(CUSTOMERS), st.sampled_from("abc"))
BATCHES = st.lists(
    st.tuples(st.dictionaries(KEYS, st.tuples(st.integers(1, 3), st.integers(1, 9)), max_size=4), st.randoms()),
    min_size=3,
    max_size=6,
)


@not_in_fast("a property over whole histories; one hand-over is watched below")
@settings(max_examples=examples(6, 100), deadline=None)
@given(BATCHES, st.integers(1, 3), st.booleans())
def test_whatever_is_closed_when_a_watcher_has_every_row_once_at_every_batch(
    batches: list[tuple[Changes, Any]], every: int, stepwise: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscription, "PAGE_ROWS_MAX", 2)
        patch.setattr(archive, "WINDOW_ROWS", 1)
        shop = ClosingShop(Path(folder))
        watching = {source: Watching(shop, source) for source in SOURCES}
        for number, (changes, random) in enumerate(batches):
            gone = {key for _, key, _ in shop.sealed_rows}
            closed = [key for key in sorted(shop.job.rows) if random.random() < 0.4]
            new: Rows = {key: row for key, row in changes.items() if key not in gone and row is not None}
            last = {key: row for key, row in new.items() if key in closed or random.random() < 0.2}
            shop.store(closed, last)
            shop.commit(closed, {key: row for key, row in new.items() if key not in last}, last)
            shop.follow()
            if number % every == 0:
                for source, watcher in watching.items():
                    watcher.catch_up(stepwise=stepwise)
                    assert watcher.rows == shop.all_expected(number, source), source


@pytest.fixture
def shop(tmp_path: Path) -> ClosingShop:
    made = ClosingShop(tmp_path)
    made.batch({("emma", "de"): (1, 5), ("emma", "fr"): (2, 7)})
    return made


def test_the_feed_tells_of_a_hand_over_what_each_watcher_must_know(shop: ClosingShop) -> None:
    """One row is sealed as it was, one with its last change, and one that no batch ever had live."""
    with shop.reader() as reader:
        stand = ChangePages(Subscription.ask(Relation(reader), ())).rows().batch
    last: Rows = {("emma", "fr"): (3, 8), ("ben", "it"): (1, 1)}
    shop.store([("emma", "de")], last)
    shop.commit([("emma", "de")], {}, last)
    shop.follow()
    with shop.reader() as reader:
        asked = {source: Subscription.ask(Relation(reader), (), source=source) for source in SOURCES}
        (batch,) = Feed(reader, ViewReaders(shop.layout))._batches(stand, frozenset(asked.values())) or []
        told: dict[str, Any] = {}
        for source, question in asked.items():
            content = batch.events[question]
            assert isinstance(content, bytes)
            (told[source],) = parsed(content)
    changed = {
        source: [(row["country"], row["total"]) for row in each.data["changed"]] for source, each in told.items()
    }
    removed = {source: [row["country"] for row in each.data["removed"]] for source, each in told.items()}
    assert changed == {"live": [], "both": [("it", 1), ("fr", 8)], "archive": [("it", 1), ("de", 5), ("fr", 8)]}
    assert removed == {"live": ["de", "fr"], "both": [], "archive": []}


def test_sealed_rows_of_a_rollup_or_of_a_view_without_an_archive_are_not_followed(shop: ClosingShop) -> None:
    with shop.reader() as reader:
        with pytest.raises(RequestInvalid, match="followed over live rows"):
            Subscription.ask(Relation.of(reader, by=["country"]), (), source="both")
        reader.sealed = None
        with pytest.raises(RequestInvalid, match="has no archive"):
            Subscription.ask(Relation(reader), (), source="both")
