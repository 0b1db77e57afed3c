"""Lookups over HTTP against Redis, each asked by its own load generator over 32 connections on loopback.

Ours: `stateside serve` with two workers over a view of twenty thousand customers, asked by wrk; every answer is JSON
with its stamp. The peer: redis-server without persistence, which has the same customers with values of the same size,
asked by redis-benchmark. Both ask for keys at random. Needs `wrk` and `redis-server` (Debian has packages of them).
"""

from __future__ import annotations

import os
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
from stateside.errors import SetupError
from stateside.processes import Child, free_port
from tests.written import Written, WrittenOperator

CUSTOMERS = 20_000
CONNECTIONS = 32
WORKERS = 2
SECONDS = 4
ROUNDS = int(os.environ.get("STATESIDE_BENCH_ROUNDS", "5"))
KEYS = 100  # of a multi-get
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
_SCRIPT = """
local asked, next = {}, 0
function init()
  for number = 1, 20000 do asked[number] = ask() end
end
function request()
  next = next % #asked + 1
  return asked[next]
end
local function customer() return string.format("c%012d", math.random(0, CUSTOMERS - 1)) end
"""
_POINTS = """
function ask() return wrk.format("GET", "/v1/views/spending/rows/" .. customer()) end
"""
_MANY = """
function ask()
  local keys = {}
  for number = 1, KEYS do keys[number] = '"' .. customer() .. '"' end
  return wrk.format("POST", "/v1/views/spending/lookup", nil, '{"keys":[' .. table.concat(keys, ",") .. ']}')
end
"""
_PAUSE = "function delay() return math.random() < SHARE and math.ceil(PAUSE_MS) or math.floor(PAUSE_MS) end\n"


def run(folder: Path) -> Iterator[Result | Figure]:
    for program in ("wrk", "redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            raise SetupError(f"There is no {program} here", next_step="apt-get install wrk redis-server redis-tools")
    with _stateside(folder) as port, _redis(folder) as redis_port:
        points, many = _Wrk(folder, port, _POINTS), _Wrk(folder, port, _MANY)
        get, mget = ["get", _redis_key()], ["mget", *([_redis_key()] * KEYS)]
        speeds = _in_turn(lambda: points.speed(), lambda: _redis_speed(redis_port, 300_000, get))
        yield Result("a row by its key", "lookups/s", *speeds, "stateside, 2 workers", "redis GET")
        half = statistics.median(speeds[0]) / 2
        asked, p99_ms = points.paced(half)
        yield Figure(f"a row by its key at {asked:,.0f} lookups/s, half of that, p99", "ms", p99_ms)
        speeds = _in_turn(lambda: KEYS * many.speed(), lambda: KEYS * _redis_speed(redis_port, 40_000, mget))
        yield Result(f"rows of {KEYS} keys at once", "keys/s", *speeds, "stateside, 2 workers", "redis MGET")


def _in_turn(ours: Callable[[], float], peer: Callable[[], float]) -> tuple[list[float], list[float]]:
    """How fast both are, round by round; who goes first alternates."""
    found: tuple[list[float], list[float]] = ([], [])
    ours(), peer()
    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            found[side].append((ours, peer)[side]())
    return found


class _Wrk:
    """Asks our server, by a script that says what."""

    def __init__(self, folder: Path, port: int, script: str) -> None:
        self._folder, self._url, self._script = folder, f"http://127.0.0.1:{port}", script

    def speed(self) -> float:
        """Answers a second, as fast as they come."""
        return self._run("")[0]

    def paced(self, wanted: float) -> tuple[float, float]:
        """The speed and the 99th percentile in ms, if each connection pauses so that it is about this fast."""
        pause_ms = 1_000 * CONNECTIONS / wanted
        for _ in range(4):  # the answer's own time has to come off
            speed, p99_ms = self._run(_PAUSE.replace("SHARE", f"{pause_ms % 1:.3f}").replace("PAUSE_MS", f"{pause_ms}"))
            pause_ms = max(0.0, pause_ms + 1_000 * CONNECTIONS * (1 / wanted - 1 / speed))
        return speed, p99_ms

    def _run(self, more: str) -> tuple[float, float]:
        script = self._folder / "ask.lua"
        script.write_text(f"local CUSTOMERS, KEYS = {CUSTOMERS}, {KEYS}\n{_SCRIPT}{self._script}{more}")
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}", "--latency", "-s", str(script), self._url]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        if "Non-2xx" in told or "Socket errors" in told:
            raise RuntimeError(f"not every request was answered:\n{told}")
        speed, p99 = re.search(r"Requests/sec:\s+([\d.]+)", told), re.search(r"99%\s+([\d.]+)(us|ms|s)", told)
        assert speed is not None, told
        assert p99 is not None, told
        return float(speed[1]), float(p99[1]) * {"us": 0.001, "ms": 1.0, "s": 1_000.0}[p99[2]]


@contextmanager
def _stateside(folder: Path) -> Iterator[int]:
    written = Written(folder / "orders", _STATE)
    written.batch([([f"c{number:012}"], [number % 90, 1_000 * number]) for number in range(CUSTOMERS)])
    (folder / "views.toml").write_text(_DECLARED)
    port = free_port()
    command = [sys.executable, "-m", "stateside", "serve", str(folder / "orders"), "--port", str(port)]
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


def _redis_key() -> str:
    return "key:__rand_int__"  # twelve digits, filled in by redis-benchmark


def _redis_speed(port: int, requests: int, command: Sequence[str]) -> float:
    """Requests a second, as redis-benchmark measures them."""
    asked = ["redis-benchmark", "-p", str(port), "-c", str(CONNECTIONS), "-n", str(requests), "-r", str(CUSTOMERS)]
    told = subprocess.run([*asked, "-q", *command], capture_output=True, text=True, check=True, timeout=120).stdout
    found = re.findall(r"([\d.]+) requests per second", told)
    return float(found[-1])
