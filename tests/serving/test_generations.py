"""Generations of a view: readers switch to the current one at one moment, never back in time, and mix no two."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.core.errors import GenerationGone, ReplicaInvalid, RequestInvalid, StateError, ViewUnknown
from stateside.core.layout import POINTERS, Layout, ViewGeneration, ViewLayout, ViewPointer
from stateside.core.positions import Position
from stateside.pipeline.apply import switched
from stateside.pipeline.comparison import ViewChange
from stateside.replica.tail import Tail
from stateside.serving.access.guard import Guard
from stateside.serving.changes.feed import Feeds
from stateside.serving.changes.subscription import Subscription
from stateside.serving.changes.watch import Watch
from stateside.serving.fast_path import Peer
from stateside.serving.follower import Follower
from stateside.serving.rows.archive import table_folder
from stateside.serving.rows.floor import Floor
from stateside.serving.rows.relation import Relation
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.views.catalogue import CATALOGUE, Catalogue, KeyColumn, StateColumn, ViewColumn
from stateside.views.heartbeat import Heartbeat
from stateside.views.view_generations import drop, roll_back
from tests.waiting import wait_until
from tests.written import WORDS, Values, Written, WrittenOperator

FIRST, SECOND = ViewGeneration(1, "counts"), ViewGeneration(2, "counts/generations/2")
SUMS = WrittenOperator([("word", "string")], [("count", "long"), ("sum", "long")])


class Fold:
    """A generation of the view `counts`, as Spark leaves it; the second one has one column more."""

    def __init__(self, layout: Layout, generation: ViewGeneration) -> None:
        self.view = layout.at("counts", generation)
        operator = WORDS if generation.number == 1 else SUMS
        self.written = Written(self.view.checkpoint, operator)
        columns = [
            ViewColumn(name, "long", name, (StateColumn(at, name, "long"),), f"{name}(word)")
            for at, (name, _) in enumerate(operator.value)
        ]
        key = (KeyColumn("word", "string", StateColumn(0, "word", "string"), "word"),)
        CATALOGUE.write(self.view.catalogue, Catalogue("words", "counts", 0, key, tuple(columns)))

    def go_on(self, position: int, follow: bool = True, **rows: Values) -> None:
        """A batch that ends at this position; the replica follows, or not yet."""
        changes = [([word], list(values)) for word, values in rows.items()]
        self.written.batch(changes, source=json.dumps({"journal": "j", "0": position}))
        if follow:
            self.follow()

    def follow(self) -> None:
        """In another process, as a server does it: one process opens a replica only once."""
        code = (
            "import sys; from pathlib import Path; from stateside.core.layout import ViewLayout; "
            "from stateside.replica.tail import Tail; Tail(ViewLayout(Path(sys.argv[1]))).step()"
        )
        subprocess.run([sys.executable, "-c", code, str(self.view.root)], check=True)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "app")


@pytest.fixture
def folds(layout: Layout) -> Iterator[tuple[Fold, Fold]]:
    """The first generation at position 10, and the second one being filled, at position 5."""
    first, second = Fold(layout, FIRST), Fold(layout, SECOND)
    first.go_on(10, follow=False, a=[4], b=[6])
    second.go_on(5, follow=False, a=[2, 20])
    for fold in (first, second):
        tail = Tail(fold.view)
        tail.step()
        tail.close()
    POINTERS.write(layout.generations, {"counts": ViewPointer(FIRST, SECOND)})
    yield first, second


def switch(layout: Layout, **pointer: Any) -> None:
    POINTERS.write(layout.generations, {"counts": ViewPointer(SECOND, kept=(FIRST,), **pointer)})


def rows(views: ViewReaders) -> tuple[int, dict[str, Any]]:
    """The generation that answers, and its row of `a`."""
    answer = asyncio.run(views.get("counts").rows(["a"]))
    return answer.stamp.generation, answer.rows[0]


def test_a_folder_without_pointers_has_the_first_generation_of_each_view(layout: Layout) -> None:
    first = Fold(layout, FIRST)
    assert layout.views() == [first.view] == [layout.view("counts")]
    assert (first.view.name, first.view.generation, first.view.application) == ("counts", 1, layout.root)


def test_a_generation_being_filled_is_followed_and_not_served(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    first, second = folds
    assert layout.views() == [first.view]
    assert layout.filling() == [second.view]
    assert (second.view.name, second.view.generation, second.view.application) == ("counts", 2, layout.root)
    assert rows(ViewReaders(layout)) == (1, {"word": "a", "count": 4})


def test_the_follower_moves_the_replica_of_a_generation_that_is_being_filled(layout: Layout) -> None:
    second = Fold(layout, SECOND)
    POINTERS.write(layout.generations, {"counts": ViewPointer(None, SECOND)})
    second.go_on(12, follow=False, a=[5, 50])
    with Follower(layout) as follower:
        wait_until(lambda: second.view.root in follower._followed)
        wait_until(lambda: follower._followed[second.view.root].tail._writer.batch() is not None)
    assert ViewReaders(layout).names() == [], "a new view appears with the switch"


def test_readers_switch_once_the_new_replica_has_what_the_old_one_had(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    views = ViewReaders(layout)
    assert rows(views) == (1, {"word": "a", "count": 4})
    folds[1].go_on(10, follow=False, a=[4, 40])
    switch(layout)
    assert rows(views) == (1, {"word": "a", "count": 4}), "the new replica stands at position 5"
    assert views.get("counts") is views.get("counts"), "a feed compares readers"
    folds[1].follow()
    assert rows(views) == (2, {"word": "a", "count": 4, "sum": 40})
    assert views.get("counts") is views.get("counts")


def test_a_process_that_starts_after_the_switch_decides_in_the_same_way(
    layout: Layout, folds: tuple[Fold, Fold]
) -> None:
    switch(layout)
    views = ViewReaders(layout)
    assert rows(views)[0] == 1, "the new replica stands at position 5"
    folds[1].go_on(10, a=[4, 40])
    assert rows(views)[0] == 2


def test_the_fast_path_switches_with_all_other_reads(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    """A kept reader of the generation before would take a client back that a scan has already shown the new one."""
    views = ViewReaders(layout)
    fast_path = Application(views, guard=Guard.of(layout)).fast_path
    request = b"GET /v1/views/counts/rows/a HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def answers() -> list[bytes | None]:
        first = fast_path.answer(Peer("127.0.0.1"), request)
        folds[1].go_on(10, a=[4, 40])
        switch(layout)
        assert (await views.get("counts").rows(["a"])).stamp.generation == 2
        await asyncio.sleep(0)  # the next request is one of the next turn
        second = fast_path.answer(Peer("127.0.0.1"), request)
        fast_path._kept["counts"].release()
        return [first, second]

    first, second = asyncio.run(answers())
    assert first is not None and second is not None
    assert b'"generation":1' in first and b'"generation":2' in second and b'"sum":40' in second


def test_a_floor_is_reached_by_the_generation_that_takes_over_meanwhile(
    layout: Layout, folds: tuple[Fold, Fold]
) -> None:
    views = ViewReaders(layout)

    async def waited() -> int:
        reading = asyncio.create_task(views.ready("counts", Floor(min_position=Position.parse("0:12"), wait_ms=30_000)))
        await asyncio.sleep(0.05)
        assert not reading.done(), "the old generation, which ends at 10, never reaches it"
        folds[1].go_on(12, a=[4, 40])
        switch(layout)
        return (await reading).layout.generation

    assert asyncio.run(waited()) == 2


def test_readers_that_have_switched_never_go_back(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    views = ViewReaders(layout)
    folds[1].go_on(10, a=[4, 40])
    switch(layout)
    assert rows(views)[0] == 2
    folds[0].go_on(20, a=[9])  # a replica that comes late
    assert rows(views)[0] == 2


def test_a_rollback_is_served_at_once_although_it_goes_back_in_time(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    views = ViewReaders(layout)
    folds[1].go_on(10, a=[4, 40])
    switch(layout)
    folds[1].go_on(30, a=[8, 80])
    assert rows(views)[0] == 2
    assert roll_back(layout, "counts") == FIRST
    assert rows(views) == (1, {"word": "a", "count": 4})
    assert roll_back(layout, "counts") == SECOND, "and forth again"
    assert rows(views)[0] == 2


def test_without_a_kept_generation_nothing_is_rolled_back(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    with pytest.raises(RequestInvalid, match="no generation to go back to"):
        roll_back(layout, "counts")


def test_a_kept_generation_is_dropped_with_all_its_files(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    folds[1].go_on(10, a=[4, 40])
    switch(layout)
    assert drop(layout, "counts") > 0
    assert [path.name for path in (layout.root / "views" / "counts").iterdir()] == ["generations"]
    assert rows(ViewReaders(layout)) == (2, {"word": "a", "count": 4, "sum": 40})
    assert drop(layout, "counts") == 0


def test_a_generation_whose_filling_was_given_up_is_dropped(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    assert drop(layout, "counts") > 0
    assert not folds[1].view.root.exists() and layout.filling() == []
    assert rows(ViewReaders(layout)) == (1, {"word": "a", "count": 4})
    POINTERS.write(layout.generations, {"new": ViewPointer(None, ViewGeneration(1, "new"))})
    layout.view("new").root.mkdir(parents=True)
    drop(layout, "new")
    assert layout.pointers() == {} and not layout.view("new").root.exists(), "it was never served"


def test_a_dropped_generation_is_closed_after_its_last_snapshot(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    views, first, second = ViewReaders(layout), *(fold.view.replica for fold in folds)
    assert rows(views)[0] == 1
    before = views.get("counts")
    folds[1].go_on(10, a=[4, 40])
    switch(layout)
    assert rows(views)[0] == 2 and open_files(first) and open_files(second)
    with before.replica.snapshot() as snapshot:
        drop(layout, "counts")
        assert rows(views)[0] == 2
        assert snapshot.count() == 2, "a reader under way is not disturbed"
    assert not open_files(first) and open_files(second)
    with pytest.raises(ReplicaInvalid, match="no longer kept"):
        asyncio.run(before.rows(["a"]))


def open_files(folder: Path) -> list[str]:
    """The files of this process in a folder: open ones, and mapped ones."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    mapped = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return [path for path in links + mapped if path.startswith(f"{folder}/")]


