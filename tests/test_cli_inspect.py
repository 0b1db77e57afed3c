"""`stateside inspect`: tables, JSON and a page; whatever is named wrongly is one sentence, with exit code 1."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stateside.cli import main
from stateside.inspection.rules import CODES, RULES
from tests.inspection.test_examination import folder_of, reported, written

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "inspect.md").read_text()


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def refused(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert done.exit_code == 1, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ") and line.endswith(".")
    return line


def test_the_documented_commands_show_tables_json_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path, *(json.dumps(reported(batch, deadLetters=1, cores=8, partitions=2)) for batch in range(12)))
    written(tmp_path / "checkpoints/words")
    match = re.search(r"<!-- test: commands -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    assert match
    plain, explained, as_json, html = (run(*line.split()[2:]) for line in match[1].strip().splitlines())
    assert [each.exit_code for each in (plain, explained, as_json, html)] == [0] * 4
    assert "total: batch 11" in plain.stdout and "2 findings: --explain shows them." in plain.stdout
    assert "12 events became dead letters of total" in explained.stdout
    assert "Next: With the job stopped: `stateside rescale --dir DIR --partitions 8`." in explained.stdout
    document = json.loads(as_json.stdout)
    assert document["views"][0]["batches"][-1]["duration_ms"] == 4_000
    assert document["findings"] == []
    report = Path("report.html").read_text()
    assert "<svg" in report and "estimated from the times and sizes of files" in report
    assert not re.search(r"<script|https?:|@import|url\(", report)


def test_a_query_of_others_says_what_is_estimated(tmp_path: Path) -> None:
    written(tmp_path / "words")
    done = run(tmp_path / "words")
    assert "estimated from the times and sizes of files: durations and their parts" in done.stdout
    assert "a query of others" in done.stdout


def test_what_is_no_job_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "app" / "views").mkdir(parents=True)
    assert "There is no such folder" in refused(tmp_path / "none")
    assert "no query has started there yet" in refused(tmp_path / "empty")
    assert "neither metadata nor offsets nor commits" in refused(tmp_path / "other")
    assert "This is a file" in refused(tmp_path / "file")
    assert "This application has no view yet" in refused(tmp_path / "app")
    assert "cannot be opened" in refused("nowhere://bucket/checkpoint")
    assert "--watch shows tables alone" in refused(tmp_path, "--watch", "--json")


def test_what_cannot_be_read_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    written(tmp_path / "words")
    (tmp_path / "words/offsets/11").write_text("v1\nno json")
    done = run(tmp_path / "words", "--json")
    assert done.exit_code == 1
    assert all(line.startswith("Error: Cannot read the checkpoint") for line in done.stderr.splitlines())
    assert json.loads(done.stdout)["views"][0]["batches"][-1]["batch"] == 10


def test_a_name_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    written(tmp_path / "<b>words")
    assert run(tmp_path / "<b>words", "--html", tmp_path / "page.html").exit_code == 0
    assert "<b>words" not in (tmp_path / "page.html").read_text()


def test_the_table_of_findings_has_every_code() -> None:
    documented = set(re.findall(r"`([a-z]+(?:-[a-z]+)+|unreadable)`", PAGE.split("## Findings")[1].split("Garbage")[0]))
    assert documented - {"large-state"} == {*CODES, *RULES} - {"job", "replica"}
