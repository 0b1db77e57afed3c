"""A checkpoint that somebody else's query writes, served from a folder of our own. Written here without Spark."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import CheckpointInvalid, NotFreshEnough, RequestInvalid, SettingInvalid, ViewInvalid
from stateside.core.processes import Child, free_port
from stateside.replica.store import ReplicaWriter
from stateside.replica.tail import Tail
from stateside.serving.foreign import Foreign, default_folder, open_foreign
from stateside.serving.rows.foreign_job import ForeignJob
from stateside.serving.rows.view_readers import Floor, ViewAnswer, ViewReader, ViewReaders
from stateside.views.declaration_file import Declarations
from tests.sizes import examples
from tests.written import WINDOW, WORDS, Written, WrittenOperator, window, words

pytestmark = pytest.mark.e2e


WAIT_S_MAX = 90.0
USER, COUNT = ("user", "string"), ("count", "long")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "words"


def opened(checkpoint: Path, declared: str = "") -> Foreign:
    """Served from a folder beside the checkpoint."""
    declarations = Declarations.parse(declared.encode(), "views.toml")
    return open_foreign(str(checkpoint), checkpoint.parent / "replicas", declarations)


def ask(views: ViewReaders, view: str, *key: str) -> ViewAnswer:
    async def answer() -> ViewAnswer:
        reader = await views.ready(view, Floor(wait_ms=0))
        return await reader.rows(reader.shape.parse_key(key), Floor(wait_ms=0))

    return asyncio.run(answer())


def rows(foreign: Foreign, view: str, *key: str) -> list[dict[str, Any]]:
    """What a server would answer now."""
    tail = Tail(foreign.layout.view(view))
    tail.step()
    tail.close()
    views = ViewReaders(foreign.layout)
    try:
        return ask(views, view, *key).rows
    finally:
        close(views)


def move_elsewhere(foreign: Foreign, view: str) -> None:
    """Bring the replica up to date in another process."""
    script = (
        "import sys; from pathlib import Path; from stateside.core.layout import ViewLayout\n"
        "from stateside.replica.tail import Tail; Tail(ViewLayout(Path(sys.argv[1]))).step()"
    )
    subprocess.run([sys.executable, "-c", script, str(foreign.layout.view(view).root)], check=True, timeout=60)


def close(views: ViewReaders) -> None:
    for replica in views._replicas.values():
        replica.close()


class Server:
    """`stateside serve CHECKPOINT` as a process."""

    def __init__(self, url: str, child: Child) -> None:
        self.url, self.child = url, child

    def get(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/v1/views{path}", params={"wait_ms": 0} if path else {}).json()
        return answer

    def eventually(self, path: str, part: str, expected: Any) -> None:
        """This part of an answer becomes this, or begins with this text."""
        deadline, found = time.monotonic() + WAIT_S_MAX, None
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                answer = self.get(path)
                found = answer.get(part, answer)
                if found == expected or (isinstance(found, str) and found.startswith(str(expected))):
                    return
            assert self.child.returncode() is None, self.child.tail()
            time.sleep(0.05)
        raise AssertionError(f"{found!r} instead of {expected!r}; {self.child.tail()}")

    def says(self, text: str) -> None:
        """The server's log comes to this text: it listens before it tells what it serves."""
        deadline = time.monotonic() + WAIT_S_MAX
        while text not in self.child.tail():
            assert self.child.returncode() is None and time.monotonic() < deadline, self.child.tail()
            time.sleep(0.05)


@contextmanager
def serving(checkpoint: Path, *options: str) -> Iterator[Server]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "stateside",
        "serve",
        str(checkpoint),
        "--dir",
        str(checkpoint.parent / "replicas"),
    ]
    child = Child([*command, "--port", str(port), *options], checkpoint.parent / "server.log")
    try:
        yield Server(f"http://127.0.0.1:{port}", child)
    finally:
        child.stop()