def test_a_view_that_was_removed_is_dropped_whole(layout: Layout) -> None:
    first = Fold(layout, FIRST)
    first.go_on(10, a=[4])
    Heartbeat(1, None, "removed").save(first.view.heartbeat)
    assert drop(layout, "counts") > 0
    with pytest.raises(ViewUnknown):
        ViewReaders(layout).get("counts")


def test_a_renamed_view_answers_by_its_new_name_alone(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    change = ViewChange("words", "renamed", was="counts")
    POINTERS.write(layout.generations, switched({}, [change]))
    views = ViewReaders(layout)
    answer = asyncio.run(views.get("words").rows(["a"]))
    assert (answer.stamp.view, answer.rows) == ("words", [{"word": "a", "count": 4}])
    assert views.names() == ["words"]
    with pytest.raises(ViewUnknown):
        views.get("counts")


def test_a_view_may_be_renamed_and_its_name_given_to_a_new_one() -> None:
    renamed, new = ViewChange("words", "renamed", was="counts"), ViewChange("counts", "new")
    third = ViewGeneration(2, "counts/generations/2")
    after = switched({"counts": ViewPointer(None, third)}, [new])
    assert after == {"counts": ViewPointer(third)}
    assert switched({}, [renamed]) == {"words": ViewPointer(FIRST)}


def test_the_switch_keeps_one_generation_and_forgets_what_needs_no_entry() -> None:
    third = ViewGeneration(3, "counts/generations/3")
    change = ViewChange("counts", "needs a backfill")
    before = {"counts": ViewPointer(SECOND, third, kept=(FIRST,))}
    assert switched(before, [change]) == {"counts": ViewPointer(third, kept=(SECOND,))}
    again = {"counts": ViewPointer(SECOND, FIRST, kept=(FIRST,))}
    assert switched(again, [change]) == {"counts": ViewPointer(FIRST, kept=(SECOND,))}, "a kept one is taken again"
    assert switched({"new": ViewPointer(None, ViewGeneration(1, "new"))}, [ViewChange("new", "new")]) == {}


class Server:
    """One process that answers requests."""

    def __init__(self, layout: Layout) -> None:
        self._app = Application(ViewReaders(layout), guard=Guard.of(layout))

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async def asked() -> tuple[int, dict[str, Any]]:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                answer = await client.get(f"/v1/views/counts/rows{path}")
                return answer.status_code, answer.json()

        return asyncio.run(asked())


def test_a_cursor_stays_on_its_generation_while_it_is_kept(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    server = Server(layout)
    _, first_page = server.get("?limit=1")
    folds[1].go_on(10, a=[4, 40], b=[6, 60])
    switch(layout)
    old = f"?limit=1&cursor={first_page['cursor']}"
    status, page = server.get(old)
    assert (status, page["stamp"]["generation"], page["rows"]) == (200, 1, [{"word": "b", "count": 6}])
    assert server.get("/a?as_of=0&generation=1")[1]["rows"] == [{"word": "a", "count": 4}]
    _, newest = server.get("?limit=1")
    assert (newest["stamp"]["generation"], newest["rows"]) == (2, [{"word": "a", "count": 4, "sum": 40}])
    drop(layout, "counts")
    status, problem = server.get(old)
    assert (status, GenerationGone.code in problem["type"]) == (410, True)
    assert "Begin again" in json.dumps(problem)
    _, rest = server.get(f"?limit=1&cursor={newest['cursor']}")
    assert (rest["stamp"]["generation"], rest["rows"]) == (2, [{"word": "b", "count": 6, "sum": 60}])


def test_a_subscriber_ends_with_the_new_generation_s_rows(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    views = ViewReaders(layout)
    feeds = Feeds(views)

    async def watched(switches: bool) -> str:
        reader = views.get("counts")
        watch = Watch(feeds.of(reader), Subscription.ask(Relation(reader), []))
        parts = watch.parts(await watch.begin(None, Floor()))
        found = [(await anext(parts)).decode() for _ in range(2)]
        if switches:
            folds[1].go_on(10, a=[4, 40], b=[6, 60])
            switch(layout)
            found += [part.decode() async for part in parts]
        await parts.aclose()
        return "".join(found)

    first = asyncio.run(watched(switches=True))
    assert '"count":4}' in first and first.rindex("event: reset") < first.rindex("event: end")
    assert first.endswith("\n\n") and "id:\nevent: reset" in first, "the last id is void, for browsers too"
    again = asyncio.run(watched(switches=False))
    assert "event: snapshot" in again and '"sum":40}' in again and '"generation":2' in again


def test_damaged_pointers_are_refused_and_not_taken_for_none(layout: Layout, folds: tuple[Fold, Fold]) -> None:
    layout.generations.write_text("{}")
    with pytest.raises(StateError, match="generations"):
        layout.views()


def test_the_archive_of_a_further_generation_is_a_table_of_its_own(layout: Layout) -> None:
    assert layout.at("counts", FIRST).table("closed") == layout.table("closed")
    assert layout.at("counts", SECOND).table("closed") == layout.at("counts", SECOND).root / "tables" / "closed"
    assert ViewLayout(layout.at("counts", SECOND).root).name == "counts"


def test_a_generation_has_an_archive_of_its_own_and_shares_all_other_tables(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    first = layout.view("hours")
    second = layout.at("hours", ViewGeneration(2, "hours/generations/2"))
    for view in (first, second):
        CATALOGUE.write(view.catalogue, Catalogue("shop", "hours", 0, (), (), archive="closed"))
    assert table_folder(first, "closed") == table_folder(layout.view("hours"), "closed") == layout.table("closed")
    assert table_folder(second, "closed") == second.root / "tables" / "closed"
    assert table_folder(second, "closed_corrections") == second.root / "tables" / "closed_corrections"
    assert table_folder(second, "invoices") == layout.table("invoices")
