"""The principal: the holder of a token, with its roles and scopes.

Roles open routes. The *scope* limits the rows: to some views, and in every view to rows whose columns have given
values. Every reader of rows calls `rows_of`; a view without such a column has no rows for the principal. The *append
scope* (`Appends`) limits the events: their entities and types.

The append scope is checked at each request, so also for tokens issued earlier. A scoped token appends events of its
entities and of its types, and nothing without both. The ids of its events are in the entity's namespace,
`@ENTITY/NAME`. An id is stored once, so a principal with a free choice of ids could take the id of another entity's
future event, which would then be refused as repeated, or learn from the answer which ids exist. The `@` separates these
ids from ids of trusted producers for the same entity, such as a fee's. Only trusted producers set tags, by which an
application looks events up across entities.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from stateside.core.errors import AccessDenied
from stateside.journal.event import Event

Role = Literal["operator", "read", "sql", "append"]
ROLES: Final[tuple[Role, ...]] = ("operator", "read", "sql", "append")
CUSTOMER: Final = "customer"  # billing's column for the owner of a row


@dataclass(frozen=True, slots=True)
class Appends:
    """An append scope: the allowed entities and types; None for all."""

    entities: frozenset[str] | None = None
    types: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """The principal of a request. `views`: None for all; `where`: required column values, empty for all rows.

    `appends`: None means all events for an unscoped principal, and no events for a scoped one.
    """

    name: str
    roles: frozenset[Role]
    views: frozenset[str] | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    appends: Appends | None = None

    @property
    def is_scoped(self) -> bool:
        """Whether the principal reaches only part of the data; positions are then opaque (`position_codec`)."""
        limited = self.appends is not None and self.appends.entities is not None
        return self.views is not None or bool(self.where) or limited

    def require(self, role: Role) -> None:
        """Raise AccessDenied unless the principal has the role."""
        if role not in self.roles:
            raise AccessDenied(
                f"This token has not the role {role!r} that is needed here",
                next_step="Ask who runs this server for a token with that role",
            )

    def rows_of(self, view: str, columns: Collection[str]) -> Mapping[str, str]:
        """The column values, as texts, that rows of a view must have; AccessDenied if the scope excludes the view."""
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
        """Raise AccessDenied unless the principal reaches all data of the customer; None stands for nobody's data.

        An application's answer about a customer is made of several views and all their columns. So a token limited to
        some views, or to some of the customer's rows, does not reach the answer.
        """
        if self.views is not None or (self.where and self.where != {CUSTOMER: customer}):
            raise AccessDenied(
                "This is not data that this token reaches: another customer's, or more than it may have of one",
                next_step="Ask for your own, or with an operator's token",
            )


def customer(name: str, id_: str) -> Principal:
    return Principal(name, frozenset({"read"}), where={CUSTOMER: id_})


OPERATOR: Final = Principal("operator", frozenset(ROLES))
MARK: Final = "@"
_NOTHING: Final = Appends(frozenset(), frozenset())


def check_appends(holder: Principal, events: Sequence[Event]) -> None:
    """Raise AccessDenied for the first event outside the append scope; then nothing of the request is stored."""
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
