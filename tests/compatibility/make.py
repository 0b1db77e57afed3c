"""Makes `v0.1.0.tar.xz`: two folders as version 0.1.0 writes them. Run once, with that version's environment:

    git worktree add ../v0.1.0 v0.1.0 && make -C ../v0.1.0 setup
    ../v0.1.0/.venv/bin/python tests/compatibility/make.py SCRATCH

billing/  the demo: journal on files, checkpoint, replica, invoices, notes and dead letters, the auditor's ledger;
          tokens, one of them revoked; a savepoint; events after it that no batch has read, one of them with a stored id
shop/     `shop.py` on two nodes' logs and their merged stream: a rollup, an archive, tokens, a savepoint, unread events
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATESIDE = Path(sys.executable).with_name("stateside")
NOT_KEPT = ("logs", "spark", "servers", "demo.json", "stateside-demo.html", "driver.lock")
HOUR_S = 3600


def stateside(*arguments: str, lines: Sequence[object] = ()) -> str:
    given = "".join(json.dumps(line) + "\n" for line in lines)
    return subprocess.run([STATESIDE, *arguments], input=given, text=True, check=True, stdout=subprocess.PIPE).stdout


def run_until_idle(folder: str, batches: int) -> None:
    """Runs the shop until each of its two views has made so many batches, then stops it in order."""
    command = [str(STATESIDE), "run", "shop:app", "--dir", folder, "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(HERE)}
    ) as run:
        assert run.stdout
        seen: dict[str, int] = {}
        for line in run.stdout:
            said = json.loads(line)
            seen[said["view"]] = max(seen.get(said["view"], -1), said.get("batch", -1))
            if len(seen) == 2 and min(seen.values()) >= batches - 1:
                break
        run.send_signal(signal.SIGTERM)
        run.stdout.read()


def tokens(folder: str, *scope: str) -> None:
    stateside("token", "create", "operations", "--dir", folder, "--role", "operator", "--expires", "400d")
    stateside("token", "create", "emma", "--dir", folder, *scope, "--role", "read", "--role", "append")
    stateside("token", "create", "mallory", "--dir", folder, "--role", "read")
    stateside("token", "revoke", "mallory", "--dir", folder)


def make_billing() -> None:
    stateside("demo", "--customers", "30", "--seconds", "25", "--dir", "billing")
    tokens("billing", "--customer", "c1")
    stateside("savepoint", "take", "--dir", "billing")
    call = {"entity": "c1", "type": "call", "time": "2026-04-20T12:00:00Z", "payload": {"quantity": 61}}
    message = {
        "id": "unread-1",
        "entity": "c2",
        "type": "message",
        "time": "2026-04-20T13:00:00Z",
        "payload": {"quantity": 1},
    }
    stateside("append", "--dir", "billing", lines=[call, message, message])


def order(number: int, customer: str, country: str) -> dict[str, object]:
    time_us = (1_767_225_600 + number * HOUR_S // 4) * 1_000_000
    payload = {"country": country, "amount_micros": number * 1_000_003}
    return {"id": f"o-{number}", "entity": customer, "type": "order", "time_us": time_us, "payload": payload}


def append_orders(numbers: range) -> None:
    people = (("hamburg", "emma", "de"), ("bremen", "ben", "de"), ("hamburg", "aiko", "jp"))
    for node in ("hamburg", "bremen"):
        chosen = ((number, *people[number % 3]) for number in numbers)
        lines = [order(number, customer, country) for number, at, customer, country in chosen if at == node]
        stateside("append", "--dir", "shop", "--node", node, lines=lines)
    stateside("journal", "merge", "--dir", "shop", "--partitions", "2", "--once")


def make_shop() -> None:
    append_orders(range(0, 60))
    run_until_idle("shop", 1)
    append_orders(range(60, 90))
    run_until_idle("shop", 2)
    tokens("shop", "--where", "customer=emma", "--view", "spending")
    stateside("savepoint", "take", "--dir", "shop", "--view", "spending")
    append_orders(range(90, 100))


def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if Path(entry.name).parts[1:2] and Path(entry.name).parts[1] in NOT_KEPT:
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main(scratch: Path) -> None:
    os.chdir(scratch)
    make_billing()
    make_shop()
    with tarfile.open(HERE / "v0.1.0.tar.xz", "w:xz") as archive:
        for folder in ("billing", "shop"):
            archive.add(folder, filter=kept)
    for folder in ("billing", "shop"):
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
