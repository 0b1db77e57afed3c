"""Conversations with a server, byte by byte: what is sent, how often it is answered, and what the connection is then.

Each has a canary, a request that an attacker hides in another one. It is executed only where it is a request of its
own; where it is, `answers` has its answer too. Whatever is sent in one packet or cut in two has the same result.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass

HOST = "localhost"
OWN = f"Host: {HOST}\r\n"
PACKET_S = 0.02  # between two packets, so that the server gets them one by one: most often, and nothing depends on it
_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n(.*?)\r\n\r\n", re.DOTALL)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Conversation:
    """What is sent, with `§` where the canary's name belongs, and the statuses that come back.

    `closes`: the server ends the connection after them. Else it answers the next request as if nothing had been.
    """

    name: str
    sent: str
    answers: tuple[int, ...]
    closes: bool = False
    canary: bool = False  # is executed

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Result:
    """What came of one: all answers, in their order, and whether the server closed the connection."""

    answers: tuple[int, ...]
    closed: bool


def request(method: str, path: str, headers: str = "", body: str = "", version: str = "1.1", host: str = OWN) -> str:
    return f"{method} {path} HTTP/{version}\r\n{host}{headers}\r\n{body}"


def note(headers: str = "", body: str = "", path: str = "/v1/note", version: str = "1.1") -> str:
    """A request whose body is an event, if it is one by HTTP's rules."""
    return request("POST", path, headers, body, version)


def get(headers: str = "", path: str = "/v1/hello", version: str = "1.1", host: str = OWN) -> str:
    return request("GET", path, headers, version=version, host=host)


CANARY = get(path="/v1/canary/§")
HIDDEN = f"Content-Length: {len(CANARY) + 7}\r\n"  # a name has eight characters
CHUNKED = "Transfer-Encoding: chunked\r\n"
UPGRADE = "Connection: Upgrade\r\nUpgrade: h2c\r\n"
WEBSOCKET = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
IN_CHUNK = f"{len(CANARY) + 7:x}\r\n{CANARY}\r\n0\r\n\r\n"
LONG_BODY = 1_500  # more than `/v1/note` takes


def _refused(name: str, sent: str) -> Conversation:
    return Conversation(name, sent, (400,), closes=True)


