"""The holder of a token: who asks, and how far that reaches.

A holder has *roles*, which open routes, and a *scope*, which says which rows there are for it: those of some views, and
in every view those whose columns have certain values. Whoever reads rows asks `rows_of` which of them the holder may
have; a view that does not have such a column has none for it. Which events a holder may append, its *append scope* says
(`appends`): of which entities, of which types. A scoped token without one appends nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from stateside.errors import AccessDenied

Role = Literal["operator", "read", "sql", "append"]
ROLES: Final[tuple[Role, ...]] = ("operator", "read", "sql", "append")
CUSTOMER: Final = "customer"  # the column by which billing tells whose data it is


@dataclass(frozen=True, slots=True)
class Appends:
    """Which events may be appended: of these entities and of these types; None for all."""

    entities: frozenset[str] | None = None
    types: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who asks. `views`: None for all; `where`: columns with the values that rows must have, none for all rows.

    `appends`: which events; None for all of them if the holder is not scoped, and for none if it is.
    """

    name: str
    roles: frozenset[Role]
    views: frozenset[str] | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    appends: Appends | None = None

    @property
    def is_scoped(self) -> bool:
        """Whether some data is out of its reach: then it is shown opaque positions (`position_codec`)."""
        limited = self.appends is not None and self.appends.entities is not None
        return self.views is not None or bool(self.where) or limited

    def require(self, role: Role) -> None:
        """AccessDenied without this role."""
        if role not in self.roles:
            raise AccessDenied(
                f"This token has not the role {role!r} that is needed here",
                next_step="Ask who runs this server for a token with that role",
            )

    def rows_of(self, view: str, columns: Collection[str]) -> Mapping[str, str]:
        """The values, as texts, that rows of a view with these columns must have; AccessDenied if there are none."""
        if self.views is not None and view not in self.views:
            raise AccessDenied(
                f"This token does not reach the view {view[:80]!r}",
                next_step=f"It reaches: {', '.join(sorted(self.views))}",
            )
        missing = sorted(set(self.where) - set(columns))
        if missing:
            raise AccessDenied(
                f"This token reaches rows by their column {missing[0]!r}, which the view {view[:80]!r} does not have",
                next_step="Ask a view that has it, or with another token",
            )
        return self.where

    def require_customer(self, customer: str | None) -> None:
        """AccessDenied for another customer's data than this one may have; None stands for nobody's data.

        What an application tells of a customer is made of several views and of all their columns: a token that
        reaches some views only, or some of the customer's rows, does not reach it.
        """
        if self.views is not None or (self.where and self.where != {CUSTOMER: customer}):
            raise AccessDenied(
                "This is not data that this token reaches: another customer's, or more than it may have of one",
                next_step="Ask for your own, or with an operator's token",
            )


def customer(name: str, id_: str) -> Holder:
    """The holder of a customer's token."""
    return Holder(name, frozenset({"read"}), where={CUSTOMER: id_})


OPERATOR: Final = Holder("operator", frozenset(ROLES))
