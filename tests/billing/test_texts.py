"""Hashes and equality of many texts at once, against those of each."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stateside.billing.book.texts import Texts, text_hashes

some = st.lists(st.one_of(st.text(max_size=20), st.text("ab", max_size=40)), min_size=1, max_size=12)


@given(some, st.integers(0, 3))
def test_a_texts_hash_depends_on_the_text_alone(texts: list[str], skipped: int) -> None:
    for type_ in (pa.string(), pa.large_string()):
        column = pa.array(texts, type_)
        alone = [text_hashes(Texts.of(pa.array([text])))[0] for text in texts]
        assert text_hashes(Texts.of(column)).tolist() == alone
        assert text_hashes(Texts.of(column.slice(skipped))).tolist() == alone[skipped:]
        assert text_hashes(Texts.of(pa.chunked_array([column, column]))).tolist() == alone * 2


@given(some, some)
def test_texts_are_equal_where_python_says_so(ours: list[str], theirs: list[str]) -> None:
    rows = np.array([(one, other) for one in range(len(ours)) for other in range(len(theirs))])
    equal = Texts.of(pa.array(ours)).equal(rows[:, 0], Texts.of(pa.array(theirs)), rows[:, 1])
    assert equal.tolist() == [ours[one] == theirs[other] for one, other in rows.tolist()]


def test_hashes_stand_in_files_and_so_never_change() -> None:
    found = text_hashes(Texts.of(pa.array(["", "emma", "a customer with a long name"])))
    assert [f"{number:016x}" for number in found.tolist()] == [
        "610523c5ee977db2",
        "ed1876c4062331be",
        "b4d968898c5b9497",
    ]


def test_numbered_names_spread_evenly() -> None:
    hashes = text_hashes(Texts.of(pa.array([f"c{number}" for number in range(100_000)])))
    assert len(np.unique(hashes)) == 100_000
    counts = np.bincount((hashes >> np.uint64(56)).astype(np.int64), minlength=256)
    assert 300 < counts.min() <= counts.max() < 500
    low = np.bincount((hashes & np.uint64(255)).astype(np.int64), minlength=256)
    assert 300 < low.min() <= low.max() < 500


def test_no_texts_have_no_hashes() -> None:
    assert len(text_hashes(Texts.of(pa.array([], pa.string())))) == 0
    assert len(text_hashes(Texts.of(pa.chunked_array([], pa.string())))) == 0
