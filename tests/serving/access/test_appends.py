"""Which events a token may append: its own entities', of its types, under ids that are nobody else's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stateside.core.errors import AccessDenied, RequestInvalid
from stateside.core.layout import Layout
from stateside.journal import Event, FileLog
from stateside.journal.backends.nodes import NodeWriter
from stateside.journal.backends.nodes.log import node_logs
from stateside.serving.access.principal import OPERATOR, Appends, Principal, check_appends
from stateside.serving.access.tokens import Issuer, holder_of
from stateside.serving.access.verifier import Verifier
from stateside.serving.changes.feed import Feeds
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.event_routes import event_routes
from stateside.serving.web.request import Request

C1 = {"customer": "c1"}


def holder(**more: Any) -> Principal:
    given: dict[str, Any] = {"where": C1, "appends": Appends(frozenset({"c1"}), frozenset({"usage"}))}
    return Principal("x", frozenset({"append"}), **given | more)


def post(layout: Layout, who: Principal, *events: dict[str, Any]) -> None:
    (route,) = event_routes(layout)
    views = ViewReaders(layout)
    request = Request((), (), {}, views, Feeds(views), who, body=json.dumps({"events": events}).encode())
    route.check(who, ())
    asyncio.run(route.handler(request))  # type: ignore[arg-type]


def event(id_: str = "@c1/1", entity: str = "c1", type_: str = "usage", **more: Any) -> dict[str, Any]:
    return {"id": id_, "entity": entity, "type": type_, **more}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (event("@c2/1", "c2"), "its entity is none of c1"),
        (event("@c1/1", "c2"), "its entity is none of c1"),
        (event(type_="credit"), "its type is none of usage"),
        (event("c1-1"), "its id is not @ENTITY/NAME"),
        (event("c1/1"), "its id is not @ENTITY/NAME"),
        (event("@c2/1"), "its id is not @ENTITY/NAME"),
        (event("@c1/"), "its id is not @ENTITY/NAME"),
        (event("@c1"), "its id is not @ENTITY/NAME"),
        (event("@c1/b/1"), "its id is not @ENTITY/NAME"),
        (event(tags=["order-7"]), "it has tags"),
    ],
)
def test_a_scoped_token_appends_only_what_its_scope_names(layout: Layout, bad: dict[str, Any], why: str) -> None:
    with pytest.raises(AccessDenied, match=f"Event 1 of the request .*{why}"):
        post(layout, holder(), event("@c1/good"), bad)
    assert FileLog(layout.journal).end().events() == 0, "nothing of the request is stored"


def test_a_scoped_token_appends_its_own_events_and_an_unscoped_one_all(layout: Layout) -> None:
    post(layout, holder(), event("@c1/1"), event("@c1/2"))
    post(layout, OPERATOR, event("a", "c2", "credit", tags=["t"]))
    assert [each.id for each in FileLog(layout.journal).events()] == ["@c1/1", "@c1/2", "a"]


def test_a_scoped_token_appends_its_own_events_to_a_folder_of_nodes_and_no_others(layout: Layout) -> None:
    with NodeWriter(layout.journal, "hamburg"):
        pass
    post(layout, holder(), event("@c1/1"))
    with pytest.raises(AccessDenied):
        post(layout, holder(), event("@c1/2"), event("@c2/1", "c2"))
    assert [each.id for log in node_logs(layout.journal).values() for each in log.events()] == ["@c1/1"]


def test_of_two_entities_no_id_is_both_s() -> None:
    """The entity a, with a name that has a slash, would have the ids of the entity a/b."""
    short, long = (holder(appends=Appends(frozenset({name}), frozenset({"usage"}))) for name in ("a", "a/b"))
    check_appends(long, [Event("@a/b/1", "a/b", "usage", 0, {})])
    with pytest.raises(AccessDenied):
        check_appends(short, [Event("@a/b/1", "a", "usage", 0, {})])


@pytest.mark.parametrize("scope", [{"where": C1}, {"views": frozenset({"bill"}), "where": {}}])
def test_a_scoped_token_that_was_issued_earlier_and_names_no_types_appends_nothing(
    layout: Layout, scope: dict[str, Any]
) -> None:
    with pytest.raises(AccessDenied, match="names no types") as refused:
        post(layout, holder(appends=None, **scope), event())
    assert "stateside token create NAME --role append --customer ID --type TYPE" in str(refused.value.next_step)


def test_a_token_that_is_limited_in_types_alone_keeps_its_own_ids_and_tags() -> None:
    limited = holder(where={}, appends=Appends(None, frozenset({"usage"})))
    check_appends(limited, [Event("any", "c2", "usage", 0, {}, tags=("t",))])
    with pytest.raises(AccessDenied, match="its type"):
        check_appends(limited, [Event("any", "c2", "credit", 0, {})])


def test_the_scope_travels_in_the_token_and_stands_in_the_register(layout: Layout) -> None:
    issuer = Issuer(layout)
    text, issued = issuer.create("x", ("append",), where=C1, entities=["c1"], types=["usage", "data"])
    found = Verifier(layout).holder(f"Bearer {text}")
    assert found.appends == Appends(frozenset({"c1"}), frozenset({"usage", "data"}))
    assert issued.appends == {"entities": ["c1"], "types": ["data", "usage"]}
    issuer.create("y")
    assert [each.appends for each in issuer.tokens()] == [issued.appends, None]
    plain = [each for each in json.loads(layout.issued.read_text())["issued"] if each["name"] == "y"]
    assert "appends" not in plain[0], "an older version can read it"


@pytest.mark.parametrize("given", [{"where": C1}, {"where": C1, "types": ["usage"]}, {"entities": ["c1"]}])
def test_a_scoped_token_with_the_role_append_is_not_made_without_entities_and_types(
    layout: Layout, given: dict[str, Any]
) -> None:
    with pytest.raises(RequestInvalid, match="names the entities and the types"):
        Issuer(layout).create("x", ("append",), **given)
    assert not layout.keys.exists()


@pytest.mark.parametrize(
    ("roles", "appends", "why"),
    [
        (["read"], Appends(None, frozenset({"usage"})), "has not the role append"),
        (["operator"], Appends(None, frozenset({"usage"})), "has not the role append"),
        (["operator", "append"], Appends(None, frozenset({"usage"})), "An operator reaches everything"),
        (["append"], Appends(frozenset(), None), "1 to 64 entities and types"),
        (["append"], Appends(None, frozenset(map(str, range(65)))), "1 to 64 entities and types"),
    ],
)
def test_an_append_scope_that_cannot_be_is_refused(roles: Any, appends: Appends, why: str) -> None:
    with pytest.raises(RequestInvalid, match=why):
        holder_of("x", roles, None, {}, appends)
