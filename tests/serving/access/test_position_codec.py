"""Positions as scoped tokens are shown them: nothing can be read off them, and they work all the same."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateside.core.errors import PositionInvalid
from stateside.core.layout import Layout
from stateside.core.positions import OFFSET_MAX, Position
from stateside.serving.access.position_codec import PLAIN, PositionCodec
from stateside.serving.access.tokens import Issuer
from stateside.serving.access.verifier import Verifier
from tests.sizes import examples

KEY, OTHER = b"k" * 32, b"o" * 32
CODEC = PositionCodec.of([KEY], opaque=True)
POSITIONS = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True), st.integers(0, OFFSET_MAX), max_size=4
).map(Position.of)


@given(POSITIONS)
@settings(max_examples=examples(60, 2_000))
def test_what_is_shown_is_opaque_and_is_the_position_when_it_comes_back(position: Position) -> None:
    shown = CODEC.encode(position)
    assert re.fullmatch(r"~[A-Za-z0-9_-]+", str(shown))
    assert CODEC.decode(Position.parse(str(shown))) == position
    assert CODEC.encode(position) == shown == CODEC.encode(shown), "equal positions have equal texts"
    assert pickle.loads(pickle.dumps(CODEC)).encode(position) == shown, "in another process too"


@given(st.integers(1, OFFSET_MAX), st.integers(1, OFFSET_MAX))
@settings(max_examples=examples(30, 1_000))
def test_neither_its_length_nor_its_order_tells_how_large_an_offset_is(one: int, other: int) -> None:
    texts = [str(CODEC.encode(Position.of({"0": offset}))) for offset in (one, other)]
    assert len(texts[0]) == len(texts[1])
    assert (texts[0] == texts[1]) == (one == other)


def test_a_plain_position_is_refused_so_that_nobody_finds_the_end_by_trying() -> None:
    with pytest.raises(PositionInvalid, match="opaque, and a plain one was given"):
        CODEC.decode(Position.parse("0:17"))
    assert CODEC.decode(Position.start()) == Position.start(), "which every answer covers"
    assert PLAIN.decode(Position.parse("0:17")) == Position.of({"0": 17})


@pytest.mark.parametrize("text", ["~", "~x", "~AAAA", "~" + "A" * 64, "~~", "~a,0:1", "0:1,~a", "~ö"])
def test_what_the_server_did_not_give_is_no_position(text: str) -> None:
    with pytest.raises(PositionInvalid):
        CODEC.decode(Position.parse(text))


def test_a_position_that_was_changed_is_refused() -> None:
    shown = str(CODEC.encode(Position.of({"0": 17})))
    for at in range(1, len(shown)):
        changed = shown[:at] + ("A" if shown[at] != "A" else "B") + shown[at + 1 :]
        with pytest.raises(PositionInvalid, match="none of this server's"):
            CODEC.decode(Position.parse(changed))


def test_after_a_rotation_older_positions_are_good_until_their_key_is_retired() -> None:
    position = Position.of({"0": 17})
    rotated, retired = (PositionCodec.of(keys, opaque=True) for keys in ([KEY, OTHER], [OTHER]))
    assert rotated.decode(CODEC.encode(position)) == position
    assert rotated.encode(position) != CODEC.encode(position)
    assert retired.decode(rotated.encode(position)) == position
    with pytest.raises(PositionInvalid, match="retired"):
        retired.decode(CODEC.encode(position))


def test_several_receipts_are_joined_by_the_client_without_being_read() -> None:
    positions = [Position.of({"a": 3}), Position.of({"a": 1, "b": 7})]
    joined = Position.start()
    for position in positions:
        joined = joined.joined(Position.parse(str(CODEC.encode(position))))
    assert CODEC.decode(Position.parse(str(joined))) == Position.of({"a": 3, "b": 7})
    with pytest.raises(PositionInvalid, match="opaque"):
        joined.joined(Position.of({"a": 1}))


def test_an_opaque_position_can_be_compared_and_nothing_else() -> None:
    shown = CODEC.encode(Position.of({"0": 17}))
    for use in (Position.one, Position.events, Position.as_dict, lambda p: p["0"], lambda p: p.covers(Position())):
        with pytest.raises(PositionInvalid, match="opaque"):
            use(shown)
    with pytest.raises(PositionInvalid, match="opaque"):
        Position.of({"0": 99}).covers(shown)


def test_an_offset_is_shown_as_no_position_of_the_journal() -> None:
    assert CODEC.parse_offset(str(CODEC.offset(0))) == 0
    assert CODEC.parse_offset(str(CODEC.offset(OFFSET_MAX - 1))) == OFFSET_MAX - 1
    assert PLAIN.offset(7) == 7
    for text in (str(CODEC.encode(Position.of({"0": 7}))), "7", "start"):
        with pytest.raises(PositionInvalid):
            CODEC.parse_offset(text)


def test_all_servers_of_a_folder_show_the_same_to_scoped_tokens_and_offsets_to_others(layout: Layout) -> None:
    issuer, position = Issuer(layout), Position.of({"0": 17})
    scoped, plain = issuer.create_customer("c1", "c1"), issuer.create("all")[0]
    one, other = Verifier(layout), Verifier(layout)
    shown = [each.positions(each.holder(f"Bearer {scoped}")).encode(position) for each in (one, other)]
    assert shown[0] == shown[1] != position
    unscoped = one.positions(one.holder(f"Bearer {plain}"))
    assert unscoped.encode(position) == unscoped.decode(position) == unscoped.decode(shown[0]) == position
