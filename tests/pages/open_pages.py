"""What open pages ask, without the browsers, of which this machine could draw a few at a time only.

Each does as `bill.js` does: it listens to the stream of one customer's bill, which tells the amounts. For its chart it
asks for the days as well, every `COURSE_S`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.pages.stage import Stage

PACKAGE_MICROS = 4_990_000
OPENED_AT_ONCE = 20
COURSE_S = 3.0  # as in bill.js
WAIT_S_MAX = 60.0
BILL = "/v1/customers/ben/bill"
_AGE = re.compile(rb'"age_ms": ?([0-9]+)')
_LENGTH = re.compile(rb"content-length: ([0-9]+)", re.IGNORECASE)


@dataclass
class Seen:
    """When each amount was seen, and the ages that the stream told, in the order of things."""

    at_s: dict[int, float] = field(default_factory=dict)
    ages_ms: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Told:
    """After how many seconds each page had each new amount, and the oldest stamp that any of them was told of."""

    delays_s: Sequence[float]
    age_ms_max: int


async def told(stage: Stage, url: str, *, pages: int, events: int = 1, every_s: float = 1.0) -> Told:
    """What so many pages of one customer see of events that each change the bill, one after the other."""
    port = int(url.rpartition(":")[2])
    amount = await _amount(await Connection.open(port))
    last = amount + events * PACKAGE_MICROS
    all_seen, opening, ready = [Seen() for _ in range(pages)], asyncio.Semaphore(OPENED_AT_ONCE), asyncio.Semaphore(0)
    tasks = [asyncio.create_task(_page(port, opening, ready, last, seen)) for seen in all_seen]
    for _ in range(pages):
        await ready.acquire()
    began_s = {}
    for number in range(1, events + 1):
        began_s[amount + number * PACKAGE_MICROS] = time.monotonic()
        await asyncio.to_thread(stage.use, "ben", "package", 1, name="weekend")
        await asyncio.sleep(every_s if number < events else 0)
    await asyncio.gather(*tasks)
    delays_s = [
        min(at_s for found, at_s in seen.at_s.items() if found >= wanted) - begun
        for seen in all_seen
        for wanted, begun in began_s.items()
    ]
    return Told(delays_s, max(age_ms for seen in all_seen for age_ms in seen.ages_ms))


async def _page(port: int, opening: asyncio.Semaphore, ready: asyncio.Semaphore, last: int, seen: Seen) -> None:
    amounts: asyncio.Queue[int] = asyncio.Queue()
    async with opening:
        asking = await Connection.open(port)
        listening = asyncio.create_task(_listen(await Connection.open(port), amounts, seen))
        amount = await asyncio.wait_for(amounts.get(), WAIT_S_MAX)
    ready.release()
    course_s = 0.0
    while amount < last:
        amount = await asyncio.wait_for(amounts.get(), WAIT_S_MAX)
        if time.monotonic() - course_s >= COURSE_S:
            course_s = time.monotonic()
            await asking.get(f"{BILL}/course")
    listening.cancel()
    asking.writer.close()


async def _amount(asking: Connection) -> int:
    document = json.loads(await asking.get(BILL))
    return int(document["periods"][-1]["charged_micros"])


async def _listen(connection: Connection, amounts: asyncio.Queue[int], seen: Seen) -> None:
    connection.ask(f"{BILL}/changes")
    kind = b""
    try:
        while line := await connection.reader.readline():
            if line.startswith(b"event: "):
                kind = line[7:].strip()
            if line.startswith(b"data: "):
                found = _AGE.search(line)
                assert found is not None, line
                seen.ages_ms.append(int(found[1]))
                periods = json.loads(line[6:]).get({b"snapshot": "periods", b"changes": "changed"}.get(kind, ""), [])
                if periods:
                    amount = int(periods[-1]["charged_micros"])
                    seen.at_s.setdefault(amount, time.monotonic())
                    amounts.put_nowait(amount)
    finally:
        connection.writer.close()


@dataclass(frozen=True)
class Connection:
    """One that is kept, as a browser keeps it: a hundred pages of a client with more to it would measure the client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    def ask(self, path: str) -> None:
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    async def get(self, path: str) -> bytes:
        self.ask(path)
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        found = _LENGTH.search(head)
        assert found is not None, head
        return await self.reader.readexactly(int(found[1]))
