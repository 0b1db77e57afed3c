"""The hosts of an open server: addresses, localhost and its own names, and nothing that a stranger can have."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import AccessDenied
from stateside.serving.access.hosts import Hosts, names_at

HOSTS = Hosts(names_at("bills.internal"))


@pytest.mark.parametrize(
    "host",
    [
        None,
        "127.0.0.1",
        "127.0.0.1:8471",
        "192.168.1.20:8471",
        "[::1]",
        "[::1]:8471",
        "[::ffff:127.0.0.1]:80",
        "localhost",
        "localhost:9000",
        "LocalHost.",
        "bills.localhost:8471",
        "bills.internal",
        "Bills.Internal:8471",
        socket.gethostname(),
        f"{socket.getfqdn()}:8471",
    ],
)
def test_what_no_stranger_s_name_can_be_is_answered(host: str | None) -> None:
    HOSTS.check(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8471",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example",
        "evil.example, 127.0.0.1",
        "127.0.0.1, evil.example",
        "127.0.0.1@evil.example",
        "[evil.example]",
        "[::1].evil.example",
        "[::1",
        "2130706433",
        "0x7f.1",
        "localhost:8471:1",
        "localhost:x",
        " localhost",
        "x.bills.internal",
    ],
)
def test_every_other_one_is_refused_also_after_one_that_was_answered(host: str) -> None:
    HOSTS.check("localhost")
    with pytest.raises(AccessDenied):
        HOSTS.check(host)


def test_on_loopback_the_machine_s_own_name_is_none_of_the_server_s() -> None:
    assert names_at("127.0.0.1") == {"127.0.0.1"}
    assert names_at("localhost") == {"localhost"}
    assert names_at("0.0.0.0") >= {socket.gethostname(), socket.getfqdn()}


@given(st.text(max_size=50), st.from_regex(r"(:[0-9]{1,5})?", fullmatch=True))
def test_whatever_is_put_before_it_a_stranger_s_name_stays_one(text: str, port: str) -> None:
    with pytest.raises(AccessDenied):
        Hosts().check(f"{text}.evil.example{port}")
