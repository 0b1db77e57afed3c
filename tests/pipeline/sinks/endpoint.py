"""A real endpoint for HTTP sinks: it stores parts with their keys durably, and can be told to fail."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Store:
    """What the endpoint remembers: a file with a line for each request that it has stored."""

    path: Path
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # given first, in place of storing
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    keys: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.keys = {line["key"] for line in self.lines()}

    def take(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        with self.lock:
            self.requests.append((headers, body))
            if self.answers:
                return self.answers.pop(0)
            key = headers["idempotency-key"]
            if key not in self.keys:
                self._append({"key": key, **json.loads(body)})
                self.keys.add(key)
            return 204, {}

    def _append(self, line: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def rows(self) -> list[dict[str, Any]]:
        return [row for line in self.lines() for row in line["rows"]]


@contextmanager
def endpoint(store: Store) -> Iterator[str]:
    """The endpoint's URL, while it runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            try:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if len(body) < int(self.headers["Content-Length"]):
                    return  # the sender was killed in the middle
                status, headers = store.take({k.lower(): v for k, v in self.headers.items()}, body)
                text = b"" if status == 204 else b"no, " * 100
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/rows"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
