"""Lines of JSON: each is an event, or says what is wrong with it; nothing is lost between the two."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import EventRefused, IdConflict
from stateside.journal import Event, FileLog, JournalWriter, json_lines
from stateside.journal.json_lines import BadLine, Intake, fields_of, parse
from stateside.journal.payload import DeclaredFields, ViewFields, keep_fields

GOOD = b'{"id": "1", "entity": "emma", "type": "call"}'
OTHER = b'{"id": "2", "entity": "emma", "type": "call"}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON: Expecting property name"),
        (b"[]", "a JSON list, not an object"),
        (b"7", "a JSON int, not an object"),
        (b"\xff", "not UTF-8, at byte 0"),
        (b"[" * 100_000, "recursion"),
        (b'{"type": "t"}', "no entity"),
        (b'{"entity": "e"}', "no type"),
        (b'{"entity": "e", "type": "t", "tiem": 1}', "a field 'tiem'; an event has id, entity"),
        (b'{"entity": 7, "type": "t"}', "its entity is a int, not a text"),
        (b'{"entity": "e", "type": "t", "id": null}', "its id is a NoneType"),
        (b'{"entity": "e", "type": "t", "time": "today"}', "its time is 'today', not one like"),
        (b'{"entity": "e", "type": "t", "time": "2026-01-31T12:00:00"}', "not one like 2026-01-31T12:00:00Z"),
        (b'{"entity": "e", "type": "t", "time": 5}', "its time is 5"),
        (b'{"entity": "e", "type": "t", "time": "1969-01-31T12:00:00Z"}', "years 1970 to 2199"),
        (b'{"entity": "e", "type": "t", "time_us": 1.5}', "whole number of microseconds"),
        (b'{"entity": "e", "type": "t", "time_us": 1, "time": "2026-01-31T12:00:00Z"}', "both a time and a time_us"),
        (b'{"entity": "e", "type": "t", "payload": [1]}', "its payload is a list"),
        (b'{"entity": "e", "type": "t", "payload": {"a": NaN}}', "no JSON object"),
        (b'{"entity": "e", "type": "t", "tags": "night"}', "its tags are a str"),
        (b'{"entity": "e", "type": "t", "tags": [1]}', "its tag is a int"),
        (b'{"entity": "e", "type": "t", "data": "!"}', "its data is not bytes in base64"),
        (b'{"entity": "e", "type": "t", "data": "\xc3\xa4"}', "its data is not bytes in base64"),
        (b'{"entity": "e", "type": "t", "data": 7}', "its data is not bytes in base64"),
        (b'{"entity": "e", "type": "t", "data": "", "payload": {}}', "both a payload and data"),
        (b'{"entity": "e", "type": "t", "version": 0}', "its version is 0"),
        (b'{"entity": "e", "type": "t", "metadata": {"trace": 1}}', "a value that is not a text"),
        (b'{"entity": "e", "type": "t", "extra": 1}', "its extra is a int"),
        (b" " * json_lines.LINE_BYTES_MAX + GOOD, "longer than"),
    ],
)
def test_a_line_that_is_no_event_says_why(line: bytes, reason: str) -> None:
    bad = parse(3, line, 0)
    assert isinstance(bad, BadLine)
    assert reason in bad.reason
    assert json.loads(bad.as_json())["line"] == 3


@pytest.mark.parametrize(
    "event",
    [
        Event("1", "emma", "call", 7, {"a": [1, None]}, ("night",), version=2, metadata={"trace": "x"}, extra={"n": 1}),
        Event("2", "emma", "call", 7, b"\xff\x00"),
        Event("3", "emma", "call", 7, b""),
        Event("4", "emma", "call", 7, {}),
    ],
)
def test_an_exported_event_is_the_same_one_when_it_is_appended(tmp_path: Path, event: Event) -> None:
    with JournalWriter(tmp_path) as writer:
        writer.append([event])
    (stored,) = FileLog(tmp_path).events()
    line = json.dumps(fields_of(stored)).encode()
    assert json.loads(line)["sequence"] == 1
    assert parse(1, line, 0) == event


def test_what_is_not_given_is_filled_in() -> None:
    first, second = (parse(1, b'{"entity": "emma", "type": "call"}', 42) for _ in range(2))
    assert isinstance(first, Event)
    assert isinstance(second, Event)
    assert (first.time_us, first.payload, first.tags) == (42, {}, ())
    assert first.id != second.id


class Chunks(io.BytesIO):
    """An input that comes in pieces of given sizes."""

    def __init__(self, content: bytes, sizes: list[int]) -> None:
        super().__init__(content)
        self._sizes = iter(sizes)

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(next(self._sizes, 1_000))


@given(
    kinds=st.lists(st.sampled_from(["good", "bad", "blank", "long"]), max_size=15),
    sizes=st.lists(st.integers(1, 60), max_size=30),
    ends=st.booleans(),
)
def test_every_line_is_an_event_or_a_dead_letter_however_the_input_comes_in(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], sizes: list[int], ends: bool
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    texts = {"bad": b"nonsense", "blank": b" ", "long": b"x" * 300}
    content = [
        texts.get(kind) or json.dumps({"id": f"{n}", "entity": "e", "type": "t"}).encode()
        for n, kind in enumerate(kinds, 1)
    ]
    joined = b"\n".join(content) + (b"\n" if ends and content else b"")
    with pytest.MonkeyPatch.context() as patch, JournalWriter(folder / "journal") as writer:
        patch.setattr(json_lines, "LINE_BYTES_MAX", 200)
        intake = Intake(writer, folder / "letters")
        intake.take(Chunks(joined, sizes))
    numbers = {kind: [n for n, k in enumerate(kinds, 1) if k == kind] for kind in ("good", "bad", "long")}
    assert [int(event.id) for event in FileLog(folder / "journal").events()] == numbers["good"]
    letters = (folder / "letters").read_text().splitlines() if (folder / "letters").exists() else []
    assert [json.loads(letter)["line"] for letter in letters] == sorted(numbers["bad"] + numbers["long"])
    assert (intake.stored, intake.refused) == (len(numbers["good"]), len(letters))


def test_without_dead_letters_a_bad_line_ends_it_with_all_before_it_stored(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        intake = Intake(writer)
        with pytest.raises(EventRefused, match=r"Line 1 is no event.*Nothing is stored"):
            intake.take(io.BytesIO(b"nonsense\n" + GOOD))
        with pytest.raises(EventRefused, match=r"Line 3 is no event.*2 events before it are stored, receipt 0:2"):
            intake.take(io.BytesIO(GOOD + b"\n" + OTHER + b"\nnonsense\n" + GOOD))
    assert FileLog(tmp_path).end().events() == 2


def test_the_same_lines_again_are_counted_as_repeated_and_stored_once(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as writer:
        intake = Intake(writer)
        for counts in ((2, 1), (2, 4)):
            intake.take(io.BytesIO(b"\n".join([GOOD, OTHER, GOOD])))
            assert (intake.stored, intake.repeated) == counts
        assert str(intake.receipt) == "0:2"
    assert [event.id for event in FileLog(tmp_path).events()] == ["1", "2"]


def test_a_line_with_the_id_of_another_event_is_named_and_refused(tmp_path: Path) -> None:
    conflict = b'{"id": "1", "entity": "emma", "type": "text"}'
    with JournalWriter(tmp_path / "journal") as writer:
        with pytest.raises(IdConflict, match=r"Line 3 is a conflict: its id '1' .*2 events before it are stored"):
            Intake(writer).take(io.BytesIO(b"\n".join([GOOD, OTHER, conflict, GOOD])))
        intake = Intake(writer, tmp_path / "letters")
        third = b'{"id": "3", "entity": "emma", "type": "call"}'
        intake.take(io.BytesIO(b"\n".join([conflict, b"nonsense", GOOD, third])))
        assert (intake.stored, intake.repeated, intake.refused) == (1, 1, 2)
    letters = [json.loads(line) for line in (tmp_path / "letters").read_bytes().splitlines()]
    assert sorted(letter["line"] for letter in letters) == [1, 2]
    assert "its id '1' is that of another event" in "".join(letter["reason"] for letter in letters)
    assert [event.id for event in FileLog(tmp_path / "journal").events()] == ["1", "2", "3"]


def test_a_line_that_does_not_fit_the_declared_fields_is_told_by_its_number(tmp_path: Path) -> None:
    schema = pa.schema([("value", pa.float64())])
    keep_fields(tmp_path / "fields.json", {"hourly": ViewFields("value double", schema)})
    good = b'{"entity": "e", "type": "t", "payload": {"value": 1.5, "more": [1]}}\n'
    bad = b'{"entity": "e", "type": "t", "payload": {"value": "hot"}}\n'
    fields = DeclaredFields(tmp_path / "fields.json")
    with JournalWriter(tmp_path / "journal") as writer:
        intake = Intake(writer, fields=fields)
        with pytest.raises(EventRefused, match="Line 4 is no event: the field 'value' is \"hot\", which is no double"):
            intake.take(io.BytesIO(good + b"\n" + good + bad + good))
        assert intake.stored == 2
        intake = Intake(writer, tmp_path / "letters", fields=fields)
        intake.take(io.BytesIO(good + bad + b"{\n" + good))
        assert (intake.stored, intake.refused) == (2, 2)
    letters = [json.loads(line) for line in (tmp_path / "letters").read_bytes().splitlines()]
    assert [letter["line"] for letter in letters] == [2, 3]
