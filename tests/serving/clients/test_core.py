"""How a client goes about a question, without any I/O: servers are scripts, and time goes on only when told to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import KeyInvalid, Misdirected, NotFreshEnough, OperatingError, StatesideError
from stateside.replica.shard import Share
from stateside.serving.clients.calls import Calls
from stateside.serving.clients.core import PAUSE_S_MAX, Core, RetryDecision, pause_s, verdict
from stateside.serving.clients.steps import Ask, NoReply, Pause, Reply, Send, Steps, Together
from stateside.serving.registry.announcement import Announcement, HeldShare

URLS = ("http://a", "http://b", "http://c")
KEY = (("customer", "string"),)


def replied(status: int, document: Any = None, **headers: str) -> Reply:
    return Reply(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(document).encode()
    )


def problem(error: StatesideError, **headers: str) -> Reply:
    return replied(error.status, error.problem(), **headers)


def fine(share: str | None = None, batch: int = 1) -> Reply:
    stamp = {"view": "bill", "batch": batch, "position": f"0:{batch}", "watermark": "1970-01-01T00:00:00Z"}
    stamp |= {"committed": "1970-01-01T00:00:00Z", "age_ms": 1, "age_basis": "commit", "replica": "r", "source": "live"}
    return replied(200, {"stamp": stamp | ({"share": share} if share else {}), "rows": [], "cursor": None})


REFUSED = NoReply("connection refused", sent=False)
BROKEN = NoReply("connection reset", sent=True)
FAILURES = st.sampled_from(
    [
        REFUSED,
        BROKEN,
        replied(502),
        replied(503),
        replied(503, None, retry_after="2"),
        replied(429, None, retry_after="1"),
        problem(NotFreshEnough("old")),
        problem(Misdirected("elsewhere", location={"share": None, "servers": []})),
        problem(StatesideError("broken")),
    ]
)


@dataclass
class World:
    """Servers that reply by their scripts, and, when these are over, with what they end with; a clock of its own."""

    scripts: dict[str, Iterator[Reply | NoReply]]
    ends: dict[str, Reply | NoReply]
    servers: Callable[[], list[Announcement]] | None = None
    takes_s: float = 0.01
    now_s: float = 0.0
    sent: list[tuple[float, str]] = field(default_factory=list)

    def run(self, steps: Steps[Any]) -> Any:
        told: Any = None
        while True:
            try:
                step = steps.send(told)
            except StopIteration as end:
                return end.value
            told = self.do(step)

    def outcome(self, steps: Steps[Any]) -> Any:
        try:
            return self.run(steps)
        except StatesideError as error:
            return error

    def do(self, step: Any) -> Any:
        match step:
            case Pause(seconds):
                assert seconds > 0
                self.now_s += seconds
            case Together(courses):
                return [self.outcome(course) for course in courses]
            case Send(url, ask, timeout_s):
                assert timeout_s > 0
                self.now_s += min(self.takes_s, timeout_s)
                return self.reply(url, ask)
        return None

    def reply(self, url: str, ask: Ask) -> Reply | NoReply:
        if ask.path == "/v1/servers":
            if self.servers is None:
                return replied(404, {})
            return replied(200, {"name": None, "servers": [server.as_dict() for server in self.servers()]})
        self.sent.append((self.now_s, url))
        return next(self.scripts.get(url, iter(())), self.ends[url])

    def core(self, urls: Sequence[str] = URLS, deadline_s: float = 10.0) -> Core:
        return Core(urls, deadline_s=deadline_s, clock=lambda: self.now_s, chance=random.Random(1))


scripts = st.fixed_dictionaries({url: st.lists(FAILURES, max_size=6) for url in URLS})


def world(given_scripts: dict[str, list[Reply | NoReply]], ends: Reply | NoReply, takes_s: float = 0.01) -> World:
    return World({url: iter(script) for url, script in given_scripts.items()}, dict.fromkeys(URLS, ends), None, takes_s)


@given(scripts, FAILURES, st.floats(0.001, 5), st.floats(0.05, 20))
def test_every_call_ends_within_its_deadline(
    given_scripts: dict[str, list[Reply | NoReply]], ends: Reply | NoReply, takes_s: float, deadline_s: float
) -> None:
    made = world(given_scripts, ends, takes_s)
    with pytest.raises(StatesideError):
        made.run(made.core(deadline_s=deadline_s).reply(Ask("GET", "/x")))
    assert made.now_s <= deadline_s + 1e-6


@given(scripts)
def test_a_question_is_answered_as_long_as_one_server_comes_back_in_time(
    given_scripts: dict[str, list[Reply | NoReply]],
) -> None:
    """Whatever the others do meanwhile; a server that said what it can, on its own, is not asked again."""
    final = (NotFreshEnough.code, "internal")
    given_scripts["http://b"] = [got for got in given_scripts["http://b"] if _code(got) not in final]
    made = world(given_scripts, BROKEN)
    made.ends["http://b"] = fine()
    url, reply = made.run(made.core(deadline_s=60).reply(Ask("GET", "/x")))
    assert (url, reply.status) == ("http://b", 200)


@given(scripts)
def test_a_server_that_wants_to_be_left_alone_is(given_scripts: dict[str, list[Reply | NoReply]]) -> None:
    made = world(given_scripts, fine())
    asked: dict[str, float] = {}
    original = made.reply

    def reply(url: str, ask: Ask) -> Reply | NoReply:
        got = original(url, ask)
        if ask.path != "/v1/servers":
            assert made.now_s >= asked.get(url, 0.0), "asked again before Retry-After"
            if isinstance(got, Reply) and "retry-after" in got.headers:
                asked[url] = made.now_s + float(got.headers["retry-after"])
        return got

    made.reply = reply  # type: ignore[method-assign]
    with suppress(StatesideError):
        made.run(made.core(deadline_s=60).reply(Ask("GET", "/x")))


@given(scripts)
def test_what_must_not_be_repeated_is_sent_once_unless_nobody_can_have_got_it(
    given_scripts: dict[str, list[Reply | NoReply]],
) -> None:
    made = world(given_scripts, fine())
    got: list[Reply | NoReply] = []
    original = made.reply

    def reply(url: str, ask: Ask) -> Reply | NoReply:
        got.append(original(url, ask))
        return got[-1]

    made.reply = reply  # type: ignore[method-assign]
    with suppress(StatesideError):
        made.run(made.core().reply(Ask("POST", "/x", repeatable=False)))
    replies = [each for each in got if not (isinstance(each, Reply) and each.status == 404)]
    for before_last in replies[:-1]:
        unsent = isinstance(before_last, NoReply) and not before_last.sent
        assert unsent or (isinstance(before_last, Reply) and before_last.status in (421, 429))


@pytest.mark.parametrize("error", [KeyInvalid("no"), Misdirected("no", location=None)])
def test_what_would_be_refused_again_is_raised_at_once(error: StatesideError) -> None:
    made = world({}, problem(error))
    with pytest.raises(type(error)):
        made.run(made.core(deadline_s=0.05).reply(Ask("GET", "/x")))
    if isinstance(error, KeyInvalid):
        assert len(made.sent) == 1


@pytest.mark.parametrize(
    "location",
    [
        "c",
        [],
        {"servers": 1},
        {"servers": ["c"]},
        {"servers": [{}]},
        {"servers": [{"url": 1}]},
        {"servers": [{"url": ""}]},
    ],
)
def test_a_malformed_location_of_keys_is_one_sentence_with_the_server(location: Any) -> None:
    made = world({}, problem(Misdirected("elsewhere", location=location)))
    with pytest.raises(OperatingError, match=r"the location of the keys is malformed.*http://a"):
        made.run(made.core().reply(Ask("GET", "/x")))


def test_a_server_that_did_not_reply_is_asked_last_for_a_while() -> None:
    made = world({"http://a": [BROKEN]}, fine())
    core = made.core()
    assert made.run(core.reply(Ask("GET", "/x")))[0] == "http://b"
    assert made.run(core.reply(Ask("GET", "/x")))[0] == "http://b"
    made.now_s += 10
    assert made.run(core.reply(Ask("GET", "/x")))[0] == "http://a"


def test_a_question_that_may_wait_has_so_much_longer() -> None:
    made = world({}, BROKEN, takes_s=100)
    with pytest.raises(OperatingError, match="No Stateside server answered: connection reset"):
        made.run(Calls(made.core(deadline_s=3)).rows("bill", "x", wait_ms=25_000))
    assert made.now_s == pytest.approx(3 + 20)


@given(st.integers(1, 100), st.integers(0, 10))
def test_pauses_grow_up_to_a_limit_and_differ(rounds: int, seed: int) -> None:
    pause = pause_s(rounds, random.Random(seed))
    assert 0 < pause <= PAUSE_S_MAX
    assert pause <= 0.02 * 2 ** (rounds - 1)


@given(FAILURES, st.booleans())
def test_no_failure_is_taken_for_an_answer(got: Reply | NoReply, repeatable: bool) -> None:
    assert verdict(Ask("GET", "/x", repeatable=repeatable), got) is not RetryDecision.DONE


def _code(got: Reply | NoReply) -> str:
    document = None if isinstance(got, NoReply) else json.loads(got.content)
    return str(document["type"]).rpartition(":")[2] if document else ""


# Shares


def server(name: str, share: str | None, batch: int = 1) -> Announcement:
    held = HeldShare(None if share is None else Share.parse(share), batch, 0, "r", KEY, KEY)
    return Announcement(name, f"http://{name}", 0, {"bill": held})


def share_of(customer: str, count: int = 2) -> str:
    leading = HeldShare(None, 0, 0, "", KEY).leading([customer])
    assert leading is not None
    return next(f"{index}/{count}" for index in range(1, count + 1) if Share(index, count).has(leading))


def test_a_key_goes_straight_to_the_share_that_has_it() -> None:
    places = {"a": "1/2", "b": "2/2"}
    made = World({}, {f"http://{name}": fine(share) for name, share in places.items()})
    made.servers = lambda: [server(name, share) for name, share in places.items()]
    calls = Calls(made.core(["http://a"]))
    for customer in ("emma", "ben", "mia", "noah", "x", "y"):
        made.sent.clear()
        assert made.run(calls.rows("bill", customer)).stamp.share == share_of(customer)
        assert len(made.sent) == 1


def test_a_share_that_moved_is_found_again_where_the_server_says_or_the_others_do() -> None:
    customer = "emma"
    share = share_of(customer)
    moved = Misdirected("moved", location={"share": share, "servers": [{"url": "http://c"}]})
    made = World({}, {"http://a": problem(moved), "http://b": REFUSED, "http://c": fine(share)})
    made.servers = lambda: [server("a", share)]
    calls = Calls(made.core(["http://a"]))
    assert made.run(calls.rows("bill", customer)).stamp.share == share
    assert [url for _, url in made.sent] == ["http://a", "http://c"]

    made = World({}, {"http://a": fine("9/9"), "http://b": REFUSED, "http://c": fine(share)})
    announced = [server("b", share)]
    made.servers = lambda: [server("c", share)] if made.sent else announced
    calls = Calls(made.core(["http://a"]))
    assert made.run(calls.rows("bill", customer)).stamp.share == share
    assert [url for _, url in made.sent] == ["http://b", "http://c"]


def test_a_missing_share_is_told_by_its_number() -> None:
    made = World({}, {"http://a": fine("1/2")})
    made.servers = lambda: [server("a", "1/2")]
    with pytest.raises(OperatingError, match=r"no server announces the shares 2/2 of the view 'bill'"):
        made.run(Calls(made.core(["http://a"])).rollup("bill", []))


def test_an_answer_of_another_share_than_was_asked_is_not_taken() -> None:
    """The server was started again with another share since it was looked up: its rows would be missing or doubled."""
    made = World({"http://a": iter([fine("2/2")])}, {"http://a": fine("1/2"), "http://b": fine("2/2")})
    made.servers = lambda: [server("a", "1/2"), server("b", "2/2")]
    answer = made.run(Calls(made.core(["http://a"])).rows("bill"))
    assert [stamp.share for stamp in answer.stamps] == ["1/2", "2/2"]


def test_a_token_that_was_given_for_https_does_not_go_over_http() -> None:
    made = World({}, {"https://a": fine()})
    made.servers = lambda: [server("plain", None)]
    core = made.core(["https://a"])
    assert made.run(core.reply(Ask("GET", "/x")))[0] == "https://a"
    assert core.locations.anybody(made.now_s) == ["https://a"]
    assert not core.locations.may_ask("http://a")


def test_answers_of_shares_at_different_batches_are_asked_again_as_of_the_lowest() -> None:
    asked: list[tuple[str, str]] = []

    class Batches(World):
        def reply(self, url: str, ask: Ask) -> Reply | NoReply:
            if ask.path == "/v1/servers":
                return super().reply(url, ask)
            as_of = dict(ask.parameters).get("as_of", "")
            asked.append((url, as_of))
            return fine({"http://a": "1/2", "http://b": "2/2"}[url], int(as_of or {"http://a": 7, "http://b": 5}[url]))

    made = Batches({}, {})
    made.servers = lambda: [server("a", "1/2"), server("b", "2/2")]
    answer = made.run(Calls(made.core(["http://a"])).rows("bill", max_age_ms=5))
    assert asked == [("http://a", ""), ("http://b", ""), ("http://a", "5")]
    assert (answer.one_batch, answer.stamp.batch, answer.stamp.share) == (True, 5, None)


def test_where_the_history_does_not_go_back_so_far_the_answer_says_that_it_is_of_several_batches() -> None:
    from stateside.core.errors import HistoryGone

    class Gone(World):
        def reply(self, url: str, ask: Ask) -> Reply | NoReply:
            if ask.path == "/v1/servers":
                return super().reply(url, ask)
            if "as_of" in dict(ask.parameters):
                return problem(HistoryGone("too old"))
            return fine({"http://a": "1/2", "http://b": "2/2"}[url], {"http://a": 7, "http://b": 5}[url])

    made = Gone({}, {})
    made.servers = lambda: [server("a", "1/2"), server("b", "2/2")]
    answer = made.run(Calls(made.core(["http://a"])).rows("bill"))
    assert (answer.one_batch, answer.stamp.batch, answer.stamp.share) == (False, 5, "2/2")
    assert [stamp.batch for stamp in answer.stamps] == [7, 5]
