"""A replica whose files were damaged: every answer is right or refused; it is rebuilt by itself, and all is right.

STATESIDE_DAMAGE_SEED repeats a run, which prints its seed; STATESIDE_DAMAGES says how many damages there are.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateside.core.errors import StatesideError
from stateside.core.layout import Layout
from stateside.replica import btree, integrity, page_reader
from stateside.replica.btree import Root
from stateside.replica.replica_reader import ReplicaReader
from stateside.replica.tail import Tail
from stateside.serving.access.guard import Guard
from stateside.serving.changes.sse import EventId
from stateside.serving.fast_path import Peer as Connected
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from tests.replica.spark_job import Changes, Job, catalogue
from tests.serving.sql.asking import Asker
from tests.sizes import FULL, sized

SEED = int(os.environ.get("STATESIDE_DAMAGE_SEED", random.randrange(1 << 32) if FULL else 1))
DAMAGES = int(os.environ.get("STATESIDE_DAMAGES", sized(8, 1_000)))
PAGE_BYTES = 4_096
CUSTOMERS, COUNTRIES, BATCHES = 700, ("de", "fr", "it"), 8
ROLLUPS = [["country"], ["customer"], []]
REFUSED = "replica-invalid"

Answers = dict[str, Any]


def orders(batch: int) -> Changes:
    """Every customer in the first batch, some of them later, and some are gone again."""
    changed = range(batch % 3, CUSTOMERS, 1 if batch == 0 else 11 + batch)
    return {
        (f"c{number:04}", country): None if batch and number % 50 == 7 else (batch + 1, 1_000 * batch + number)
        for number in changed
        for country in COUNTRIES
    }


@dataclass(frozen=True)
class Shop:
    """The view, its replica as it should be, and the numbers of its pages by what is in them."""

    layout: Layout
    job: Job
    whole: Path
    pages: dict[str, list[int]]
    older: str  # the id of the changes up to an older batch

    def restore(self) -> None:
        replica = self.job.view.replica
        shutil.rmtree(replica)
        shutil.copytree(self.whole, replica)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    layout = Layout(tmp_path_factory.mktemp("shop"))
    job = Job(layout.view("spending"))
    job.view.catalogue.write_bytes(catalogue(ROLLUPS).as_json())
    tail: Tail | None = None
    for batch in range(BATCHES):
        job.run(orders(batch))
        tail = tail or Tail(job.view)
        tail.step()
    assert tail is not None
    tail.close()
    whole = tmp_path_factory.mktemp("whole") / "replica"
    shutil.copytree(job.view.replica, whole)
    replica = ReplicaReader(job.view.replica)
    with replica.snapshot(as_of=BATCHES - 4) as snapshot:
        applied = snapshot.batch()
        assert applied is not None
    replica.close()
    return Shop(layout, job, whole, pages_of(whole), str(EventId.of(applied)))


def pages_of(folder: Path) -> dict[str, list[int]]:
    """The pages of each tree, branches apart, and those that are in use no more."""
    pages = page_reader.VerifiedPages(folder)
    transaction = pages.checksums.published()
    state = pages.checksums.state(transaction)
    assert state is not None
    known = pages.known(transaction).roots
    trees = {name.decode(): root for name, root in known.items()} | {
        "free list": Root.parse(state.free),
        "names": Root.parse(state.main),
    }
    found: dict[str, list[int]] = {"meta pages": [0, 1], "indexes": []}
    for name, root in trees.items():
        level = [root.page] if root.depth else []
        for _ in range(root.depth - 1):
            found["indexes"] += level
            level = [number for page in level for number in btree.below(pages.page(page, transaction))]
        found[name] = list(level)
        for page in level:
            for first, count in btree.overflow_runs(pages.page(page, transaction), PAGE_BYTES):
                found[name] += range(first, first + count)
    pages.close()
    used = {number for numbers in found.values() for number in numbers}
    found["unused"] = [n for n in range((folder / "data.mdb").stat().st_size // PAGE_BYTES) if n not in used]
    return found


# What is asked


class Asking:
    """A worker's application over the folder, asked without a socket, and its SQL."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._views = ViewReaders(shop.layout)
        self._app = Application(self._views, guard=Guard.of(shop.layout))
        self._sql = Asker(shop.layout, views=self._views)
        self.fast = 0  # answers of the fast path

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *error: object) -> None:
        for points in self._app.fast_path._kept.values():
            points.release()
        for replica in self._views._replicas.values():
            replica.close()

    def all(self) -> Answers:
        """Every question's answer, or the code with which it was refused."""
        return {name: self._answered(ask) for name, ask in self._questions()}

    def _questions(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        view, last = "/v1/views/spending", BATCHES - 1
        get, short = self._get, self._short
        for customer in ("c0000", "c0007", "c0011", "c0349", "c0698", "c0699", "c9999"):
            yield f"{customer} by the fast path", partial(short, f"GET {view}/rows/{customer}/de")
            yield f"{customer}", partial(get, f"{view}/rows/{customer}")
        keys = [[f"c{number:04}", "fr"] for number in range(0, CUSTOMERS + 40, 9)]
        yield "lookup by the fast path", lambda: short(f"POST {view}/lookup", json.dumps({"keys": keys}))
        yield "lookup", lambda: get(f"{view}/lookup?wait_ms=0", {"keys": keys})
        yield "scan", lambda: self._scan(f"{view}/rows?limit=500")
        yield "scan as of", lambda: self._scan(f"{view}/rows?limit=900&as_of={last - 3}")
        yield "where", lambda: self._scan(f"{view}/rows?limit=1000&where=total>1000")
        yield "row as of", lambda: get(f"{view}/rows/c0011?as_of={last - 2}")
        for by in ("country", "customer"):
            yield f"rollup by {by}", partial(get, f"{view}/rollup/{by}")
        yield "total", lambda: get(f"{view}/rollup")
        yield "total as of", lambda: get(f"{view}/rollup?as_of={last - 4}")
        yield "snapshot of changes", lambda: get(f"{view}/changes?key=c0349", accept="application/json")
        yield "changes", lambda: get(f"{view}/changes?after={self._shop.older}", accept="application/json")
        yield "view", lambda: get(view)
        yield "sql", lambda: self._sql.rows("select count(*), sum(total), min(customer), max(customer) from spending")
        yield "sql rollup", lambda: self._sql.rows("from spending__by_country order by country")

    def _answered(self, ask: Callable[[], Any]) -> Any:
        try:
            return _settled(ask())
        except StatesideError as error:
            return f"refused: {error.code}"

    def _get(self, path: str, body: Any = None, accept: str = "*/*") -> Any:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                if body is not None:
                    return await client.post(path, json=body)
                return await client.get(path, headers={"accept": accept})

        return _document(asyncio.run(ask()))

    def _scan(self, path: str) -> Any:
        page = self._get(path)
        while isinstance(page, dict) and page["cursor"] is not None:
            more = self._get(f"/v1/views/spending/rows?cursor={page['cursor']}")
            if not isinstance(more, dict):
                return more
            page = more | {"rows": page["rows"] + more["rows"]}
        return page

    def _short(self, line: str, body: str = "") -> Any:
        """As a connection's first bytes; by the full path if that has to answer."""
        length = f"content-length: {len(body)}\r\n" if body else ""
        data = f"{line} HTTP/1.1\r\nhost: 127.0.0.1\r\n{length}\r\n{body}".encode()

        async def ask() -> bytes | None:
            return self._app.fast_path.answer(Connected("127.0.0.1"), data)

        answer = asyncio.run(ask())
        self.fast += answer is not None
        if answer is None:
            return self._get(line.split()[1], json.loads(body) if body else None)
        return json.loads(answer.partition(b"\r\n\r\n")[2])


def _document(response: httpx.Response) -> Any:
    document = response.json()
    if response.status_code == 200:
        return document
    code = document["type"].rpartition(":")[2]
    assert response.status_code != 500, document
    assert (code == REFUSED) == (response.status_code == 503), document
    return f"refused: {code}"


def _settled(answer: Any) -> Any:
    """Without its age, and the name of the replica."""
    if isinstance(answer, dict):
        return {name: _settled(value) for name, value in answer.items() if name not in ("age_ms", "replica", "cursor")}
    return [_settled(each) for each in answer] if isinstance(answer, list | tuple) else answer


# What is damaged


def damage(shop: Shop, draw: random.Random) -> str:
    """Damage a file of the replica; what was done."""
    replica = shop.job.view.replica
    kind, what = draw.choice(["flip", "swap", "zero", "cut"]), draw.choice(sorted(shop.pages))
    name = "checksums" if draw.random() < 0.1 else "data.mdb"
    path = replica / name
    content = bytearray(path.read_bytes())
    pages = shop.pages[what] if name == "data.mdb" else range(len(content) // PAGE_BYTES)
    page = draw.choice(pages or [0])
    at = page * PAGE_BYTES
    if kind == "cut":
        os.truncate(path, draw.choice([0, draw.randrange(len(content)), at, at + draw.randrange(PAGE_BYTES)]))
        return f"{name} cut"
    if kind == "flip":
        content[at + draw.randrange(PAGE_BYTES)] ^= 1 << draw.randrange(8)
    elif kind == "zero":
        content[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)
    else:
        other = draw.randrange(len(content) // PAGE_BYTES) * PAGE_BYTES
        first, second = bytes(content[at : at + PAGE_BYTES]), bytes(content[other : other + PAGE_BYTES])
        content[at : at + PAGE_BYTES], content[other : other + PAGE_BYTES] = second, first
    with path.open("r+b") as file:
        file.write(content)
    return f"{name} {kind} {what}" if name == "data.mdb" else f"{name} {kind}"


@pytest.mark.timeout(3_600)  # in the long run
def test_a_damaged_replica_answers_right_or_not_at_all_and_is_rebuilt(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"STATESIDE_DAMAGE_SEED={SEED}, {DAMAGES} damages")
    monkeypatch.setattr(integrity, "SCRUB_BYTES_S", 1 << 40)  # the whole file at each step
    monkeypatch.setattr(integrity, "SCRUB_S_MAX", 60.0)
    draw, found, done = random.Random(SEED), Counter[str](), Counter[str]()
    shop.restore()
    with Asking(shop) as asking:
        truth = asking.all()
        assert asking.fast == sum("by the fast path" in question for question in truth)
    assert not [answer for answer in truth.values() if "refused" in str(answer)], truth
    assert {(row["customer"], row["country"]): (row["orders"], row["total"]) for row in truth["scan"]["rows"]} == (
        shop.job.rows
    )
    for number in range(DAMAGES):
        if number % 100 == 99:
            print(f"{number + 1} damages, no wrong answer")
        shop.restore()
        with Asking(shop) as asking:
            if number % 2:  # it is open, and was asked already
                asking.all()
            what = damage(shop, draw)
            answers = asking.all()
        for question, answer in answers.items():
            assert answer in (truth[question], f"refused: {REFUSED}"), (SEED, number, what, question)
        refused = [question for question, answer in answers.items() if answer != truth[question]]
        found["refused" if refused else "all answered"] += 1
        done[what] += 1
        rebuilt = follow(shop)
        assert rebuilt or not refused, (SEED, number, what, refused)
        with Asking(shop) as asking:
            again = asking.all()
        for question, answer in again.items():
            gone = rebuilt and answer == "refused: history-gone"
            assert answer == truth[question] or gone, (SEED, number, what, question)
    print(f"{dict(found)}\n{dict(sorted(done.items()))}")
    assert found["refused"] > DAMAGES // 4, "these damages show nothing"


def follow(shop: Shop) -> bool:
    """Let a server's tail come by; whether it rebuilt the replica."""
    tail = Tail(shop.job.view)
    try:
        for _ in range(2):
            tail.step()
            time.sleep(0.002)
        aside = shop.job.view.replica / "damaged"
        return aside.exists()
    finally:
        tail.close()
