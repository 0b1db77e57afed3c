"""The story on the page about changes, command by command, while a server is asked all the time."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from stateside.core.processes import Child, free_port
from tests.docs.commands import DOCS
from tests.serving.conftest import wait_until_it_answers
from tests.sizes import in_full

ROOT = Path(__file__).parents[2]


@contextmanager
def asked(folder: Path, log: Path) -> Iterator[list[str]]:
    """A server of the folder, asked again and again: gives the list of failures."""
    url, ended, failed = f"http://127.0.0.1:{(port := free_port())}", threading.Event(), list[str]()
    child = Child([sys.executable, "-m", "stateside", "serve", "--dir", str(folder), "--port", str(port)], log)
    wait_until_it_answers(f"{url}/v1/views/bill/rows?limit=1", child)

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            customer = client.get("/v1/views/bill/rows?limit=1").json()["rows"][0]["customer"]
            while not ended.wait(0.02):
                for path in ("/v1/views/bill/rows?limit=20", f"/v1/customers/{customer}/bill"):
                    answer = client.get(path)
                    if answer.status_code != 200:
                        failed.append(f"{path}: {answer.text}")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield failed
    finally:
        ended.set()
        thread.join()
        child.stop()


@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.timeout(900)
@in_full("tests/examples/test_connection_fee.py, tests/pipeline/test_rescale.py and test_restore.py have the parts")
def test_a_fee_is_added_to_bills_partitions_are_raised_a_fork_is_tried_and_a_change_taken_back(tmp_path: Path) -> None:
    story = re.search(r"## A whole story\n.*?```sh\n(.*?)```", (DOCS / "change.md").read_text(), re.DOTALL)
    assert story is not None
    places = {"data": str(tmp_path / "data"), "trial": str(tmp_path / "trial")}

    def call(line: str) -> str:
        words = [places.get(word, word) for word in shlex.split(line)[1:]]
        done = subprocess.run([sys.executable, "-m", "stateside", *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    first, second, *others = story[1].splitlines()
    call(first)
    call(second)
    with asked(tmp_path / "data", tmp_path / "serve.log") as failed:
        for line in others:
            if "audit trial" in line:
                with asked(tmp_path / "trial", tmp_path / "trial.log"):
                    call(line)
                continue
            said = call(line)
            if "savepoint take" in line:
                places["NAME"] = said.split()[0]
    assert failed == []
