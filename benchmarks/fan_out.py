"""How long after Spark's commit a thousand watchers of one server are told what changed.

Spark's part is played; the tail, the server's worker and the connections, over loopback, are real. Once each watches a
row of its own, all of which change in every batch: a thousand different events. Once all watch the same rollup.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

from benchmarks.compare import Figure
from benchmarks.played_spark import PlayedSpark
from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port

WATCHERS = 1_000
BATCHES = 60
GAP_S_MAX = 0.1
CONNECT_AT_ONCE = 50
WAIT_S_MAX = 20.0
_TOLD = re.compile(rb"event: changes\nid: ([0-9]+)-")


def run(folder: Path) -> Iterator[Figure]:
    _allow_connections()
    for name, address in (("a row each", "key={}"), ("one rollup", "rollup=")):
        layout = Layout(folder / name.replace(" ", "-"))
        spark = PlayedSpark(layout.view("bench"), rollups=((),))
        spark.commit(spark.changelogs(np.arange(WATCHERS)))
        with _server(layout) as (port, child):
            delays_ms, busy_ms = asyncio.run(_told(spark, port, child, f"/v1/views/bench/changes?{address}"))
        told = f"{WATCHERS:,} watchers of {name} told after the commit"
        for label, share in (("p50", 50), ("p99", 99)):
            yield Figure(f"{told}, {label}", "ms", statistics.quantiles(delays_ms, n=100)[share - 1])
        yield Figure(f"{told}, the server's processor time a batch", "ms", busy_ms)


async def _told(spark: PlayedSpark, port: int, child: Child, address: str) -> tuple[list[float], float]:
    """The milliseconds from each commit to each watcher's receipt, and those that the server computed a batch."""
    chance, watchers = random.Random(1), await _watchers(port, address)
    delays_ms: list[float] = []
    began_s = _busy_s(child.pid)
    for number in range(1, BATCHES + 1):
        changelogs = spark.changelogs(np.arange(WATCHERS), number)
        await asyncio.sleep(chance.random() * GAP_S_MAX)
        spark.commit(changelogs)
        committed_s = time.perf_counter()
        await asyncio.wait_for(asyncio.gather(*(each.told(number) for each in watchers)), WAIT_S_MAX)
        delays_ms += [1_000 * (each.told_s - committed_s) for each in watchers]
    busy_ms = 1_000 * (_busy_s(child.pid) - began_s) / BATCHES
    for each in watchers:
        each.close()
    return delays_ms, busy_ms


class _Watcher(asyncio.Protocol):
    """A client that looks at nothing but the id of what it is told, and when."""

    def __init__(self, request: bytes) -> None:
        self._request, self._content = request, b""
        self._batch, self._waiting = -1, asyncio.get_running_loop().create_future()
        self.told_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self._content += data
        if b"event: snapshot" in self._content and self._batch < 0:
            self._hear(0, now_s)
        for found in _TOLD.finditer(self._content):
            self._hear(int(found[1]), now_s)

    def _hear(self, batch: int, now_s: float) -> None:
        self._batch, self.told_s, self._content = batch, now_s, b""
        if not self._waiting.done():
            self._waiting.set_result(None)

    async def told(self, batch: int) -> None:
        while self._batch < batch:
            await self._waiting
            self._waiting = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        self._transport.close()


async def _watchers(port: int, address: str) -> list[_Watcher]:
    loop, watchers = asyncio.get_running_loop(), []
    for number in range(WATCHERS):
        request = f"GET {address.format(number)} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        _, watcher = await loop.create_connection(lambda asked=request: _Watcher(asked), "127.0.0.1", port)  # type: ignore[misc]
        watchers.append(watcher)
        if number % CONNECT_AT_ONCE == 0:
            await watcher.told(0)
    await asyncio.wait_for(asyncio.gather(*(each.told(0) for each in watchers)), WAIT_S_MAX)
    return watchers


@contextmanager
def _server(layout: Layout) -> Iterator[tuple[int, Child]]:
    port = free_port()
    command = [sys.executable, "-m", "stateside", "serve", "--dir", str(layout.root), "--port", str(port)]
    child = Child(command, layout.root / "server.log")
    try:
        _wait(f"http://127.0.0.1:{port}/v1/views/bench/rows/1", child)
        yield port, child
    finally:
        child.stop()


def _wait(url: str, child: Child) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline_s and child.returncode() is None:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"no server answered: {child.tail()}")


def _busy_s(pid: int) -> float:
    """The processor's time that a process and its children have had; none where the kernel does not tell."""
    process = Path("/proc") / str(pid)
    if not process.exists():
        return 0.0
    user, system = (process / "stat").read_text().rpartition(") ")[2].split()[11:13]
    children = (process / "task" / str(pid) / "children").read_text().split()
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") + sum(_busy_s(int(child)) for child in children)


def _allow_connections() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
