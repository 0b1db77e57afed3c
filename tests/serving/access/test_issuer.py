"""The issuer: what can be issued, what the register has of it, and how keys come and go."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from stateside.core.clock import ManualClock
from stateside.core.errors import RequestInvalid, StatesideError
from stateside.core.layout import Layout
from stateside.serving.access.token_files import KEYS_MAX
from stateside.serving.access.tokens import Issuer, parse_life_s

NOW_US = 1_800_000_000_000_000
DAY_US = 86_400_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_US)


@pytest.fixture
def issuer(layout: Layout, clock: ManualClock) -> Issuer:
    return Issuer(layout, clock)


def test_the_register_lists_what_was_issued_and_has_no_token(issuer: Issuer, layout: Layout) -> None:
    text, issued = issuer.create("bot", ("sql",), views=["bill"], where={"country": "AT"}, life_s=3_600)
    (listed,) = issuer.tokens()
    assert listed == issued
    assert (listed.name, listed.roles, listed.views, listed.where) == ("bot", ["sql"], ["bill"], {"country": "AT"})
    assert (listed.issued, listed.expires) == ("2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z")
    for part in text.split("."):
        assert part not in layout.issued.read_text() + layout.keys.read_text()


def test_what_expired_or_was_revoked_is_listed_no_longer_and_leaves_the_file(
    issuer: Issuer, layout: Layout, clock: ManualClock
) -> None:
    issuer.create("short", life_s=60)
    issuer.create("revoked", life_s=600)
    issuer.create("long")
    issuer.revoke("revoked")
    assert [each.name for each in issuer.tokens()] == ["short", "long"]
    clock.advance(DAY_US)
    assert [each.name for each in issuer.tokens()] == ["long"]
    issuer.create("new")
    document = json.loads(layout.issued.read_text())
    assert [each["name"] for each in document["issued"]] == ["long", "new"]
    assert [each["name"] for each in document["revoked"]] == ["revoked"]
    clock.advance(401 * DAY_US)
    issuer.create("newest")
    assert json.loads(layout.issued.read_text())["revoked"] == [], "nothing that it is about can be valid now"


def test_a_revoked_id_leaves_the_file_once_the_token_would_have_expired(
    issuer: Issuer, layout: Layout, clock: ManualClock
) -> None:
    _, one = issuer.create("a", life_s=60)
    issuer.revoke("a", one.id)
    assert len(json.loads(layout.issued.read_text())["revoked"]) == 1
    clock.advance(66 * 1_000_000)
    issuer.create("b")
    assert json.loads(layout.issued.read_text())["revoked"] == []


def test_nothing_is_revoked_twice_or_by_another_s_id(issuer: Issuer) -> None:
    _, one = issuer.create("a")
    issuer.create("b")
    for name, id_ in (("c", None), ("b", one.id), ("a", "other")):
        with pytest.raises(RequestInvalid, match="There is no token"):
            issuer.revoke(name, id_)
    issuer.revoke("a")
    with pytest.raises(RequestInvalid, match="There is no token 'a'"):
        issuer.revoke("a")


@pytest.mark.parametrize(
    "call",
    [
        lambda issuer: issuer.create(""),
        lambda issuer: issuer.create("a\nb"),
        lambda issuer: issuer.create("x" * 201),
        lambda issuer: issuer.create("a", ()),
        lambda issuer: issuer.create("a", ("operator",), where={"customer": "emma"}),
        lambda issuer: issuer.create("a", ("operator", "read"), views=["bill"]),
        lambda issuer: issuer.create("a", views=[]),
        lambda issuer: issuer.create("a", views=[f"v{number}" for number in range(65)]),
        lambda issuer: issuer.create("a", life_s=0),
        lambda issuer: issuer.create("a", life_s=401 * 86_400),
    ],
)
def test_a_token_that_cannot_be_is_not_made_and_neither_is_a_key(issuer: Issuer, layout: Layout, call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RequestInvalid):
        call(issuer)
    assert not layout.keys.exists() and not layout.issued.exists()


def test_keys_are_listed_with_how_many_tokens_each_has_signed(issuer: Issuer) -> None:
    issuer.create("a")
    issuer.create("b")
    issuer.rotate()
    issuer.create("c")
    assert [count for _, count in issuer.listed_keys()] == [2, 1]
    issuer.retire(issuer.listed_keys()[0][0].kid)
    assert [count for _, count in issuer.listed_keys()] == [1]
    assert [each.name for each in issuer.tokens()] == ["c"], "the others are valid no longer"


def test_the_newest_key_is_not_retired_nor_one_that_there_is_not(issuer: Issuer) -> None:
    kid = issuer.rotate().kid
    with pytest.raises(RequestInvalid, match="newest"):
        issuer.retire(kid)
    with pytest.raises(RequestInvalid, match="no key 'other'"):
        issuer.retire("other")


def test_keys_are_bounded(issuer: Issuer) -> None:
    for _ in range(KEYS_MAX):
        issuer.rotate()
    with pytest.raises(RequestInvalid, match="keys already"):
        issuer.rotate()


def test_changes_at_the_same_time_all_count(issuer: Issuer) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: issuer.create(f"t{number}"), range(24)))
    assert {each.name for each in issuer.tokens()} == {f"t{number}" for number in range(24)}
    assert len(issuer.listed_keys()) == 1, "the first key is made once"


@pytest.mark.parametrize(("text", "life_s"), [("90s", 90), ("15m", 900), ("24h", 86_400), ("30d", 2_592_000)])
def test_a_time_is_written_with_its_unit(text: str, life_s: int) -> None:
    assert parse_life_s(text) == life_s


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5h", "1w", "1d ", "٣d", "9" * 30 + "d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(StatesideError, match="no time"):
        parse_life_s(text)