class TestRows:
    def test_they_are_those_of_the_state_as_it_is_stored(self, checkpoint: Path) -> None:
        written = Written(checkpoint, WORDS)
        written.batch(words(a=1, b=2))
        written.batch([*words(a=5), (["b"], None)])
        foreign = opened(checkpoint)
        foreign.start()
        assert rows(foreign, "words", "a") == [{"word": "a", "count": 5}]
        assert rows(foreign, "words", "b") == []

    def test_an_answers_age_counts_from_the_commit(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS).batch(words(a=1))
        os.utime(checkpoint / "commits" / "0", (time.time() - 100,) * 2)
        foreign = opened(checkpoint)
        foreign.start()
        rows(foreign, "words", "a")
        views = ViewReaders(foreign.layout)
        stamp = ask(views, "words", "a").stamp
        close(views)
        assert (stamp.age_basis, str(stamp.position), stamp.batch) == ("commit", "files:1", 0)
        assert 100_000 <= stamp.age_ms < 200_000

    def test_a_view_without_a_key_has_one_row(self, checkpoint: Path) -> None:
        written = Written(checkpoint, WrittenOperator([], [COUNT]))
        written.batch([([], [3])])
        foreign = opened(checkpoint)
        foreign.start()
        assert rows(foreign, "words") == [{"count": 3}]
        written.batch([([], [4])])
        assert rows(foreign, "words") == [{"count": 4}]
        written.batch([([], None)])
        assert rows(foreign, "words") == []

    def test_a_view_without_a_key_is_asked_by_its_name_alone(self, checkpoint: Path) -> None:
        Written(checkpoint, WrittenOperator([], [COUNT])).batch([([], [3])])
        with serving(checkpoint) as server:
            server.eventually("/words/rows", "rows", [{"count": 3}])
            server.says("by nothing: count (long)")
            command = [sys.executable, "-m", "stateside", "get", "words", "--json", "--url", server.url]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            assert '"count": 3' in done.stdout

    def test_keys_that_were_seen_are_rows_without_columns(self, checkpoint: Path) -> None:
        Written(checkpoint, WrittenOperator([USER], [("__dummy__", "void")], "dedupe")).batch([(["emma"], [None])])
        foreign = opened(checkpoint)
        foreign.start()
        assert rows(foreign, "words", "emma") == [{"user": "emma"}]

    def test_sessions_are_asked_by_their_start_and_shown_whole(self, checkpoint: Path) -> None:
        key, value = [USER, ("sessionStartTime", "timestamp")], [USER, ("session_window", WINDOW), COUNT]
        written = Written(checkpoint, WrittenOperator(key, value, "sessionWindowStateStoreSaveExec"))
        written.batch([(["emma", 0], ["emma", window(0, 60_000_000), 3])])
        foreign = opened(checkpoint)
        foreign.start()
        session = {"start": "1970-01-01T00:00:00Z", "end": "1970-01-01T00:01:00Z"}
        expected = [{"user": "emma", "session_window": session, "count": 3}]
        assert rows(foreign, "words", "emma", "1970-01-01T00:00:00Z") == expected

    def test_the_keys_of_state_format_1_are_shown_once(self, checkpoint: Path) -> None:
        conf = {"spark.sql.streaming.aggregation.stateFormatVersion": "1"}
        Written(checkpoint, WrittenOperator([USER], [USER, COUNT]), conf=conf).batch([(["emma"], ["emma", 3])])
        foreign = opened(checkpoint)
        foreign.start()
        assert rows(foreign, "words", "emma") == [{"user": "emma", "count": 3}]


NAMES = st.sampled_from(["a", "b", "sum"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=5),
    "long": st.integers(-(2**63), 2**63 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "boolean": st.booleans(),
    "double": st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0),  # -0.0 is 0.0 in keys
}
COLUMNS = st.lists(st.tuples(NAMES, st.sampled_from(sorted(VALUES))), max_size=3)


