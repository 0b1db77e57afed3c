"""Tokens: only what was issued, and is valid now, tells a holder."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.clock import ManualClock
from stateside.core.errors import SetupError, TokenInvalid
from stateside.core.layout import Layout
from stateside.serving.access import verifier as verifier_module
from stateside.serving.access.principal import OPERATOR, ROLES, Appends, Principal, customer
from stateside.serving.access.token_files import Key, KeyFile
from stateside.serving.access.tokens import LIFE_S_MAX, SKEW_S, Claims, Issuer, signed
from stateside.serving.access.verifier import TOKEN_CHARS_MAX, TokenRefused, Verifier

NOW_US = 1_800_000_000_000_000
BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


class Place:
    """A folder with a clock, its issuer and a verifier that runs on."""

    def __init__(self, layout: Layout, *, guarded: bool = False) -> None:
        self.layout, self.clock = layout, ManualClock(NOW_US)
        self.issuer = Issuer(layout, self.clock)
        self.verifier = Verifier(layout, guarded=guarded, clock=self.clock)

    def holder(self, token: str) -> Principal:
        return self.verifier.holder(f"Bearer {token}")

    def refuses(self, token: str, match: str = "not known here") -> None:
        with pytest.raises(TokenInvalid, match=match) as caught:
            self.holder(token)
        assert len(token) < 20 or token not in str(caught.value)

    def key(self) -> Key:
        return KeyFile(self.layout.keys).read()[-1]

    def claims(self, **changed: Any) -> dict[str, Any]:
        own = Claims(customer("emma's page", "emma"), "1", NOW_US, NOW_US // 1_000_000 + 60)
        return own.payload() | changed

    def sign(self, payload: dict[str, Any], algorithm: str | None = "HS256", **header: Any) -> str:
        secret = "" if algorithm in (None, "none") else self.key().secret
        return jwt.encode(payload, secret, algorithm, headers={"kid": self.key().kid, **header})


@pytest.fixture
def place(layout: Layout) -> Place:
    found = Place(layout)
    found.issuer.create_operator("first")
    return found


def test_without_keys_everybody_is_an_operator(layout: Layout) -> None:
    verifier = Verifier(layout)
    assert verifier.holder(None) is verifier.holder("Bearer whatever") is OPERATOR
    assert not verifier.is_needed()


def test_a_token_is_its_holder_s_and_no_other_header_is(place: Place) -> None:
    ours, emmas = place.issuer.create_operator("ours"), place.issuer.create_customer("emma's page", "emma")
    for _ in range(2):  # the second time out of the cache
        assert place.holder(ours) == Principal("ours", frozenset(ROLES))
        assert place.verifier.holder(f"bearer  {emmas}") == customer("emma's page", "emma")
    for header in (
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {ours}",
        ours,
        f"Bearer {ours} {ours}",
        "Bearer ä",
        "Bearer \ud800",
    ):
        with pytest.raises(TokenInvalid):
            place.verifier.holder(header)


def test_what_a_token_says_of_roles_and_scope_is_its_holder_s(place: Place) -> None:
    scope = {"views": ["bill", "orders"], "where": {"country": "AT"}, "entities": ["e"], "types": ["t"]}
    text, _ = place.issuer.create("bot", ("sql", "append"), **scope)  # type: ignore[arg-type]
    assert place.holder(text) == Principal(
        "bot",
        frozenset({"sql", "append"}),
        frozenset({"bill", "orders"}),
        {"country": "AT"},
        Appends(frozenset({"e"}), frozenset({"t"})),
    )


def test_a_forged_token_is_refused(place: Place) -> None:
    other = Key(place.key().kid, b"x" * 32, "")
    place.refuses(signed(Claims.parse(place.claims()), other))
    header, payload, signature = place.sign(place.claims()).split(".")
    raised = json.dumps(place.claims(roles=["operator"], where={})).encode()
    place.refuses(f"{header}.{base64.urlsafe_b64encode(raised).decode().rstrip('=')}.{signature}")
    place.refuses(f"{header}.{payload}.{signature[::-1]}")


@pytest.mark.filterwarnings("ignore:.*bytes long")
@pytest.mark.parametrize("algorithm", [None, "none", "HS384", "HS512"])
def test_another_algorithm_is_refused_none_above_all(place: Place, algorithm: str | None) -> None:
    place.refuses(place.sign(place.claims(), algorithm))


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", "HS256 ", 1, ["HS256"], {}])
def test_the_header_s_word_on_the_algorithm_opens_nothing(place: Place, alg: object) -> None:
    header, payload, signature = place.sign(place.claims()).split(".")
    written = json.dumps({"alg": alg, "typ": "JWT", "kid": place.key().kid}).encode()
    header = base64.urlsafe_b64encode(written).decode().rstrip("=")
    for text in (f"{header}.{payload}.", f"{header}.{payload}.{signature}", f"{header}.{payload}"):
        place.refuses(text)


@pytest.mark.parametrize("kid", ["other", "", None, 7, ["a"], "../../etc/passwd"])
def test_another_kid_is_refused(place: Place, kid: object) -> None:
    token = jwt.encode(place.claims(), place.key().secret, "HS256", headers={} if kid is None else {"x": 1})
    header = {"alg": "HS256", "typ": "JWT"} | ({} if kid is None else {"kid": kid})
    encoded = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
    place.refuses(encoded + token[token.index(".") :], "not known here|key that this server does not have")


def test_a_token_is_valid_until_its_end_give_or_take_the_skew(place: Place) -> None:
    text, _ = place.issuer.create("short", life_s=60)
    place.clock.advance((60 + SKEW_S) * 1_000_000 - 1)
    assert place.holder(text).name == "short"
    place.clock.advance(1)
    for _ in range(2):  # in the cache, and thrown out of it
        with pytest.raises(TokenRefused, match="expired") as caught:
            place.holder(text)
        assert caught.value.name == "short", "the signature was right: the log may say who it was"


def test_a_token_of_the_future_is_not_valid_yet(place: Place) -> None:
    text = place.sign(place.claims(iat=NOW_US // 1_000_000 + SKEW_S + 1, exp=NOW_US // 1_000_000 + 99))
    place.refuses(text, "not valid yet")
    place.clock.advance(1_000_000)
    assert place.holder(text).name == "emma's page"


@pytest.mark.parametrize(
    "changed",
    [
        {"sub": ""},
        {"sub": None},
        {"sub": "a\nb"},
        {"sub": "x" * 201},
        {"jti": 7},
        {"iat": "now"},
        {"iat": True},
        {"iat": -1},
        {"exp": None},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"exp": 1e300},
        {"roles": []},
        {"roles": "operator"},
        {"roles": ["root"]},
        {"roles": [["read"]]},
        {"roles": ["operator"]},  # with a scope: there can be no such token
        {"views": []},
        {"views": "bill"},
        {"views": [1]},
        {"where": None},
        {"where": {"customer": 1}},
        {"where": {"": "emma"}},
        {"where": []},
        {"nbf": 0},
        {"aud": "others"},
        {"admin": True},
        {"exp": NOW_US // 1_000_000 + LIFE_S_MAX + 1},
        {"exp": NOW_US // 1_000_000 + 100 * 365 * 86_400},
        {"iat": 0},
        {"appends": None},
        {"appends": {}},
        {"appends": []},
        {"appends": {"entities": ["emma"], "types": "usage"}},
        {"appends": {"entities": ["emma"], "types": ["usage"]}},  # without the role append
        {"roles": ["append"], "appends": {"entities": [], "types": ["usage"]}},
        {"roles": ["append"], "appends": {"entities": None}},
        {"roles": ["append"], "appends": {"entities": None, "types": None, "ids": None}},
    ],
)
def test_claims_that_are_not_a_token_s_are_refused_although_we_signed_them(
    place: Place, changed: dict[str, object]
) -> None:
    assert place.holder(place.sign(place.claims())).name == "emma's page"
    place.refuses(place.sign(place.claims(**changed)), "not known here|none of this server's")


def test_a_token_of_the_longest_life_is_valid_until_its_end(place: Place) -> None:
    text, _ = place.issuer.create("long", life_s=LIFE_S_MAX)
    assert place.holder(text).name == "long"
    place.clock.advance(LIFE_S_MAX * 1_000_000)
    assert place.holder(text).name == "long"


@pytest.mark.parametrize("missing", ["sub", "jti", "iat", "exp", "roles", "views", "where"])
def test_every_claim_is_required(place: Place, missing: str) -> None:
    payload = {name: value for name, value in place.claims().items() if name != missing}
    place.refuses(place.sign(payload), "not known here|none of this server's")


@pytest.mark.parametrize("payload", [b"[]", b"1", b"null", b"{", b"", b"\xff", b"[" * 5_000])
def test_a_signed_payload_that_is_no_object_is_refused(place: Place, payload: bytes) -> None:
    text = jwt.api_jws.encode(payload, place.key().secret, "HS256", headers={"kid": place.key().kid})
    place.refuses(text)


def test_an_endless_token_is_refused_before_it_is_looked_at(place: Place) -> None:
    place.refuses("a." * (TOKEN_CHARS_MAX // 2) + "a")
    place.refuses(place.sign(place.claims(sub="x" * TOKEN_CHARS_MAX)))


def test_rotation_keeps_old_tokens_until_their_key_is_retired(place: Place) -> None:
    old_kid, old = place.key().kid, place.issuer.create_operator("old")
    place.issuer.rotate()
    new = place.issuer.create_operator("new")
    assert place.key().kid != old_kid
    assert (place.holder(old).name, place.holder(new).name) == ("old", "new")
    place.issuer.retire(old_kid)
    place.refuses(old, "key that this server does not have")
    assert place.holder(new).name == "new"


def test_a_revoked_name_is_refused_at_the_next_request_and_can_be_issued_again(place: Place) -> None:
    emmas, others = place.issuer.create_customer("emma", "emma"), place.issuer.create_operator("other")
    second = place.issuer.create_customer("emma", "emma")
    assert [place.holder(text).name for text in (emmas, second, others)] == ["emma", "emma", "other"]
    assert place.issuer.revoke("emma") == 2
    place.refuses(emmas, "revoked")
    place.refuses(second, "revoked")
    assert place.holder(others).name == "other"
    assert place.holder(place.issuer.create_customer("emma", "emma")).name == "emma", "in the same microsecond"
    place.refuses(emmas, "revoked")


def test_a_revoked_id_is_one_token_s_alone(place: Place) -> None:
    (first, one), (second, _) = place.issuer.create("emma"), place.issuer.create("emma")
    assert place.holder(first) == place.holder(second)
    assert place.issuer.revoke("emma", one.id) == 1
    place.refuses(first, "revoked")
    assert place.holder(second).name == "emma"


def test_a_name_s_revocation_holds_for_tokens_that_another_machine_issued(place: Place, layout: Layout) -> None:
    """It has the same keys, and a register of its own."""
    elsewhere = Layout(layout.root.parent / "elsewhere")
    elsewhere.root.mkdir()
    elsewhere.keys.write_bytes(layout.keys.read_bytes())
    elsewhere.keys.chmod(0o600)
    theirs = Issuer(elsewhere, place.clock).create_operator("shared")
    place.issuer.create_operator("shared")
    assert place.holder(theirs).name == "shared"
    place.issuer.revoke("shared")
    place.refuses(theirs, "revoked")


def test_a_revocation_outlives_every_token_that_it_is_about(place: Place) -> None:
    text, _ = place.issuer.create("long", life_s=400 * 86_400)
    place.issuer.revoke("long")
    other, _ = place.issuer.create("other", life_s=400 * 86_400)
    place.clock.advance((400 * 86_400 + SKEW_S) * 1_000_000 - 1)
    place.issuer.create("later")  # changes the register, which forgets what is over
    place.refuses(text, "revoked")
    assert place.holder(other).name == "other"


def test_a_verifier_that_began_with_keys_lets_nobody_in_when_they_are_gone(place: Place, layout: Layout) -> None:
    token = place.issuer.create_operator("ours")
    guarded = Verifier(layout, guarded=True, clock=place.clock)
    assert guarded.holder(f"Bearer {token}").name == "ours"
    layout.keys.unlink()
    for header in (None, f"Bearer {token}"):
        with pytest.raises(TokenInvalid):
            guarded.holder(header)
    assert guarded.is_needed()


def test_keys_without_the_register_let_nobody_in(place: Place, layout: Layout) -> None:
    """Otherwise deleting it would bring everybody back who was revoked."""
    token = place.issuer.create_operator("ours")
    assert place.holder(token).name == "ours"
    layout.issued.unlink()
    for check in (place.verifier.check_files, lambda: place.holder(token)):
        with pytest.raises(SetupError, match="register of tokens is missing"):
            check()


@pytest.mark.parametrize("name", ["keys", "issued"])
def test_files_that_others_can_read_let_nobody_in(place: Place, layout: Layout, name: str) -> None:
    path = getattr(layout, name)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(SetupError, match="chmod 600"):
        place.holder(place.sign(place.claims()))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"version": 2, "keys": []}',
        '{"version": 1, "keys": [{"kid": "a", "secret": "c2hvcnQ=", "made": ""}]}',
        '{"version": 1, "keys": [{"kid": "a", "secret": "*SECRET*", "made": ""}]}',
    ],
)
def test_a_key_file_that_is_not_whole_lets_nobody_in_and_is_not_shown(
    place: Place, layout: Layout, content: str
) -> None:
    layout.keys.write_text(content)
    with pytest.raises(SetupError, match="cannot be read") as caught:
        place.holder("x")
    assert "SECRET" not in str(caught.value)


def test_the_cache_is_bounded_and_holds_only_what_was_verified(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "CACHED_MAX", 100)
    claims = Claims.parse(place.claims())
    for number in range(105):
        place.holder(signed(replace(claims, id_=str(number)), place.key()))
        if number < 5:
            place.refuses(f"a.b.{number}")
    assert len(place.verifier._cached) == 100


def test_secrets_are_in_no_repr(place: Place) -> None:
    key = place.key()
    assert repr(key.secret) not in repr(key)


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, list[str]]:
    place = Place(Layout(tmp_path_factory.mktemp("issued")))
    return place, [place.issuer.create_operator("a"), place.issuer.create_customer("b", "emma")]


def _changed(token: str, draw: Callable[[st.SearchStrategy[Any]], Any]) -> str:
    at = draw(st.integers(0, len(token)))
    piece: str = draw(st.text(st.sampled_from(BASE64URL + ".= \n!ä"), max_size=3))
    return token[:at] + piece + token[at + draw(st.integers(0, 3)) :]


@given(data=st.data())
def test_no_text_is_accepted_that_was_not_issued(issued: tuple[Place, list[str]], data: st.DataObject) -> None:
    """Texts near to a token, parts of two, and any others; spaces around a token are not of it."""
    place, tokens = issued
    one, other = tokens
    near = st.sampled_from(tokens).map(lambda token: _changed(token, data.draw))
    crossed = st.permutations([*one.split("."), *other.split(".")]).map(lambda parts: ".".join(parts[:3]))
    text = data.draw(st.one_of(near, crossed, st.text(max_size=60)))
    if text.strip(" ") in tokens:
        assert place.holder(text).name in ("a", "b")
    else:
        with pytest.raises(TokenInvalid):
            place.holder(text)


def test_of_the_texts_for_the_same_signature_only_the_issued_one_is_accepted(issued: tuple[Place, list[str]]) -> None:
    """The last character of a signature has two bits that no byte takes: three more texts would mean the same."""
    place, (token, _) = issued
    for last in BASE64URL:
        if last != token[-1]:
            place.refuses(token[:-1] + last)
    for more in ("=", "==", "!", "\n", "\t", "%"):
        place.refuses(token + more)


def test_a_token_can_be_cut_nowhere(issued: tuple[Place, list[str]]) -> None:
    place, (token, _) = issued
    for length in range(len(token)):
        place.refuses(token[:length])


def test_the_signature_of_a_known_token_is_verified_once(
    issued: tuple[Place, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, (token, _) = issued
    verified, decode = list[str](), jwt.decode_complete

    def counted(text: str, *given: Any, **named: Any) -> Any:
        verified.append(text)
        return decode(text, *given, **named)

    monkeypatch.setattr(jwt, "decode_complete", counted)
    place.verifier._cached.clear()
    holders = {id(place.verifier.holder(f"Bearer {token}").name) for _ in range(100)}
    assert (len(holders), len(verified)) == (1, 1)
