"""Ages and durations for people: one rule of units."""

from __future__ import annotations

import pytest

from stateside.core.clock import age_text


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 ms"),
        (0.61, "0.61 ms"),
        (7, "7 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (78_049, "78.0 s"),
        (99_999, "99.9 s"),
        (100_000, "1 min"),
        (311_016, "5 min"),
        (7_199_999, "119 min"),
        (7_200_000, "2 h"),
        (172_799_999, "47 h"),
        (172_800_000, "2 d"),
        (10**12, "11,574 d"),
    ],
)
def test_an_age_is_shown_in_the_unit_that_fits_it(ms: float, shown: str) -> None:
    assert age_text(ms) == shown