class TestAnyQuery:
    @settings(max_examples=examples(20, 100))
    @given(st.data())
    def test_its_rows_are_what_its_batches_leave_whatever_its_columns(self, data: st.DataObject) -> None:
        key, value = data.draw(COLUMNS), data.draw(COLUMNS.filter(bool))

        def row(columns: list[tuple[str, str]]) -> st.SearchStrategy[tuple[Any, ...]]:
            return st.tuples(*(st.none() | VALUES[type_] for _, type_ in columns))

        batches = data.draw(
            st.lists(st.dictionaries(row(key), st.none() | row(value), max_size=4), min_size=1, max_size=3)
        )
        left: dict[Any, Any] = {}
        with TemporaryDirectory() as folder:
            written = Written(Path(folder) / "words", WrittenOperator(key, value))
            for batch in batches:
                written.batch([*batch.items()])
                left |= batch
            foreign = opened(written.folder)
            foreign.start()
            tail = Tail(foreign.layout.view("words"))
            tail.step()
            tail.close()
            reader = ViewReader(foreign.layout.view("words"))
            found = asyncio.run(reader.rows((), Floor(wait_ms=0))).rows
            reader.close()
        expected = [(*k, *v) for k, v in left.items() if v is not None]
        assert sorted(repr((*each.values(),)) for each in found) == sorted(map(repr, expected))


class TestRefusals:
    def test_what_cannot_be_served_is_told_beside_what_is(self, checkpoint: Path) -> None:
        array = {"type": "array", "elementType": "long", "containsNull": True}
        Written(
            checkpoint,
            WORDS,
            WrittenOperator([USER], [COUNT], "madeUpIn2030"),
            WrittenOperator([("tags", array)], [COUNT]),
        ).batch(words(a=1))
        foreign = opened(checkpoint)
        foreign.start()
        assert rows(foreign, "words-0", "a") == [{"word": "a", "count": 1}]
        views = ViewReaders(foreign.layout)
        states = {state["view"]: (state["state"], state["why"]) for state in views.states()}
        assert states["words-0"] == ("unknown", None)
        assert states["words-1"][0] == states["words-2"][0] == "refused"
        assert "madeUpIn2030" in states["words-1"][1]
        assert "key column of type" in states["words-2"][1]
        with pytest.raises(ViewInvalid, match="madeUpIn2030"):
            views.get("words-1")

    def test_a_query_of_which_nothing_can_be_served_is_refused_at_the_start(self, checkpoint: Path) -> None:
        Written(checkpoint, WrittenOperator([USER], [COUNT], "madeUpIn2030")).batch()
        with pytest.raises(ViewInvalid, match="madeUpIn2030"):
            opened(checkpoint).start()
        assert not (checkpoint.parent / "replicas").exists()


class TestWaiting:
    def test_a_checkpoint_that_appears_later_is_served_then(self, checkpoint: Path) -> None:
        with serving(checkpoint, "--wait") as server:
            server.eventually("", "note", f"There is no folder at {checkpoint}: waiting")
            assert "waiting for a query" in server.get("/words/rows/a")["next_step"]
            checkpoint.mkdir()
            server.eventually("", "note", f"No query has started at {checkpoint} yet")
            written = Written(checkpoint, WORDS)
            server.eventually("", "note", f"The query at {checkpoint} has not finished its first batch")
            written.batch(words(a=1))
            server.eventually("/words/rows/a", "rows", [{"word": "a", "count": 1}])
            assert "note" not in server.get("")
            server.says("Views served: words")

    def test_a_folder_that_is_not_there_is_refused_unless_it_is_waited_for(self, checkpoint: Path) -> None:
        with pytest.raises(CheckpointInvalid, match="--wait"):
            opened(checkpoint).start()

    def test_a_query_that_turns_out_to_keep_no_state_is_told(self, checkpoint: Path) -> None:
        checkpoint.mkdir()
        foreign = opened(checkpoint)
        foreign.start()
        Written(checkpoint).batch()
        assert "keeps no state" in (foreign.step().note or "")
        assert "keeps no state" in (ViewReaders(foreign.layout).note() or "")


