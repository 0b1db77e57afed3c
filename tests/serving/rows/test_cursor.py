"""Cursors: read back as they were written, refused when they were damaged."""

from __future__ import annotations

import base64
import json
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import CursorInvalid
from stateside.serving.rows.row_query import Cursor

CURSORS = st.builds(
    Cursor,
    view=st.text(max_size=10),
    batch=st.integers(0, 2**63),
    fingerprint=st.text(max_size=20),
    after=st.binary(max_size=40),
    question=st.text(max_size=16),
)
CURSOR = Cursor("spending", 5, "fingerprint", b"\x01emma\x00", "question")


@given(CURSORS)
def test_a_cursor_is_read_back_as_it_was_written(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor), cursor.view, cursor.question) == cursor


@given(CURSORS, st.data())
def test_any_damage_is_told(cursor: Cursor, data: st.DataObject) -> None:
    text = str(cursor)
    place = data.draw(st.integers(0, len(text)))
    damaged = data.draw(
        st.sampled_from([text[:place], text[:place] + text[place + 1 :], text[:place] + "A" + text[place:]])
        | st.characters(max_codepoint=0x17F).map(lambda char: text[:place] + char + text[place + 1 :])
    )
    if damaged != text:
        with pytest.raises(CursorInvalid, match="no cursor, or a damaged one"):
            Cursor.parse(damaged, cursor.view, cursor.question)


def forged(**changes: Any) -> str:
    document = {"v": 1, "view": "spending", "batch": 5, "fingerprint": "", "after": "01", "question": "q", **changes}
    content = json.dumps({name: value for name, value in document.items() if value != "left out"}).encode()
    content = content.replace(b": ", b":").replace(b", ", b",")
    return base64.urlsafe_b64encode(blake2b(content, digest_size=6).digest() + content).decode().rstrip("=")


def test_one_that_somebody_made_up_is_refused_too() -> None:
    assert Cursor.parse(forged(), "spending", "q").after == b"\x01"
    bad: list[dict[str, Any]] = [
        {"v": 2},
        {"batch": "5"},
        {"batch": 5.0},
        {"batch": True},
        {"batch": -1},
        {"batch": None},
        {"after": "0"},
        {"after": 1},
        {"after": "AB"},
        {"fingerprint": 1},
        {"more": 1},
        {"after": "left out"},
    ]
    for changes in bad:
        with pytest.raises(CursorInvalid):
            Cursor.parse(forged(**changes), "spending", "q")
    for text in ("", "=", "e30", "[" * 5_000, base64.urlsafe_b64encode(b"[" * 3_000).decode(), "ä"):
        with pytest.raises(CursorInvalid):
            Cursor.parse(text, "spending", "q")


def test_one_of_another_view_or_question_is_refused() -> None:
    for view, question in (("other", "question"), ("spending", "other")):
        with pytest.raises(CursorInvalid, match="belongs to another view or another question"):
            Cursor.parse(str(CURSOR), view, question)
