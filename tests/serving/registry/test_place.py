"""Who holds what: announcements as they are written and heard, and who has a key. Without servers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.clock import ManualClock
from stateside.core.errors import SettingInvalid, SetupError
from stateside.core.layout import Layout
from stateside.replica.shard import Share
from stateside.serving.registry.announcement import ANNOUNCEMENT, SILENCE_S, Announcement, HeldShare, leading_or_none
from stateside.serving.registry.announcer import Announcer, Identity, Servers, reached_at
from stateside.serving.registry.location import cover, holdings, location, missing
from stateside.serving.rows.view_readers import ViewReaders

KEY = (("customer", "string"), ("window", '{"type":"struct","fields":[{"name":"start","type":"timestamp"}]}'))


def held(share: str | None, batch: int = 1) -> HeldShare:
    return HeldShare(None if share is None else Share.parse(share), batch, 10, f"r-{share}-{batch}", KEY)


def server(name: str, share: str | None, batch: int = 1, time_us: int = 0) -> Announcement:
    return Announcement(name, f"http://{name}:1", time_us, {"bill": held(share, batch)})


def told(folder: Path, announcement: Announcement) -> None:
    (folder / "servers").mkdir(exist_ok=True)
    (folder / "servers" / f"{announcement.name}.json").write_bytes(ANNOUNCEMENT.encode(announcement))


def names(found: list[Announcement]) -> list[str]:
    return [each.name for each in found]


def test_an_announcement_is_read_as_it_is_written() -> None:
    for share in (None, "3/4"):
        written = server("a", share, 12, 99)
        assert ANNOUNCEMENT.decode(ANNOUNCEMENT.encode(written), "file") == written


def test_a_server_that_falls_silent_is_gone_after_five_seconds(tmp_path: Path) -> None:
    clock = ManualClock(0)
    told(tmp_path, server("a", None))
    servers = Servers(tmp_path, clock)
    assert names(servers.now()) == ["a"]
    clock.advance(int(SILENCE_S * 1e6))
    assert names(servers.now()) == ["a"]
    clock.advance(1_000)
    assert servers.now() == []


def test_what_is_no_announcement_is_left_out_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told(tmp_path, server("a", None))
    for name, content in {"b": "{", "c": "[]", "d": '{"name": "d"}', "e": '{"views": []}'}.items():
        (tmp_path / "servers" / f"{name}.json").write_text(content)
    (tmp_path / "servers" / ".f.json.tmp").write_text("half")
    servers = Servers(tmp_path, ManualClock(0))
    with caplog.at_level(logging.WARNING):
        assert names(servers.now()) == ["a"]
        servers._looked_s = float("-inf")
        assert names(servers.now()) == ["a"]
    assert len(caplog.records) == 4


def test_a_server_announces_itself_every_second_whichever_worker_does_it(tmp_path: Path) -> None:
    clock, identity = ManualClock(0), Identity(tmp_path, "a", "http://a:1")
    one, other = (Announcer(identity, ViewReaders(Layout(tmp_path), clock), clock) for _ in range(2))

    async def steps() -> list[bool]:
        found = [await one.step(), await other.step()]
        clock.advance(800_000)
        return [*found, await other.step(), await one.step()]

    assert asyncio.run(steps()) == [True, False, True, False]
    (found,) = Servers(tmp_path, clock).now()
    assert (found.url, found.time_us, found.views) == ("http://a:1", 800_000, {})


def test_only_its_own_announcement_is_withdrawn(tmp_path: Path) -> None:
    told(tmp_path, server("a", None))
    Identity(tmp_path, "a", "http://elsewhere:1").withdraw()
    assert names(Servers(tmp_path, ManualClock(0)).now()) == ["a"]
    Identity(tmp_path, "a", "http://a:1").withdraw()
    Identity(tmp_path, "a", "http://a:1").withdraw()
    assert Servers(tmp_path, ManualClock(0)).now() == []


def test_two_servers_of_one_name_are_refused_unless_the_other_is_gone(tmp_path: Path) -> None:
    told(tmp_path, server("a", None))
    clock, elsewhere = ManualClock(0), Identity(tmp_path, "a", "http://elsewhere:1")
    Identity(tmp_path, "a", "http://a:1").check(clock)  # it was killed, and is started again
    with pytest.raises(SetupError, match=r"Another server is called 'a', at http://a:1 .*another --name"):
        elsewhere.check(clock)
    clock.advance(6_000_000)
    elsewhere.check(clock)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "ä", "a b", "x" * 101])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingInvalid, match="is no name for a server"):
        Identity(tmp_path, name, "http://a:1").check()


def test_an_address_is_announced_as_others_reach_it() -> None:
    assert reached_at("http", "127.0.0.1", 80) == "http://127.0.0.1:80"
    assert reached_at("https", "::1", 80) == "https://[::1]:80"
    assert "0.0.0.0" not in reached_at("http", "0.0.0.0", 80)


@given(st.text(max_size=20), st.integers(1, 8))
def test_every_key_is_located_at_exactly_the_share_that_has_it_and_at_whole_servers(customer: str, count: int) -> None:
    shares = [server(f"s{index}", f"{index}/{count}") for index in range(1, count + 1)]
    leading = held(None).leading([customer])
    assert leading is not None
    assert len(holdings(shares, "bill", leading)) == 1
    assert len(holdings([*shares, server("whole", None)], "bill", leading)) == 2
    assert holdings(shares, "other", leading) == []


def test_the_newest_batch_comes_first_and_its_age_counts_on() -> None:
    leading = held(None).leading(["emma"])
    found = location([server("old", None, 3), server("new", "1/1", 4)], "bill", leading, now_us=2_000_000)
    assert found["share"] == "1/1"
    assert [(each["name"], each["batch"], each["age_ms"]) for each in found["servers"]] == [
        ("new", 4, 2_010),
        ("old", 3, 2_010),
    ]
    assert location([], "bill", leading, 0) == {"share": None, "servers": []}


def test_without_the_whole_first_column_nobody_can_tell_where_a_key_is() -> None:
    window_first = HeldShare(None, 1, 0, "r", (KEY[1], KEY[0]))
    assert held(None).leading([]) is None
    assert window_first.leading([]) is None
    assert window_first.leading(["2026-01-01T00:00:00Z"]) is not None
    assert leading_or_none(window_first, ["today"]) is None
    assert HeldShare(None, 1, 0, "r", ()).leading([]) == b"", "a view without a key has one row, in one share"


def test_all_keys_are_covered_by_as_few_shares_as_can_be() -> None:
    halves = [server("a", "1/2"), server("b", "2/2"), server("b2", "2/2")]
    thirds = [server(f"t{index}", f"{index}/3") for index in (1, 2, 3)]
    found = cover([*thirds, *halves], "bill")
    assert found is not None
    assert [[each.server.name for each in copies] for copies in found] == [["a"], ["b", "b2"]]
    whole = cover([*halves, server("w", None)], "bill")
    assert whole is not None
    assert [[each.server.name for each in copies] for copies in whole] == [["w"]]
    assert cover([*thirds[:2], halves[0]], "bill") is None
    assert missing(thirds[:2], "bill") == "no server announces the shares 3/3 of the view 'bill'"
    assert missing([], "bill") == "no server announces the view 'bill'"
