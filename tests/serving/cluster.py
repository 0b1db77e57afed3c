"""Several real servers over one checkpoint, which is written without Spark: shares, copies of them, and whole ones."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import httpx

from stateside.core.processes import Child, free_port
from tests.written import Values, Written, WrittenOperator

ORDERS = WrittenOperator(
    [("customer", "string"), ("country", "string")],
    [("count", "long"), ("sum", "long"), ("sum_2", "double"), ("count_2", "long")],
)
DECLARED = """
[views.orders]
name = "spending"
key = ["customer", "country"]
rollups = [["country"], ["customer"], []]

[views.orders.columns]
orders = { count = "count" }
total = { sum = "sum" }
mean = { average = ["sum_2", "count_2"] }
"""
COUNTRIES = ("de", "fr", "it")
WAIT_S_MAX = 90.0


def customers(count: int) -> list[str]:
    return [f"c{number:03}" for number in range(count)]


def order(batch: int, number: int, country: str) -> tuple[Values, Values]:
    """A row of the state: of the same batch all have the same count, so that an answer of two batches shows."""
    total = 1_000 * batch + number
    return [f"c{number:03}", country], [batch + 1, total, total / 10, 3]


class Cluster:
    """A checkpoint with a view `spending`, and the servers that are started on it."""

    def __init__(self, folder: Path, customers: int = 40) -> None:
        self.folder, self.customers = folder, customers
        self.written = Written(folder / "orders", ORDERS)
        (folder / "views.toml").write_text(DECLARED)
        self.servers: dict[str, tuple[Child, str]] = {}
        self.batch()

    @property
    def announced(self) -> Path:
        return self.folder / "announced"

    def batch(self) -> int:
        """One more batch, in which every row changes; its number."""
        batch = self.written.batches
        rows = [order(batch, number, country) for number in range(self.customers) for country in COUNTRIES]
        self.written.batch(rows)
        return batch

    def start(self, name: str, share: str | None = None, *more: str) -> str:
        """Start a server, of a share or of all keys, and wait until it answers and is announced; its address."""
        self.begin(name, share, *more)
        return self.wait_for(name)

    def start_all(self, **shares: str | None) -> list[str]:
        """Start several at the same time, and wait until each of them sees all of them."""
        for name, share in shares.items():
            self.begin(name, share)
        return [self.wait_for(name, *shares) for name in shares]

    def begin(self, name: str, share: str | None = None, *more: str, announced: Path | None = None) -> None:
        """Start a server, with more options if there are any, and do not wait for it."""
        port = free_port()
        command = [sys.executable, "-m", "stateside", "serve", str(self.folder / "orders"), "--port", str(port)]
        command += ["--declare", str(self.folder / "views.toml"), "--dir", str(self.folder / f"replicas-{name}")]
        command += ["--announce", str(announced or self.announced), "--name", name, *more]
        child = Child([*command, "--share", share] if share else command, self.folder / f"{name}.log")
        self.servers[name] = child, f"http://127.0.0.1:{port}"

    def wait_for(self, name: str, *others: str) -> str:
        """Wait until a server answers and sees itself, and others, announced; its address."""
        (child, url), deadline = self.servers[name], time.monotonic() + WAIT_S_MAX
        while True:
            assert child.returncode() is None, child.tail()
            assert time.monotonic() < deadline, child.tail()
            try:
                found = httpx.get(f"{url}/v1/servers").json()["servers"]
                if {name, *others} <= {server["name"] for server in found if server["views"]}:
                    return url
            except (httpx.TransportError, ValueError, LookupError):
                pass
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill a server's main process; its workers die with it."""
        child, _ = self.servers.pop(name)
        os.kill(child.pid, signal.SIGKILL)
        child.stop()

    def stop(self, name: str) -> None:
        """Have a server stop in order."""
        self.servers.pop(name)[0].stop()

    def close(self) -> None:
        for name in list(self.servers):
            self.stop(name)
