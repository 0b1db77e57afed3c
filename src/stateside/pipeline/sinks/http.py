"""HTTP sink: a batch is one or more POST requests, each with an idempotency key.

Exactly-once protocol; a crash at any step, followed by a rerun of the same batch, changes nothing:

1. The rows are sorted by their JSON text (`json_rows`) and cut into parts. Spark's row order makes no difference, so a
   repeated batch makes the same requests, byte for byte.
2. Each part is sent with `Idempotency-Key`: the SHA-256 of query, batch and part number, as hex digits.
3. The endpoint stores the part together with its key, in one transaction, and answers 2xx; for a stored key it answers
   2xx and stores nothing.
4. After the last answer the caller lets Spark commit the batch. A crash before the commit repeats all parts, and the
   endpoint recognises the stored ones.

For exactly-once the endpoint must implement step 3: remember every key for as long as a batch may be repeated, until
the query's next batch comes. An endpoint that remembers no keys gets rows at least once.

A request's body: {"view": …, "query": …, "batch": …, "part": …, "parts": …, "rows": [{…}, …]}. Answers: 2xx means
stored; no connection, a timeout, 408, 429 and 5xx mean away (held, sent again, not before `Retry-After` up to a limit);
anything else means refused.

The endpoint recognises parts by their number, so a batch that was begun with one `rows_per_request_max` must be
repeated with the same limit, even if the setting has changed. The limit in force is noted beside the checkpoint; a
changed limit takes effect with the second batch of a run, because only the first can be a repeat.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from stateside.core.errors import SetupError, SinkAway, SinkRefused, ViewInvalid
from stateside.core.json_file import JsonFile
from stateside.core.secrets import with_secrets
from stateside.pipeline.sinks.json_rows import check_json, json_texts
from stateside.pipeline.sinks.sink import BatchId, OnStep, SinkContext, SinkFactory, ignore_step

if TYPE_CHECKING:
    import httpx


class Cut:
    """The rows per request in force, and the file that records the limit."""

    def __init__(self, note: Path, rows_max: int, wanted_rows_max: int) -> None:
        self._note = note
        self._rows_max = rows_max
        self._wanted_rows_max = wanted_rows_max
        self._first: BatchId | None = None

    @classmethod
    def open(cls, note: Path, rows_max: int) -> Cut:
        """The cut of a view's sink; `rows_max` is the configured limit, in force from the second batch on."""
        if not note.exists():
            _NOTE.write(note, rows_max)
        return cls(note, _NOTE.load(note), rows_max)

    def rows_max(self, batch: BatchId) -> int:
        self._first = self._first or batch
        if batch != self._first and self._rows_max != self._wanted_rows_max:
            _NOTE.write(self._note, self._wanted_rows_max)
            self._rows_max = self._wanted_rows_max
        return self._rows_max


_NOTE: JsonFile[int] = JsonFile(
    "The number of rows per request",
    lambda document: int(document["rows_per_request_max"]),
    lambda rows_max: {"rows_per_request_max": rows_max},
)


ROWS_PER_REQUEST_MAX = 500
TIMEOUT_S = 10.0
RETRY_AFTER_S_MAX = 300.0  # a longer pause is cut to this limit
BODY_CHARS_SHOWN_MAX = 200
_AWAY = {408, 429}
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


def http(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    rows_per_request_max: int = ROWS_PER_REQUEST_MAX,
    timeout_s: float = TIMEOUT_S,
    on_step: OnStep = ignore_step,
) -> SinkFactory:
    """A sink that posts rows as JSON to an endpoint, with an idempotency key per request (see the module).

    A header's value may be `env:NAME`: the value is read from the environment when a run starts, and never shown.
    """
    _check_url(url)
    if rows_per_request_max < 1:
        raise ViewInvalid("An HTTP sink has rows_per_request_max < 1", next_step="Give it 1 or more")
    given = dict(headers or {})

    def open_sink(context: SinkContext) -> HttpSink:
        check_json(context.schema)
        cut = Cut.open(context.layout.view(context.view).mark("http"), rows_per_request_max)
        return HttpSink(open_endpoint(url, given, timeout_s), context.view, cut, on_step)

    return open_sink


