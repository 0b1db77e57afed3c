"""Lookups over HTTP against Redis, each asked by its own load generator over 32 connections on loopback.

Ours: `stateside serve` with one worker, as Redis has one thread, over a view of a hundred thousand customers, asked
over HTTP/1.1 by h2load, and for many keys at once by wrk, which can send another body each time; every answer is JSON
with its stamp. The peer: redis-server without persistence, which has the same customers with values of the same size,
asked by redis-benchmark. All ask for keys at random. Debian's packages are nghttp2-client, wrk, redis-server and
redis-tools.

With the Python of another installation in STATESIDE_BENCH_BEFORE, its server is a second peer: a version before.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.compare import Figure, Result
from stateside.core.errors import SetupError
from stateside.core.processes import Child, free_port
from tests.written import Written, WrittenOperator

CUSTOMERS = 100_000
CONNECTIONS = 32
WORKERS = 1
SECONDS = 4
ROUNDS = int(os.environ.get("STATESIDE_BENCH_ROUNDS", "5"))
KEYS = 100  # of a multi-get
BEFORE = os.environ.get("STATESIDE_BENCH_BEFORE")
WAIT_S_MAX = 60.0
_STATE = WrittenOperator([("customer", "string")], [("count", "long"), ("sum", "long")])
_DECLARED = """
[views.orders]
name = "spending"
key = ["customer"]

[views.orders.columns]
orders = { count = "count" }
total = { sum = "sum" }
"""

_REDIS_KEY = "key:__rand_int__"  # twelve digits, filled in by redis-benchmark
_MANY = """
local asked, next = {}, 0
function init()
  for number = 1, 2000 do
    local keys = {}
    for place = 1, KEYS do keys[place] = string.format('"c%012d"', math.random(0, CUSTOMERS - 1)) end
    asked[number] = wrk.format("POST", "/v1/views/spending/lookup", nil, '{"keys":[' .. table.concat(keys, ",") .. ']}')
  end
end
function request()
  next = next % #asked + 1
  return asked[next]
end
"""


def run(folder: Path) -> Iterator[Result | Figure]:
    for program in ("h2load", "wrk", "redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            raise SetupError(
                f"There is no {program} here", next_step="apt-get install nghttp2-client wrk redis-server redis-tools"
            )
    with _stateside(folder) as port, _redis(folder) as redis_port:
        http = _Http(folder, port)
        get, mget = ["get", _REDIS_KEY], ["mget", *[_REDIS_KEY] * KEYS]
        speeds = _in_turn(http.speed, lambda: _redis_speed(redis_port, 300_000, get))
        yield Result("a row by its key", "lookups/s", *speeds, "stateside, 1 worker", "redis GET")
        asked, p99_ms = http.paced(statistics.median(speeds[0]) / 2)
        yield Figure(f"a row by its key at {asked:,.0f} lookups/s, half of that, p99", "ms", p99_ms)
        speeds = _in_turn(lambda: KEYS * http.speed_of_many(), lambda: KEYS * _redis_speed(redis_port, 40_000, mget))
        yield Result(f"rows of {KEYS} keys at once", "keys/s", *speeds, "stateside, 1 worker", "redis MGET")
        if BEFORE:
            yield from _against_before(folder / "before", http, BEFORE)


def _against_before(folder: Path, http: _Http, python: str) -> Iterator[Result]:
    folder.mkdir()
    with _stateside(folder, python) as port:
        before = _Http(folder, port)
        speeds = _in_turn(http.speed, before.speed)
        yield Result("a row by its key, before and now", "lookups/s", *speeds, "now", "before")
        speeds = _in_turn(lambda: KEYS * http.speed_of_many(), lambda: KEYS * before.speed_of_many())
        yield Result(f"rows of {KEYS} keys at once, before and now", "keys/s", *speeds, "now", "before")


def _in_turn(ours: Callable[[], float], peer: Callable[[], float]) -> tuple[list[float], list[float]]:
    """How fast both are, round by round; who goes first alternates."""
    found: tuple[list[float], list[float]] = ([], [])
    ours(), peer()
    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            found[side].append((ours, peer)[side]())
    return found


class _Http:
    """Asks our server for rows drawn at random."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._server = folder, f"http://127.0.0.1:{port}"
        chance, self._addresses = random.Random(2), folder / "addresses"
        rows = (f"{self._server}/v1/views/spending/rows/c{chance.randrange(CUSTOMERS):012}\n" for _ in range(20_000))
        self._addresses.write_text("".join(rows))

    def speed(self) -> float:
        """Answers a second for one row each, as fast as they come."""
        return self._run()

    def speed_of_many(self) -> float:
        """The same for many rows each."""
        script = self._folder / "ask.lua"
        script.write_text(f"local CUSTOMERS, KEYS = {CUSTOMERS}, {KEYS}\n{_MANY}")
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}", "-s", str(script), self._server]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        speed = re.search(r"Requests/sec:\s+([\d.]+)", told)
        assert speed is not None, told
        assert "Non-2xx" not in told, told
        return float(speed[1])

    def paced(self, wanted: float) -> tuple[float, float]:
        """The speed and the 99th percentile in ms, if about so many are asked for in a second."""
        log = self._folder / "times"
        log.unlink(missing_ok=True)
        pace = f"--rps={wanted / CONNECTIONS:.0f}"
        speed = self._run(pace, f"--log-file={log}")
        took_us = [int(line.split("\t")[2]) for line in log.read_text().splitlines()]
        return speed, statistics.quantiles(took_us, n=100)[98] / 1_000

    def _run(self, *options: str) -> float:
        asked = f"--input-file={self._addresses}"
        command = ["h2load", "--h1", "-t1", f"-c{CONNECTIONS}", "-m1", f"-D{SECONDS}", asked, *options]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        speed, codes = re.search(r"finished in .*, ([\d.]+) req/s", told), re.search(r"status codes: (.*)", told)
        assert speed is not None, told
        assert codes is not None, told
        assert re.fullmatch(r"[1-9]\d* 2xx, 0 3xx, 0 4xx, 0 5xx", codes[1]), f"not every request was answered:\n{told}"
        return float(speed[1])


