"""A replica that starts on snapshots of the state, in a process of its own: how fast, and in how much memory.

`STATESIDE_BENCH_KEYS=10000000 make bench ARGS=cold-start` is the size that the target names. Memory is counted as the
system does: all that is resident, LMDB's and Python's mapped files among it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb

from benchmarks.compare import Figure, Result
from benchmarks.played_spark import PlayedSpark
from stateside.core.layout import ViewLayout
from stateside.replica.store import ReplicaReader
from stateside.replica.tail import Tail

KEYS = int(os.environ.get("STATESIDE_BENCH_KEYS", "1_000_000"))
ROUNDS = 3
PARTITIONS = 4
PEER_ROWS_MAX = 1_000_000


def run(folder: Path) -> Iterator[Result | Figure]:
    layout = ViewLayout(folder / "bench")
    PlayedSpark(layout, PARTITIONS).snapshot(batch=9, accounts=KEYS)
    rates, cpu_rates, peers, rss_mib = [], [], [], 0.0
    for _ in range(ROUNDS):
        shutil.rmtree(layout.replica, ignore_errors=True)
        seconds, cpu_s, mib = _child(layout)
        rates.append(KEYS / seconds)
        cpu_rates.append(KEYS / cpu_s)
        rss_mib = max(rss_mib, mib)
        peers.append(_peer(layout, folder / "peer"))
    name = f"cold start of {KEYS:,} keys"
    yield Result(name, "keys/s", rates, peers, "replica", "bare LMDB append", cpu_rates)
    yield Figure(f"{name}: it took", "s", KEYS / statistics.median(rates))
    yield Figure(f"{name}: of the processor's time", "s", KEYS / statistics.median(cpu_rates))
    yield Figure(f"{name}: peak memory", "MiB", rss_mib)
    [file] = layout.replica.glob("*/data.mdb")
    yield Figure("disk for a key, of which 51 are its own and its row's", "bytes", file.stat().st_size / KEYS)


def _child(layout: ViewLayout) -> tuple[float, float, float]:
    command = [sys.executable, "-m", "benchmarks.cold_start", str(layout.root)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, cpu_s, mib = json.loads(answer.stdout)
    return seconds, cpu_s, mib


def _peer(layout: ViewLayout, folder: Path) -> float:
    """The same rows, in order and in memory, into LMDB and nothing else; in rows/s."""
    reader = ReplicaReader(layout.replica)
    with reader.snapshot() as snapshot:
        rows = [row for row, _ in zip(snapshot.range(b""), range(PEER_ROWS_MAX), strict=False)]
    reader.close()
    shutil.rmtree(folder, ignore_errors=True)
    environment = lmdb.open(str(folder), map_size=1 << 30, sync=False)
    began = time.perf_counter()
    with environment.begin(write=True) as transaction:
        transaction.cursor().putmulti(rows, append=True)
    environment.sync(True)
    rate = len(rows) / (time.perf_counter() - began)
    environment.close()
    return rate


def main(root: Path) -> None:
    tail = Tail(ViewLayout(root))
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    tail.step()
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    tail.close()
    print(json.dumps([seconds, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
