"""The holder of a token: who asks, and how far that reaches.

A holder has *roles*, which open routes, and a *scope*, which says which rows there are for it: those of some views, and
in every view those whose columns have certain values. Whoever reads rows asks `rows_of` which of them the holder may
have; a view that does not have such a column has none for it. Which events a holder may append, its *append scope* says
(`appends`): of which entities, of which types. A scoped token without one appends nothing.

Which events a holder may append: checked at each request, so for tokens that were issued earlier too.

A scoped token appends events of its entities and of its types, and nothing without both. Their ids are in a namespace
of the entity, `@ENTITY/NAME`: an id is stored once, so whoever could choose any id could take the one of another's
future event, which would then be refused as repeated, or learn from the answer which ids there are. The `@` keeps them
apart from the ids of trusted producers for the same entity, such as of a fee. Tags, by which an application looks
events up across entities, are for trusted producers alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from stateside.core.errors import AccessDenied
from stateside.journal.event import Event

Role = Literal["operator", "read", "sql", "append"]
ROLES: Final[tuple[Role, ...]] = ("operator", "read", "sql", "append")
CUSTOMER: Final = "customer"  # the column by which billing tells whose data it is


@dataclass(frozen=True, slots=True)
class Appends:
    """Which events may be appended: of these entities and of these types; None for all."""

    entities: frozenset[str] | None = None
    types: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Principal:
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


def customer(name: str, id_: str) -> Principal:
    """The holder of a customer's token."""
    return Principal(name, frozenset({"read"}), where={CUSTOMER: id_})


OPERATOR: Final = Principal("operator", frozenset(ROLES))
MARK: Final = "@"
_NOTHING: Final = Appends(frozenset(), frozenset())


def check_appends(holder: Principal, events: Sequence[Event]) -> None:
    """AccessDenied, naming the first event that this holder may not append; then nothing of the request is stored."""
    appends = holder.appends or (_NOTHING if holder.is_scoped else Appends())
    if appends.types is not None and not appends.types:
        raise AccessDenied(
            "This token is scoped and names no types of events that it may append",
            next_step="Ask who runs this server for one that does: "
            "`stateside token create NAME --role append --customer ID --type TYPE`",
        )
    for number, event in enumerate(events):
        reason = _refusal(appends, event, scoped=holder.is_scoped)
        if reason is not None:
            raise AccessDenied(
                f"Event {number} of the request may not be appended with this token: {reason}",
                next_step="Nothing of the request was stored; leave the event out, or ask for a token with that scope",
            )


def _refusal(appends: Appends, event: Event, *, scoped: bool) -> str | None:
    if appends.entities is not None and event.entity not in appends.entities:
        return f"its entity is none of {_listed(appends.entities)}"
    if appends.types is not None and event.type not in appends.types:
        return f"its type is none of {_listed(appends.types)}"
    if not scoped:
        return None
    if event.tags:
        return "it has tags"
    namespace, slash, name = event.id.rpartition("/")  # the last slash: so "a" has no id of the entity "a/b"
    if namespace != f"{MARK}{event.entity}" or not slash or not name:
        return f"its id is not {MARK}ENTITY/NAME, with the event's entity and a name without a slash"
    return None


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
