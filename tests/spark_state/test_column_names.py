"""Names of columns from several places: each comes out once, and nobody's own name is taken away."""

from hypothesis import given
from hypothesis import strategies as st

from stateside.views.catalogue import apart

names = st.lists(st.sampled_from(["a", "a_2", "a_3", "b", "b_2", "a_2_2"]))


def test_a_name_that_is_taken_gets_the_next_free_number() -> None:
    assert apart(["index", "size", "index", "index"]) == ["index", "size", "index_2", "index_3"]
    assert apart(["a", "a", "a_2"]) == ["a", "a_3", "a_2"]


@given(names)
def test_every_name_is_there_once_and_first_ones_stay(given_names: list[str]) -> None:
    found = apart(given_names)
    assert len(set(found)) == len(given_names)
    for place, name in enumerate(given_names):
        if name not in given_names[:place]:
            assert found[place] == name