class TestReplacement:
    NUMBERS = WrittenOperator([("number", "long"), ("word", "string")], [("sum", "double"), COUNT])

    def test_another_query_with_other_columns_is_inferred_anew_while_it_is_served(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS).batch(words(a=1))
        with serving(checkpoint) as server:
            server.eventually("/words/rows/a", "rows", [{"word": "a", "count": 1}])
            shutil.rmtree(checkpoint)
            written = Written(checkpoint, self.NUMBERS)
            written.batch([([7, "a"], [1.5, 2])])
            written.batch([([8, "b"], [2.5, 3])])
            server.eventually("/words/rows/8", "rows", [{"number": 8, "word": "b", "sum": 2.5, "count": 3}])
            assert server.get("/words/rows/7")["rows"] == [{"number": 7, "word": "a", "sum": 1.5, "count": 2}]
            assert "Traceback" not in server.child.tail()

    def test_a_reader_of_the_query_before_never_reads_rows_of_the_next_one(self, checkpoint: Path) -> None:
        """The same types, another meaning. The tail runs in another process, as a server's does."""
        Written(checkpoint, WORDS).batch(words(a=1))
        foreign = opened(checkpoint)
        foreign.start()
        rows(foreign, "words", "a")
        views = ViewReaders(foreign.layout)
        before = views.get("words")
        shutil.rmtree(checkpoint)
        Written(checkpoint, WrittenOperator([("name", "string")], [("sum", "long")])).batch([(["a"], [99])])
        foreign.step()
        move_elsewhere(foreign, "words")
        with pytest.raises(NotFreshEnough, match="another query's now"):
            asyncio.run(before.rows(["a"], Floor(wait_ms=0)))
        assert ask(views, "words", "a").rows == [{"name": "a", "sum": 99}]
        close(views)

    def test_a_tail_of_the_query_before_takes_nothing_of_the_next_one(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS).batch(words(a=1))
        foreign = opened(checkpoint)
        foreign.start()
        tail = Tail(foreign.layout.view("words"))
        tail.step()
        shutil.rmtree(checkpoint)
        Written(checkpoint, WORDS).batch(words(a=99))
        with pytest.raises(ViewInvalid, match="was inferred from the query"):
            tail.step()
        foreign.step()
        tail.close()
        assert rows(foreign, "words", "a") == [{"word": "a", "count": 99}]

    def test_views_that_the_next_query_has_not_are_gone(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS, WORDS).batch(words(a=1), words(b=1))
        with serving(checkpoint) as server:
            server.eventually("/words-1/rows/b", "rows", [{"word": "b", "count": 1}])
            shutil.rmtree(checkpoint)
            Written(checkpoint, WORDS).batch(words(c=1))
            server.eventually("/words/rows/c", "rows", [{"word": "c", "count": 1}])
            assert server.get("/words-1/rows/b")["status"] == 404
        foreign = opened(checkpoint)
        foreign.start()
        assert [path.name for path in (foreign.layout.root / "views").iterdir()] == ["words"]

    def test_a_checkpoint_that_is_away_leaves_the_last_batch_to_readers(self, checkpoint: Path) -> None:
        written = Written(checkpoint, WORDS)
        written.batch(words(a=1))
        with serving(checkpoint) as server:
            server.eventually("/words/rows/a", "rows", [{"word": "a", "count": 1}])
            checkpoint.rename(checkpoint.parent / "away")
            server.eventually("", "note", "There is no folder")
            assert server.get("/words/rows/a")["rows"] == [{"word": "a", "count": 1}]
            (checkpoint.parent / "away").rename(checkpoint)
            written.batch(words(a=2))
            server.eventually("/words/rows/a", "rows", [{"word": "a", "count": 2}])


