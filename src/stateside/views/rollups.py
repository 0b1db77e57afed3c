"""Validation of rollups: an impossible rollup is refused, with the reason, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from stateside.core.errors import ViewInvalid
from stateside.views.aggregates import in_rollups
from stateside.views.catalogue import Catalogue

ROLLUPS_MAX = 16
_EXAMPLE = 'Write it like key=["customer", "country"], rollups=[["country"]]'


def declared_rollups(view: str, key: Sequence[str], rollups: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The rollups of a view's declaration; ViewInvalid if one is no coarser key of this key."""
    if isinstance(rollups, str) or any(isinstance(columns, str) for columns in rollups):
        raise _refused(view, f"its rollups are {rollups!r}, not a list of lists of columns", _EXAMPLE)
    declared = tuple(tuple(columns) for columns in rollups)
    if len(declared) > ROLLUPS_MAX:
        raise _refused(view, f"it has {len(declared)} rollups, more than {ROLLUPS_MAX}", "Ask for fewer of them")
    for number, columns in enumerate(declared):
        _check_columns(view, key, columns)
        if columns in declared[:number]:
            raise _refused(view, f"its rollup {list(columns)} is there twice", "Leave one of them out")
    return declared


def check_rollups(catalogue: Catalogue) -> None:
    """ViewInvalid if the view's columns or the kind of its key do not allow its rollups."""
    if not catalogue.rollups:
        return
    if catalogue.kind == "state-variable":
        raise _refused(
            catalogue.view,
            "it has rollups of a state variable, of which only the processor that keeps it knows how to add it up",
            "Leave the rollups out, or keep the sums in a state variable of their own",
        )
    sessions = {column.name for column in catalogue.key if column.whole is not None}
    for columns in catalogue.rollups:
        for name in sessions.intersection(columns):
            raise _refused(
                catalogue.view,
                f"its rollup {list(columns)} has the session window {name!r}, which no two rows have in common",
                f"Leave {name!r} out of it",
            )
    if not in_rollups(catalogue.columns):
        raise _refused(
            catalogue.view,
            f"none of its columns {[column.name for column in catalogue.columns]} can be added up and taken away again",
            "Rollups have counts, sums and averages: serve one of these as well, or leave the rollups out",
        )


def _check_columns(view: str, key: Sequence[str], columns: Sequence[str]) -> None:
    for name in columns:
        if name not in key:
            raise _refused(
                view, f"its rollup {list(columns)} has {name!r}, which its key does not", f"Its key has {list(key)}"
            )
        if "," in name or "/" in name:
            raise _refused(
                view, f"its rollup's column {name!r} has a comma or a slash", "Give it another name with alias(…)"
            )
    if len(set(columns)) < len(columns):
        raise _refused(view, f"its rollup {list(columns)} has a column twice", "Name each once")
    if set(columns) == set(key):
        raise _refused(
            view, f"its rollup {list(columns)} has all columns of its key", "Leave some out: else it is the view itself"
        )


def _refused(view: str, reason: str, next_step: str) -> ViewInvalid:
    return ViewInvalid(f"The view {view!r} cannot be served: {reason}", next_step=next_step)