def open_endpoint(url: str, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> Endpoint:
    """An endpoint, with its headers' secrets read from the environment; ViewInvalid or SetupError if invalid."""
    _check_url(url)
    return Endpoint(url, _resolved(headers), timeout_s)


class HttpSink:
    """Sends batches to an endpoint, part by part, by the steps above."""

    def __init__(self, endpoint: Endpoint, view: str, cut: Cut, on_step: OnStep = ignore_step) -> None:
        self._endpoint = endpoint
        self._view = view
        self._cut = cut
        self._on_step = on_step

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Send the rows; SinkAway or SinkRefused at the first part that is not accepted."""
        if not rows.num_rows:
            return
        self._on_step(1)
        for part, body in enumerate(self._bodies(rows, batch)):
            self._on_step(2)
            self._endpoint.post(body, idempotency_key(batch, part))
            self._on_step(3)
        self._on_step(4)

    def _bodies(self, rows: pa.Table, batch: BatchId) -> Iterator[bytes]:
        texts = sorted(json_texts(rows))
        size = self._cut.rows_max(batch)
        parts = -(-len(texts) // size)
        for part in range(parts):
            name = {"view": self._view, "query": batch.query, "batch": batch.batch, "part": part, "parts": parts}
            yield _body(name, texts[part * size : (part + 1) * size])


class Endpoint:
    """The HTTP endpoint: takes a body and its key. Never shows headers or the URL's query."""

    def __init__(
        self, url: str, headers: Mapping[str, str], timeout_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        import httpx

        try:
            self._url = str(httpx.URL(url))
        except httpx.InvalidURL as error:
            raise _invalid_url(str(error)) from error
        tls = self._url.startswith("https:")  # reading the certificates takes 0.1 s; redirects are not followed
        self._client = httpx.Client(headers=dict(headers), timeout=timeout_s, verify=tls)
        self._now_s = now_s
        self._not_before_s = now_s()

    def __repr__(self) -> str:
        return f"Endpoint({self.where!r})"

    @property
    def where(self) -> str:
        """The URL without its query, which may hold a secret."""
        return urlunsplit(urlsplit(self._url)._replace(query="", fragment=""))

    def post(self, body: bytes, key: str) -> None:
        """Send the body in one attempt; SinkAway or SinkRefused if the endpoint does not accept it."""
        import httpx

        wait_s = self._not_before_s - self._now_s()
        if wait_s > 0:
            raise self._away(f"asked for a pause, of which {wait_s:.0f} s are left")
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        try:
            response = self._client.post(self._url, content=body, headers=headers)
        except httpx.RequestError as error:
            raise self._away(f"does not answer: {type(error).__name__}: {error}") from error
        if not response.is_success:
            self._fail(response)

    def _fail(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in _AWAY or status >= 500:
            self._not_before_s = self._now_s() + _retry_after_s(response.headers.get("Retry-After"))
            raise self._away(f"answered {status}")
        raise SinkRefused(
            f"The endpoint refused the rows with {status}: {response.text[:BODY_CHARS_SHOWN_MAX]!r}",
            where=self.where,
            next_step="Mend the endpoint, the sink's headers or the view, then run again: the batch is repeated",
        )

    def _away(self, reason: str) -> SinkAway:
        return SinkAway(
            f"The endpoint {reason}", where=self.where, next_step="Bring it back: the batch is held and sent again"
        )


def idempotency_key(batch: BatchId, part: int) -> str:
    """The key by which an endpoint recognises a part."""
    return sha256(json.dumps([batch.query, batch.batch, part]).encode()).hexdigest()


def _body(name: Mapping[str, object], texts: Sequence[str]) -> bytes:
    head = json.dumps(name, separators=(",", ":"))
    return f'{head[:-1]},"rows":[{",".join(texts)}]}}'.encode()


def _retry_after_s(header: str | None) -> float:
    """The pause from seconds or a date, at most the limit; 0 for any other value."""
    if header is None:
        return 0.0
    try:
        wait_s = float(header) if header.strip().isdigit() else parsedate_to_datetime(header).timestamp() - time.time()
    except ValueError:
        return 0.0
    return min(max(wait_s, 0.0), RETRY_AFTER_S_MAX)


def _resolved(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with their secrets, checked here because the HTTP library's errors would show a bad value."""
    resolved = with_secrets(headers)
    for name, value in resolved.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise SetupError(
                f"The value of the header {name!r} is empty, or has spaces around it, line ends or other characters "
                "that a header cannot have",
                next_step="Mend it (a secret read from a file often ends with a line end), then run again",
            )
    return resolved


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _invalid_url(str(error)) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise _invalid_url("it needs http or https, and a host")
    if parts.username is not None or parts.password is not None:
        raise ViewInvalid(
            f"The URL of an HTTP sink has a user or password in it (host {parts.hostname})",
            next_step="Give them as a header from the environment: headers={'Authorization': 'env:NAME'}",
        )


def _invalid_url(reason: str) -> ViewInvalid:
    return ViewInvalid(f"The URL of an HTTP sink is none: {reason}", next_step="Write it like https://host/path")
