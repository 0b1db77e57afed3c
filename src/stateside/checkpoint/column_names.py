"""Names of columns that come from several places: the key of a state, its value, and what is added to them."""

from __future__ import annotations

from collections.abc import Iterable


def apart(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, each once and none that is taken: a second `size` is `size_2`, or `size_3` if there is one already.

    A name that stands there as it is keeps it, wherever it comes.
    """
    asked, used = list(names), set(taken)
    given: list[str] = []
    for name in asked:
        number, free = 1, name
        while free in used or (number > 1 and free in asked):
            number += 1
            free = f"{name}_{number}"
        used.add(free)
        given.append(free)
    return given
