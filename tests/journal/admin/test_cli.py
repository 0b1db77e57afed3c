"""`stateside journal …` as people and scripts meet it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from stateside.cli import main
from stateside.cli.journal import journal
from stateside.core.errors import RequestInvalid
from stateside.journal import Event, FileLog, JournalWriter
from stateside.journal.admin import JournalFiles
from stateside.journal.admin.export import EXPORT_SCHEMA
from stateside.journal.backends.files.segment import segment_path

EVENTS = [
    Event("c-1", "emma", "call", 1_000_000, {"seconds": 61}, ("night", "roaming")),
    Event("c-2", "ben", "call", 2_000_000, {"seconds": 2, "note": None, "big": 2**70}, ("night",)),
    Event("d-1", "emma", "data", 3_000_000, b"\x00\xff", (), version=2, metadata={"trace": "t"}, extra={"new": [1]}),
    Event("c-3", "Zoë", "call", 4_000_000, {}, ("day",)),
]


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["journal", *arguments], input=given)


def lines(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(params=[False, True], ids=["without views", "with views"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """An application's folder; the views, if there are any, lack the last event."""
    with JournalWriter(tmp_path / "journal") as writer:
        writer.append(EVENTS[:3])
        if request.param:
            assert run("views", "--dir", str(tmp_path)).stdout == "0:3\n"
        writer.append(EVENTS[3:])
    return str(tmp_path)


class TestStat:
    def test_it_tells_how_large_the_journal_is(self, folder: str) -> None:
        found = json.loads(run("stat", "--dir", folder, "--json").stdout)
        assert (found["events"], found["begin"], found["end"], found["segments"]) == (4, "0:0", "0:4", 1)
        assert found["bytes"] == segment_path(Path(folder, "journal"), 0).stat().st_size
        assert found["journal"] == FileLog(Path(folder, "journal")).id()
        assert found["first_appended"] <= found["last_appended"]
        assert (found["views_cover"], found["entities_in_views"]) in ((None, None), (3, 2))

    def test_people_get_a_line_for_each_number(self, folder: str) -> None:
        assert "end                0:4" in run("stat", "--dir", folder).stdout.splitlines()


class TestRead:
    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            ([], ["c-1", "c-2", "d-1", "c-3"]),
            (["--entity", "emma"], ["c-1", "d-1"]),
            (["--tag", "night"], ["c-1", "c-2"]),
            (["--type", "call"], ["c-1", "c-2", "c-3"]),
            (["--since", "1970-01-01T00:00:02Z", "--until", "1970-01-01T00:00:04Z"], ["c-2", "d-1"]),
            (["--type", "call", "--tag", "night", "--entity", "ben"], ["c-2"]),
            (["--from", "0:1", "--to", "0:3"], ["c-2", "d-1"]),
            (["--type", "call", "--from", "0:1", "--limit", "1"], ["c-2"]),
            (["--tag", "nowhere"], []),
        ],
    )
    def test_the_events_that_are_asked_for_come_in_order(
        self, folder: str, flags: list[str], expected: list[str]
    ) -> None:
        assert [line["id"] for line in lines(run("read", "--dir", folder, "--json", *flags))] == expected
        out = Path(folder, "out.jsonl")
        if "--limit" not in flags:
            assert run("export", "--dir", folder, "--out", str(out), *flags).exit_code == 0
            assert [json.loads(line)["id"] for line in out.read_bytes().splitlines()] == expected

    def test_reading_goes_on_from_an_events_position(self, folder: str) -> None:
        position = str(lines(run("read", "--dir", folder, "--json", "--entity", "emma"))[0]["position"])
        rest = lines(run("read", "--dir", folder, "--json", "--entity", "emma", "--from", position))
        assert [line["sequence"] for line in rest] == [2]

    def test_people_get_a_line_for_each_event(self, folder: str) -> None:
        first = run("read", "--dir", folder).stdout.splitlines()[0]
        assert first == '       0:1  1970-01-01T00:00:01Z  emma 1  call  {"seconds": 61}  [night, roaming]'

    def test_following_goes_on_up_to_the_limit(self, folder: str) -> None:
        assert len(lines(run("read", "--dir", folder, "--json", "--follow", "--limit", "4"))) == 4


class TestIdsAndTags:
    def test_ids_come_in_order_page_by_page(self, folder: str) -> None:
        assert run("ids", "--dir", folder).stdout.splitlines() == ["Zoë", "ben", "emma"]
        assert lines(run("ids", "--dir", folder, "--json", "--after", "Zoë", "--limit", "1")) == [{"entity": "ben"}]
        assert run("ids", "--dir", folder, "--prefix", "e").stdout == "emma\n"

    def test_tags_come_with_their_numbers_of_events(self, folder: str) -> None:
        found = [(line["tag"], line["events"]) for line in lines(run("tags", "--dir", folder, "--json"))]
        assert found == [("day", 1), ("night", 2), ("roaming", 1)]
        assert run("tags", "--dir", folder, "--prefix", "n").stdout == "           2  night\n"


