"""The log of refusals: a line each, bounded, without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateside.core.clock import ManualClock
from stateside.core.errors import AccessDenied, BodyTooLarge, KeyInvalid, StatesideError, TokenInvalid, TooManyRequests
from stateside.serving.access import guard
from stateside.serving.access.guard import LINES_PER_S, OLDER_KEPT, RefusalLog, RefusedRequest

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ASKED = RefusedRequest("GET", "/v1/views", "10.0.0.7", f"00-{TRACE}-00f067aa0ba902b7-01")


class Seconds:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_refusal_is_a_line_that_says_who_what_and_why(tmp_path: Path) -> None:
    path = tmp_path / "refusals.jsonl"
    RefusalLog(path, ManualClock(1_800_000_000_000_000)).note(AccessDenied("not yours"), "emma", ASKED)
    assert lines(path) == [
        {
            "time": "2027-01-15T08:00:00Z",
            "status": 403,
            "code": "access-denied",
            "who": "emma",
            "address": "10.0.0.7",
            "method": "GET",
            "path": "/v1/views",
            "why": "not yours",
            "trace": TRACE,
        }
    ]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [TokenInvalid("a"), TooManyRequests("b"), BodyTooLarge("c")])
def test_every_kind_of_refusal_is_written(tmp_path: Path, error: StatesideError) -> None:
    RefusalLog(tmp_path / "r.jsonl").note(error, None, ASKED)
    assert lines(tmp_path / "r.jsonl")[0]["status"] == error.status


def test_a_mistake_is_no_refusal(tmp_path: Path) -> None:
    RefusalLog(tmp_path / "r.jsonl").note(KeyInvalid("x"), None, ASKED)
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    "header", [None, "", "garbage", f"00-{TRACE}", f"00-{TRACE.upper()}-00f067aa0ba902b7-01", "\n"]
)
def test_a_trace_is_written_only_if_it_is_one(header: str | None) -> None:
    assert RefusedRequest("GET", "/", "a", header).trace() is None


def test_the_files_are_bounded_and_the_newest_lines_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BYTES_MAX", 2_000)
    clock = Seconds()
    log, other = (RefusalLog(tmp_path / "refusals.jsonl", now_s=clock) for _ in range(2))  # as two workers have it
    for number in range(300):
        clock.now_s += 1
        (log, other)[number % 2].note(AccessDenied(f"number {number}"), None, ASKED)
    files = [tmp_path / "refusals.jsonl", *(tmp_path / f"refusals.{n}.jsonl" for n in range(1, OLDER_KEPT + 1))]
    found = list(tmp_path.glob("refusals*.jsonl"))
    assert set(found) <= set(files) and len(found) >= OLDER_KEPT
    assert all(path.stat().st_size <= 2_000 for path in found)
    written = [line["why"] for path in reversed(files) if path.exists() for line in lines(path)]
    assert written == [f"number {number}" for number in range(300 - len(written), 300)]


def test_a_flood_is_counted_and_not_written(tmp_path: Path) -> None:
    clock, path = Seconds(), tmp_path / "refusals.jsonl"
    log = RefusalLog(path, now_s=clock)
    for _ in range(5_000):
        log.note(TokenInvalid("no"), None, ASKED)
    assert len(lines(path)) == 2 * LINES_PER_S
    clock.now_s += 1
    log.note(TokenInvalid("no"), None, ASKED)
    assert lines(path)[-1]["left_out"] == 5_000 - 2 * LINES_PER_S
    log.note(TokenInvalid("no"), None, ASKED)
    assert "left_out" not in lines(path)[-1]


def test_a_long_path_is_cut_and_a_line_stays_one(tmp_path: Path) -> None:
    log = RefusalLog(tmp_path / "r.jsonl")
    log.note(AccessDenied("no"), "a\nb", RefusedRequest("GET", "/x\n" + "y" * 9_999, "a"))
    (line,) = lines(tmp_path / "r.jsonl")
    assert len(str(line["path"])) == guard.PATH_CHARS_MAX