HOSTS = [
    _refused("no host", get(host="") + CANARY),
    _refused("two hosts", get("Host: localhost\r\n") + CANARY),
    _refused("two hosts, of a stranger", get("host: evil.example\r\n") + CANARY),
    _refused("two hosts, one of them empty", get("Host:\r\n") + CANARY),
    _refused("an empty host", get(host="Host: \r\n") + CANARY),
    _refused("two hosts in one line", get(host="Host: localhost, evil.example\r\n")),
    _refused("a host with a user", get(host="Host: localhost@evil.example\r\n")),
    _refused("a host with a path", get(host="Host: localhost/evil\r\n")),
    _refused("two hosts in HTTP/1.0", get("Host: evil.example\r\n", version="1.0")),
    Conversation("no host in HTTP/1.0", get(version="1.0", host=""), (200,), closes=True),
    Conversation("a host with spaces after it", get(host="Host: localhost \t\r\n"), (200,)),
]
TARGETS = [
    _refused("an address of another host", get(path="http://evil.example/v1/hello") + CANARY),
    _refused("an address of another port", get(path="http://localhost:81/v1/hello")),
    _refused("an address with a user", get(path="http://localhost@evil.example/v1/hello")),
    _refused("an address of another protocol", get(path="ftp://localhost/v1/hello")),
    _refused("an address and no host", get(path="http://localhost/v1/hello", version="1.0", host="")),
    _refused("a tunnel", request("CONNECT", "localhost:443") + CANARY),
    _refused("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + CANARY),
    _refused("HTTP/2 by its number", get(version="2.0") + CANARY),
    _refused("HTTP/0.9", "GET /v1/hello\r\n\r\n" + CANARY),
    Conversation("its own address", get(path="http://localhost/v1/hello"), (200,)),
    Conversation("its own address, written otherwise", get(path="HTTP://LOCALHOST:80/v1/hello"), (200,)),
    Conversation("its own address behind TLS", get(path="https://localhost/v1/hello"), (200,)),
]
UPGRADES = [
    _refused("an upgrade with a body", note(UPGRADE + HIDDEN, CANARY)),
    _refused("an upgrade with chunks", note(UPGRADE + CHUNKED, IN_CHUNK)),
    _refused("a websocket with a body", note(WEBSOCKET + HIDDEN, CANARY)),
    _refused("a GET with an upgrade and a body", get(UPGRADE + HIDDEN) + CANARY),
    Conversation("an upgrade", get(UPGRADE) + CANARY, (200,), closes=True),
    Conversation("a websocket", get(WEBSOCKET) + CANARY, (200,), closes=True),
    Conversation("an upgrade without a body", note(f"{UPGRADE}Content-Length: 0\r\n") + CANARY, (200,), closes=True),
    Conversation("an upgrade that no connection is asked for", note(f"Upgrade: h2c\r\n{HIDDEN}", CANARY), (200,)),
    Conversation("an upgrade after a request", get() + get(UPGRADE) + CANARY, (200, 200), closes=True),
]
LENGTHS = [
    Conversation("a body", note(HIDDEN, CANARY), (200,)),
    Conversation("a body and the next request", note(HIDDEN, CANARY) + CANARY, (200, 200), canary=True),
    Conversation("chunks", note(CHUNKED, IN_CHUNK), (200,)),
    Conversation("chunks with extensions", note(CHUNKED, "1;a=b\r\nx\r\n0;c\r\n\r\n"), (200,)),
    Conversation("chunks and trailers", note(CHUNKED, "1\r\nx\r\n0\r\nHost: evil\r\nX-Who: evil\r\n\r\n"), (200,)),
    Conversation("a body that nobody asked for", get(HIDDEN) + CANARY, (200,)),
    _refused("a length and chunks", note(f"Content-Length: 5\r\n{CHUNKED}", f"0\r\n\r\n{CANARY}")),
    _refused("chunks and a length", note(f"{CHUNKED}Content-Length: 5\r\n", f"0\r\n\r\n{CANARY}")),
    _refused("two lengths", note(f"Content-Length: 0\r\n{HIDDEN}", CANARY)),
    _refused("the same length twice", note(f"{HIDDEN}{HIDDEN}", CANARY)),
    _refused("two lengths in one line", note("Content-Length: 0, 5\r\n", CANARY)),
    _refused("a length with a sign", note("Content-Length: +5\r\n", f"hello{CANARY}")),
    _refused("a negative length", note("Content-Length: -1\r\n", CANARY)),
    _refused("a length in hexadecimal digits", note("Content-Length: 0x5\r\n", f"hello{CANARY}")),
    _refused("an empty length", note("Content-Length:\r\n", CANARY)),
    _refused("a length of twenty digits", note(f"Content-Length: {'9' * 20}\r\n", CANARY)),
    _refused("a folded length", note("Content-Length: 1\r\n 0\r\n", CANARY)),
    _refused("a blank before the colon", note(f"Content-Length : {len(CANARY)}\r\n", CANARY)),
    _refused("chunks twice", note(f"{CHUNKED}{CHUNKED}", f"0\r\n\r\n{CANARY}")),
    _refused("chunks, and then nothing", note("Transfer-Encoding: chunked, identity\r\n", f"0\r\n\r\n{CANARY}")),
    _refused("compressed chunks", note("Transfer-Encoding: gzip, chunked\r\n", f"0\r\n\r\n{CANARY}")),
    _refused("an unknown coding", note("Transfer-Encoding: xchunked\r\n", f"0\r\n\r\n{CANARY}")),
    _refused("a coding with a control character", note("Transfer-Encoding: \x0bchunked\r\n", f"0\r\n\r\n{CANARY}")),
    _refused("chunks in HTTP/1.0", note(f"Connection: keep-alive\r\n{CHUNKED}", f"0\r\n\r\n{CANARY}", version="1.0")),
    _refused("a chunk's size with a line feed alone", note(CHUNKED, f"1\nx\r\n0\r\n\r\n{CANARY}")),
    _refused("a chunk's size with a sign", note(CHUNKED, f"+1\r\nx\r\n0\r\n\r\n{CANARY}")),
    _refused("a chunk's size that is too large", note(CHUNKED, f"{'f' * 17}1\r\nx\r\n0\r\n\r\n{CANARY}")),
    _refused("a chunk that is longer than it says", note(CHUNKED, f"1\r\nxyz\r\n0\r\n\r\n{CANARY}")),
    _refused("an extension that ends with a line feed alone", note(CHUNKED, f"1;a\nx\r\n0\r\n\r\n{CANARY}")),
    _refused("a length among the trailers", note(CHUNKED, f"0\r\nContent-Length: 5\r\n\r\n{CANARY}")),
]
LINES = [
    _refused("line feeds alone", get().replace("\r\n", "\n") + CANARY),
    _refused("a line feed alone", get("X: 1\nY: 2\r\n") + CANARY),
    _refused("a carriage return alone", get("X: 1\rY: 2\r\n") + CANARY),
    _refused("a NUL", get("X: 1\0\r\n") + CANARY),
    _refused("a folded line", get("X: 1\r\n Y: 2\r\n") + CANARY),
    _refused("a folded first line", get(host=f" X: 1\r\n{OWN}") + CANARY),
    _refused("a header without a name", get(": 1\r\n") + CANARY),
    _refused("a header without a colon", get("X\r\n") + CANARY),
    _refused("a blank in the address", get(path="/v1/hello there") + CANARY),
    _refused("no HTTP at all", "hello\r\n\r\n" + CANARY),
    Conversation("empty lines first", "\r\n\r\n" + get(), (200,)),
]
LONG_HEAD = get(f"X: {'x' * 400_000}\r\n")
ORDERS = [
    Conversation("a head that is too long", LONG_HEAD + CANARY, (431,), closes=True),
    Conversation("one after a good one", get(path="/v1/slow") + LONG_HEAD + CANARY, (200, 431), closes=True),
    Conversation("a head too long, in one read", get(f"X: {'x' * 70_000}\r\n") + CANARY, (431,), closes=True),
    Conversation("an address too long", get(path=f"/v1/{'x' * 70_000}") + CANARY, (431,), closes=True),
    Conversation("two at once", get() + get(), (200, 200)),
    Conversation("a bad one after a good one", get(path="/v1/slow") + get(host="") + CANARY, (200, 400), closes=True),
    Conversation("no HTTP after a good one", get(path="/v1/slow") + "hello\r\n\r\n" + CANARY, (200, 400), closes=True),
    Conversation("one after the last", get("Connection: close\r\n") + CANARY, (200,), closes=True),
    Conversation(
        "one after the last in HTTP/1.0",
        get("Connection: keep-alive\r\n", version="1.0") + CANARY,
        (200,),
        closes=True,
    ),
    Conversation(
        "a bad body after a good request",
        get(path="/v1/slow") + note(CHUNKED, f"1\r\nxyz\r\n0\r\n\r\n{CANARY}"),
        (200, 400),
        closes=True,
    ),
]
EARLY = [
    Conversation("a long body", note(f"Content-Length: {LONG_BODY}\r\n", "x" * LONG_BODY), (413,)),
    Conversation(
        "a very long body and the next request",
        note("Content-Length: 300000\r\n", "x" * 300_000) + CANARY,
        (413, 200),
        canary=True,
    ),
    Conversation("a body without a token", note(HIDDEN, CANARY, "/v1/locked"), (401,)),
    Conversation(
        "a very long body without a token",
        note("Content-Length: 300000\r\n", "x" * 300_000, "/v1/locked") + CANARY,
        (401, 200),
        canary=True,
    ),
    Conversation(
        "a very long body in chunks, which break off",
        note(CHUNKED, f"493e0\r\n{'x' * 300_000}oops{CANARY}", "/v1/locked"),
        (401,),
        closes=True,
    ),
    Conversation(
        "a body that is not waited for",
        note(f"Expect: 100-continue\r\n{HIDDEN}", CANARY, "/v1/locked"),
        (401,),
        closes=True,
    ),
]
CONVERSATIONS = [*HOSTS, *TARGETS, *UPGRADES, *LENGTHS, *LINES, *ORDERS, *EARLY]


def converse(port: int, conversation: Conversation, canary: str, cut: int | None = None) -> Result:
    """Have it, in one packet or in two: the second begins at `cut`."""
    sent = conversation.sent.replace("§", canary).encode("latin-1")
    received = Received()
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for packet in (sent,) if cut is None else (sent[:cut], sent[cut:]):
                connection.sendall(packet)
                time.sleep(PACKET_S)
            received.until(connection, len(conversation.answers))
            if not conversation.closes:  # then this is answered next, and nothing before it
                connection.sendall(get(path="/v1/next").encode())
                received.until(connection, len(conversation.answers) + 1)
                assert received.data.endswith(b'{"next":true}'), received.data
                return Result(received.answers()[:-1], closed=False)
            received.until(connection, 1_000)
        except ConnectionError:  # it is closed, and what it said before that was read
            received.ended = True
    return Result(received.answers(), received.ended)


class Received:
    """What has come so far."""

    def __init__(self) -> None:
        self.data, self.ended = b"", False

    def until(self, connection: socket.socket, answers: int) -> None:
        """Read so many answers, all in all, or up to the end."""
        while not self.ended and len(self.answers()) < answers:
            part = connection.recv(1 << 16)
            self.data += part
            self.ended = not part

    def answers(self) -> tuple[int, ...]:
        """The statuses of those that are whole; 100 is none."""
        found, at = [], 0
        while (head := _HEAD.match(self.data, at)) is not None:
            length = _LENGTH.search(head[2])
            at = head.end() + (int(length[1]) if length else 0)
            if at <= len(self.data) and head[1] != b"100":
                found.append(int(head[1]))
        return tuple(found)