class TestExport:
    def test_what_is_exported_and_appended_elsewhere_is_the_same(self, folder: str, tmp_path: Path) -> None:
        out = str(tmp_path / "out.jsonl")
        assert lines(run("export", "--dir", folder, "--out", out, "--json")) == [{"events": 4, "position": "0:4"}]
        other = str(tmp_path / "other")
        told = lines(run("append", "--dir", other, "--json", out))
        assert told == [{"receipt": "0:4", "stored": 4, "repeated": 0, "refused": 0}]
        assert list(FileLog(Path(other, "journal")).events()) == EVENTS

    def test_parquet_has_the_journals_columns_and_the_offsets(self, folder: str, tmp_path: Path) -> None:
        out = tmp_path / "out.parquet"
        assert run("export", "--dir", folder, "--out", str(out), "--tag", "night").exit_code == 0
        table = pq.read_table(out)
        assert table.schema.names == EXPORT_SCHEMA.names
        assert table.column("offset").to_pylist() == [0, 1]
        assert table.column("sequence").to_pylist() == [1, 1]

    def test_an_empty_export_is_a_file_all_the_same(self, folder: str, tmp_path: Path) -> None:
        out = tmp_path / "out.parquet"
        assert run("export", "--dir", folder, "--out", str(out), "--tag", "nowhere").exit_code == 0
        assert pq.read_table(out).num_rows == 0

    def test_lines_go_to_standard_output_and_nothing_else_does(self, folder: str) -> None:
        result = run("export", "--dir", folder, "--out", "-")
        assert [line["id"] for line in lines(result)] == [event.id for event in EVENTS]
        assert "4 events" in result.stderr

    def test_a_damaged_journal_leaves_no_half_file(self, folder: str, tmp_path: Path) -> None:
        path = segment_path(Path(folder, "journal"), 0)
        content = path.read_bytes()
        path.write_bytes(content[:-20] + b"x" * 20)
        result = run("export", "--dir", folder, "--out", str(tmp_path / "out.jsonl"))
        assert result.exit_code == 1
        assert "checksum" in result.stderr
        assert not list(tmp_path.glob("*out*"))


class TestVerify:
    def test_the_exit_code_and_the_sentences_say_whether_all_is_right(self, folder: str) -> None:
        result = run("verify", "--dir", folder)
        assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "Nothing is wrong.")
        path = segment_path(Path(folder, "journal"), 0)
        path.write_bytes(path.read_bytes()[:-1])
        result = run("verify", "--dir", folder)
        assert result.exit_code == 1
        assert str(path) in result.stdout
        found = json.loads(run("verify", "--dir", folder, "--json").stdout)
        assert (found["ok"], found["counts"]) == (False, {"damage": 1, "missing": 1})


class TestErrors:
    @pytest.mark.parametrize("command", ["stat", "read", "ids", "tags", "verify", "views"])
    def test_a_folder_without_a_journal_is_one_sentence_and_stays_as_it_is(self, tmp_path: Path, command: str) -> None:
        result = run(command, "--dir", str(tmp_path / "none"))
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: There is no journal here (")
        assert not (tmp_path / "none").exists()

    def test_who_looks_after_files_names_all_commands_that_look_into_a_topic(self, tmp_path: Path) -> None:
        (tmp_path / "topic.json").write_text("{}")
        with pytest.raises(RequestInvalid, match="a topic on Kafka") as raised:
            JournalFiles.of(tmp_path)
        takes = {
            name for name, each in journal.commands.items() if any("--kafka" in option.opts for option in each.params)
        }
        named = re.findall(r"`(?:stateside journal )?(\w+)`", str(raised.value))
        assert set(named) == takes - {"append"}

    @pytest.mark.parametrize(
        ("flags", "sentence"),
        [
            (["read", "--from", "0:99"], "lies beyond the end"),
            (["read", "--from", "x"], "'x' is no position"),
            (["read", "--entity", "nobody"], "no event of an entity 'nobody'"),
            (["read", "--since", "yesterday"], "no time with a time zone"),
            (["read", "--since", "2026-01-31"], "no time with a time zone"),
            (["export", "--out", "x.csv"], "tells no format"),
            (["export", "--out", "x.jsonl", "--to", "0:99"], "The journal ends at 0:4"),
            (["export", "--out", "x.jsonl", "--from", "0:3", "--to", "0:1"], "lies beyond"),
        ],
    )
    def test_what_cannot_be_is_refused_with_a_sentence(self, folder: str, flags: list[str], sentence: str) -> None:
        result = run(flags[0], "--dir", folder, *flags[1:])
        assert result.exit_code in (1, 2)
        assert sentence in result.stderr
        assert not Path("x.jsonl").exists()