@contextmanager
def _stateside(folder: Path, python: str = sys.executable) -> Iterator[int]:
    written = Written(folder / "orders", _STATE)
    written.batch([([f"c{number:012}"], [number % 90, 1_000 * number]) for number in range(CUSTOMERS)])
    (folder / "views.toml").write_text(_DECLARED)
    port = free_port()
    command = [python, "-m", "stateside", "serve", str(folder / "orders"), "--port", str(port)]
    command += ["--declare", str(folder / "views.toml"), "--dir", str(folder / "replicas"), "--workers", str(WORKERS)]
    with _child(command, folder / "server.log", lambda: _answers(port)):
        yield port


def _answers(port: int) -> bool:
    answer = httpx.get(f"http://127.0.0.1:{port}/v1/views/spending/rows/c{CUSTOMERS - 1:012}")
    return answer.status_code == 200 and len(answer.json()["rows"]) == 1


@contextmanager
def _redis(folder: Path) -> Iterator[int]:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]

    def fill() -> bool:
        values = (f'{{"customer":"c{n:012}","orders":{n % 90},"total":{1_000 * n}}}' for n in range(CUSTOMERS))
        lines = "".join(f"SET key:{number:012} '{value}'\n" for number, value in enumerate(values))
        done = subprocess.run(["redis-cli", "-p", str(port)], input=lines, capture_output=True, text=True, check=False)
        return done.returncode == 0 and done.stdout.count("OK") == CUSTOMERS

    with _child(command, folder / "redis.log", fill):
        yield port


@contextmanager
def _child(command: Sequence[str], log: Path, ready: Callable[[], bool]) -> Iterator[None]:
    child, deadline_s = Child(list(command), log), time.monotonic() + WAIT_S_MAX
    try:
        while not _is(ready):
            if child.returncode() is not None or time.monotonic() > deadline_s:
                raise TimeoutError(f"{command[0]} does not answer: {child.tail()}")
            time.sleep(0.1)
        yield
    finally:
        child.stop()


def _is(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except httpx.TransportError:
        return False


def _redis_speed(port: int, requests: int, command: Sequence[str]) -> float:
    """Requests a second, as redis-benchmark measures them."""
    asked = ["redis-benchmark", "-p", str(port), "-c", str(CONNECTIONS), "-n", str(requests), "-r", str(CUSTOMERS)]
    told = subprocess.run([*asked, "-q", *command], capture_output=True, text=True, check=True, timeout=120).stdout
    found = re.findall(r"([\d.]+) requests per second", told)
    return float(found[-1])
