"""Through a real proxy: whatever one client sends, no request passes that the proxy did not see, and nobody else is
given its answers.

The proxy is nginx, as it is set up for websockets: it hands `Upgrade` on, sends a body on as it comes, and keeps one
connection to the server, which all clients share. It refuses the canary: so each canary that is executed was hidden.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.serving.access.guard import Guard
from stateside.serving.access.tokens import Issuer
from stateside.serving.rows.view_readers import ViewReaders
from stateside.serving.web.application import Application
from stateside.serving.web.route import Body, Route
from tests.serving.conftest import wait_until_it_answers
from tests.setup.test_setup import tool

from .conversations import CONVERSATIONS, PACKET_S
from .running import Running
from .test_connection import NOTE_BYTES_MAX, Rooms

proxy = tool("proxy")
NGINX = proxy.nginx(os.environ)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(NGINX is None, reason=f"There is no nginx: {proxy.ADVICE}"),
]

CONFIGURATION = """
worker_processes 1;
daemon off;
user root;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $asked {{ default upgrade; "" ""; }}
    upstream stateside {{ server 127.0.0.1:{server}; keepalive 1; }}
    server {{
        listen 127.0.0.1:{port};
        location /v1/canary {{ return 403; }}
        location / {{
            proxy_pass http://stateside;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_set_header Host localhost;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $asked;
        }}
    }}
}}
"""


@pytest.fixture(scope="module")
def rooms() -> Rooms:
    return Rooms()


@pytest.fixture(scope="module")
def port(rooms: Rooms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The proxy's, in front of a server of those rooms."""
    folder, port = tmp_path_factory.mktemp("proxied"), free_port()
    layout = Layout(folder / "application")
    Issuer(layout).create("somebody")
    slow = Route("/v1/slow", rooms.slow, "", "anyone", method="POST", body=Body({}, NOTE_BYTES_MAX))
    with Running(Application(ViewReaders(layout), [*rooms.routes(), slow], guard=Guard.of(layout))) as running:
        configuration = folder / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(folder=folder, server=running.port, port=port))
        child = Child([str(NGINX), "-p", str(folder), "-c", str(configuration)], folder / "log")
        try:
            wait_until_it_answers(f"http://127.0.0.1:{port}/v1/hello", child)
            yield port
        finally:
            child.stop()


def test_no_request_passes_the_proxy_unseen_and_nobody_gets_the_answer_of_another(port: int, rooms: Rooms) -> None:
    """A body comes while its request is being answered: that is when it was taken for the next request."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as victim:
        for number, conversation in enumerate(CONVERSATIONS):
            sent = conversation.sent.replace("/v1/note", "/v1/slow").replace("§", f"{number:08}").encode("latin-1")
            for cut in (len(sent), sent.find(b"\r\n\r\n") + 4, len(sent) // 2):
                attack(port, sent[:cut], sent[cut:])
                answers = [victim.get("/v1/next").text for _ in range(2)]
                assert (str(conversation), answers) == (str(conversation), ['{"next":true}'] * 2)
                assert (str(conversation), rooms.canaries) == (str(conversation), set())


def attack(port: int, *packets: bytes) -> None:
    """Send them, and read what comes until there is nothing for a moment."""
    with socket.create_connection(("127.0.0.1", port), 60) as connection, suppress(OSError):
        for packet in packets:
            connection.sendall(packet)
            time.sleep(PACKET_S)
        connection.settimeout(10 * PACKET_S)
        while connection.recv(1 << 16):
            pass
