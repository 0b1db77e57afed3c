"""Names of columns that come from several places: the key of a state, its value, and what is added to them."""

from __future__ import annotations

from collections.abc import Sequence


def apart(names: Sequence[str]) -> list[str]:
    """The names, each once: a second `size` is called `size_2`, or, if there is one already, `size_3`."""
    taken: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in range(2, 2 * len(names) + 2))
        free = next(other for other in others if other not in taken and other not in names)
        taken.append(free if name in taken else name)
    return taken
