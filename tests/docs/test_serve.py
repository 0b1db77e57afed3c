"""What docs/serve.md shows is run: its word count, its commands, its declarations. Its tables are complete."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stateside.core.processes import Child, free_port
from stateside.pipeline.java import java_environment
from stateside.replica.tail import Tail
from stateside.serving.foreign import open_foreign
from stateside.serving.rows.view_readers import Floor, ViewReader
from stateside.views.declaration_file import DECLARABLE, Declarations
from stateside.views.inference import WAYS
from tests.written import Written, WrittenOperator

SERVE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
ORDERS = WrittenOperator(
    [("customer", "string"), ("country", "string")],
    [("count", "long"), ("sum", "long"), ("sum", "double"), ("count", "long")],
)


def block(name: str) -> str:
    match = re.search(rf"<!-- test: {re.escape(name)} -->\n```\w+\n(.*?)```", SERVE, re.DOTALL)
    assert match, f"docs/serve.md has no block {name}"
    return match[1]


def test_the_declarations_make_of_the_query_what_they_say(tmp_path: Path) -> None:
    rows = [(["emma", "de"], [2, 30, 9.0, 2]), (["ben", "de"], [1, 5, 3.0, 1]), (["zoe", "fr"], [4, 7, 4.0, 4])]
    Written(tmp_path / "orders", ORDERS).batch(rows)
    declarations = Declarations.parse(block("views.toml").encode(), "views.toml")
    foreign = open_foreign(str(tmp_path / "orders"), tmp_path / "replicas", declarations)
    foreign.start()
    view = foreign.layout.view("spending")
    tail = Tail(view)
    tail.step()
    tail.close()
    reader = ViewReader(view)
    floor = Floor(wait_ms=0)
    found = asyncio.run(reader.rows(reader.shape.parse_key(["de", "emma"]), floor)).rows
    totals = asyncio.run(reader.rollup(["land"], ["de"], floor)).rows
    (total,) = asyncio.run(reader.rollup([], [], floor)).rows
    reader.close()
    assert found == [{"land": "de", "customer": "emma", "orders": 2, "paid": 30, "rating": 4.5}]
    assert totals == [{"land": "de", "orders": 3, "paid": 35, "rating": 4.0}]
    assert total == {"orders": 7, "paid": 42, "rating": 16 / 7}


@pytest.mark.spark
@pytest.mark.e2e
def test_the_word_count_is_served_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "word_count.py").write_text(block("word_count.py"))
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "a.txt").write_text("hello world hello\n")
    serve, get = (shlex.split(line)[1:] for line in block("commands").splitlines())
    port = str(free_port())
    for name, value in java_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (shown,) = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", SERVE, re.DOTALL))
    children: list[Child] = []
    try:
        job = [sys.executable, "word_count.py", "incoming", "checkpoints/words"]
        children.append(Child(job, tmp_path / "job.log"))
        served = [sys.executable, "-m", "stateside", *serve, "--dir", "replicas", "--wait", "--port", port]
        children.append(Child(served, tmp_path / "serve.log"))
        answer = wait_for_answer([*get, "--url", f"http://127.0.0.1:{port}"], children)
    finally:
        for child in children:
            child.stop()
    assert answer["rows"] == shown["rows"]
    stamp = {name: value for name, value in shown["stamp"].items() if name != "…"}
    assert {name: answer["stamp"][name] for name in stamp} == stamp


def wait_for_answer(arguments: list[str], children: list[Child]) -> dict[str, dict[str, object]]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        command = [sys.executable, "-m", "stateside", *arguments]
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if found.returncode == 0:
            answer: dict[str, dict[str, object]] = json.loads(found.stdout)
            return answer
        assert all(child.returncode() is None for child in children), [child.tail() for child in children]
        time.sleep(0.5)
    raise AssertionError(f"no answer: {found.stderr}")


def test_the_tables_have_all_operators_and_all_aggregates() -> None:
    for name in (*DECLARABLE, *(way for way in WAYS if not way.startswith("transformWithStateIn"))):
        assert f"`{name}`" in SERVE
