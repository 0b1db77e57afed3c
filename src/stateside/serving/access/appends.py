"""Which events a holder may append: checked at each request, so for tokens that were issued earlier too.

A scoped token appends events of its entities and of its types, and nothing without both. Their ids are in a namespace
of the entity, `@ENTITY/NAME`: an id is stored once, so whoever could choose any id could take the one of another's
future event, which would then be refused as repeated, or learn from the answer which ids there are. The `@` keeps them
apart from the ids of trusted producers for the same entity, such as of a fee. Tags, by which an application looks
events up across entities, are for trusted producers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stateside.errors import AccessDenied
from stateside.journal.event import Event
from stateside.serving.access.holder import Appends, Holder

MARK: Final = "@"
_NOTHING: Final = Appends(frozenset(), frozenset())


def check_appends(holder: Holder, events: Sequence[Event]) -> None:
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