class TestDeclarations:
    ORDERS = WrittenOperator([("customer", "string"), ("country", "string")], [("sum", "long"), ("count", "long")])
    DECLARED = """
        [views.words]
        name = "spending"
        key = ["country", "customer"]
        rename = { sum = "paid" }
        rollups = [["country"]]
        columns.orders = { count = ["count"] }
    """

    def written(self, checkpoint: Path) -> Written:
        written = Written(checkpoint, self.ORDERS)
        written.batch([(["emma", "de"], [10, 1]), (["ben", "de"], [5, 2]), (["zoe", "fr"], [7, 4])])
        return written

    def test_a_view_is_served_as_it_is_declared(self, checkpoint: Path) -> None:
        self.written(checkpoint)
        foreign = opened(checkpoint, self.DECLARED)
        foreign.start()
        assert rows(foreign, "spending", "de") == [
            {"country": "de", "customer": "ben", "paid": 5, "orders": 2},
            {"country": "de", "customer": "emma", "paid": 10, "orders": 1},
        ]

    def test_its_rollups_are_kept(self, checkpoint: Path) -> None:
        written = self.written(checkpoint)
        foreign = opened(checkpoint, self.DECLARED)
        foreign.start()
        rows(foreign, "spending", "de")
        written.batch([(["emma", "de"], None), (["zoe", "fr"], [9, 5])])
        rows(foreign, "spending", "de")
        views = ViewReaders(foreign.layout)
        reader = views.get("spending")
        answer = asyncio.run(reader.rollup(["country"], [], Floor(wait_ms=0)))
        close(views)
        assert answer.rows == [{"country": "de", "orders": 2}, {"country": "fr", "orders": 5}]

    def test_another_declaration_makes_the_replica_anew(self, checkpoint: Path) -> None:
        self.written(checkpoint)
        for declared, key, first in (
            ("", "emma", "emma"),
            ("[views.words]\nkey = ['country', 'customer']", "fr", "zoe"),
            ("", "emma", "emma"),
        ):
            foreign = opened(checkpoint, declared)
            foreign.start()
            assert [row["customer"] for row in rows(foreign, "words", key)] == [first]

    def test_two_servers_do_not_fight_over_a_folder(self, checkpoint: Path) -> None:
        self.written(checkpoint)
        foreign = opened(checkpoint)
        foreign.start()
        writer = ReplicaWriter(foreign.layout.view("words").replica)
        opened(checkpoint).start()  # the same: it reads what the other one moves
        with pytest.raises(RequestInvalid, match="other declarations"):
            opened(checkpoint, "[views.words]\nkey = ['country', 'customer']").start()
        writer.close()

    def test_a_declaration_that_does_not_fit_is_refused_before_anything_is_written(self, checkpoint: Path) -> None:
        self.written(checkpoint)
        with pytest.raises(SettingInvalid, match="There are: words"):
            opened(checkpoint, "[views.spending]").start()
        assert not (checkpoint.parent / "replicas").exists()


class TestTheFolder:
    def test_by_default_it_is_this_users_and_always_the_same_for_a_place(
        self, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        folder = default_folder(str(checkpoint))
        assert folder.parent == tmp_path / "state" / "stateside"
        assert folder.name.startswith("words-")
        assert folder == default_folder(str(checkpoint))
        assert folder != default_folder(str(tmp_path / "other" / "words"))
        assert open_foreign(str(checkpoint)).layout.root == folder

    def test_it_never_lies_in_the_checkpoint(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS).batch(words(a=1))
        with pytest.raises(RequestInvalid, match="never written to"):
            open_foreign(str(checkpoint), checkpoint / "replicas")

    def test_one_that_is_something_else_is_refused(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS).batch(words(a=1))
        (checkpoint.parent / "replicas" / "views").mkdir(parents=True)
        with pytest.raises(RequestInvalid, match="something else"):
            opened(checkpoint).start()

    def test_one_of_another_checkpoint_is_refused(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS).batch(words(a=1))
        opened(checkpoint).start()
        Written(checkpoint.parent / "other", WORDS).batch(words(a=1))
        with pytest.raises(RequestInvalid, match="another checkpoint"):
            opened(checkpoint.parent / "other").start()

    def test_nothing_is_ever_written_to_the_checkpoint(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS).batch(words(a=1))

        def all_files() -> dict[str, tuple[int, int]]:
            paths = [checkpoint, *checkpoint.rglob("*")]
            return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}

        before = all_files()
        with serving(checkpoint) as server:
            server.eventually("/words/rows/a", "rows", [{"word": "a", "count": 1}])
        assert all_files() == before

    def test_a_damaged_note_is_no_note(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS).batch(words(a=1))
        foreign = opened(checkpoint)
        foreign.start()
        foreign.layout.inferred.write_text("{")
        assert ForeignJob.load(foreign.layout) == ForeignJob()

    def test_a_damaged_pointer_is_told(self, checkpoint: Path) -> None:
        Written(checkpoint, WORDS).batch(words(a=1))
        foreign = opened(checkpoint)
        foreign.start()
        foreign.layout.pointer.write_text("[]")
        with pytest.raises(CheckpointInvalid, match="pointer"):
            Tail(foreign.layout.view("words"))
