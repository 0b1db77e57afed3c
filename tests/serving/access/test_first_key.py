"""The first key of an open server: what was let in without a token is let go."""

from __future__ import annotations

from pathlib import Path

from stateside.serving.access.guard import Guard
from stateside.serving.access.tokens import Issuer
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from tests.serving.rows.shop import Shop
from tests.serving.web.running import Running
from tests.waiting import wait_until

WATCH = "GET /v1/views/spending/changes?pulse=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_stream_that_was_open_before_the_first_key_is_cut_and_told_nothing_more(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.batch({("emma", "de"): (2, 104)})
    views = ViewReaders(shop.layout)
    with Running(Application(views, guard=Guard.of(shop.layout))) as running, running.connect() as connection:
        told = bytearray()

        def told_of(what: bytes) -> bool:
            told.extend(connection.recv(1 << 16))
            return what in told

        connection.sendall(WATCH.encode())
        wait_until(lambda: told_of(b"event: snapshot"))
        Issuer(shop.layout).create_operator("first")
        wait_until(lambda: told_of(b"event: cut"), told.decode)
        assert b"token-invalid" in told.partition(b"event: cut")[2]
        assert b"event: pulse" not in told.partition(b"event: cut")[2]
    for replica in views._replicas.values():
        replica.close()
