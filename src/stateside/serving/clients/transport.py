"""Transport of both clients: httpx settings, errors from replies, and parsing of server-sent events.

Problem documents become the Stateside errors of their code. Of a stream's lines, comments and unknown fields are
skipped.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from stateside.core import errors
from stateside.core.errors import Misdirected, OperatingError, RequestInvalid, SetupError, StatesideError
from stateside.serving.clients.steps import Ask, NoReply, Reply, Send

CONNECT_S_MAX: Final = 2.0
CONNECTIONS_MAX: Final = 100
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def settings(token: str | None, certificate: str | Path | None) -> dict[str, Any]:
    """Arguments for an httpx client. `certificate`: certificates to trust besides Python's."""
    headers = {} if token is None else {"Authorization": f"Bearer {_checked(token)}"}
    limits = httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX)
    return {"headers": headers, "verify": _trust(certificate), "limits": limits, "follow_redirects": False}


def addresses(urls: str | Sequence[str]) -> list[str]:
    """The addresses, each checked; RequestInvalid for an invalid one."""
    given = [urls] if isinstance(urls, str) else list(urls)
    for url in given:
        try:
            urlsplit(url)  # rejects some addresses that httpx accepts
            parsed = httpx.URL(url)
        except (ValueError, httpx.InvalidURL) as error:
            raise _no_address(url, str(error)) from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise _no_address(url, "it does not begin with http:// or https:// and a host")
    return given


def request(url: str, ask: Ask, timeout_s: float) -> dict[str, Any]:
    """Arguments for an httpx request."""
    headers = dict(ask.headers) | ({} if ask.body is None else {"content-type": "application/json"})
    return {
        "method": ask.method,
        "url": url + ask.path,
        "params": ask.parameters,
        "content": ask.body,
        "headers": headers,
        "timeout": httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S_MAX)),
    }


def reply(response: httpx.Response, content: bytes) -> Reply:
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, content)


def silence(error: httpx.HTTPError | TimeoutError) -> NoReply:
    """The NoReply for an httpx error."""
    return NoReply(str(error) or type(error).__name__, sent=not isinstance(error, _NEVER_SENT))


def too_slow(step: Send) -> NoReply:
    return NoReply(f"the reply took longer than {step.timeout_s:.1f} s", sent=True)


def _trust(certificate: str | Path | None) -> bool | ssl.SSLContext:
    if certificate is None:
        return True
    try:
        trust = ssl.create_default_context()
        trust.load_verify_locations(certificate)
        return trust
    except (OSError, ssl.SSLError) as error:
        raise SetupError(f"The certificate cannot be read: {error}", where=str(certificate)) from error


def _checked(token: str) -> str:
    """The token, if valid in a header. Checked here, because httpx's error would show the token."""
    if not (token.isascii() and token.isprintable() and token == token.strip() and token):
        raise RequestInvalid("The token is empty, or has spaces or line ends around it", next_step="Give it as it is")
    return token


def _no_address(url: str, reason: str) -> RequestInvalid:
    return RequestInvalid(f"{url!r} is no address: {reason}", next_step="Write it like http://host:8471")


_KINDS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, StatesideError) and "code" in vars(kind)
}


def document_of(reply: Reply, url: str) -> dict[str, Any]:
    """The JSON object in a reply; OperatingError for anything else, which no Stateside server sends."""
    return object_of(reply.content, "the reply", url)


def object_of(content: bytes | str, what: str, url: str) -> dict[str, Any]:
    """The JSON object in a server's content; OperatingError for anything else."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise unanswered(f"{what} is no JSON: {error}", url) from None
    if not isinstance(document, dict):
        raise unanswered(f"{what} is no JSON object", url)
    return document


def code_of(reply: Reply) -> str:
    """The code of the problem document in a reply; empty without one."""
    try:
        document = json.loads(reply.content)
        return str(document["type"]).rpartition(":")[2]
    except (ValueError, LookupError, TypeError):
        return ""


def error_of(got: Reply | NoReply, url: str) -> StatesideError:
    """The error for a reply, or for a missing reply."""
    if isinstance(got, NoReply):
        return unanswered(got.reason, url)
    try:
        document = document_of(got, url)
    except OperatingError:
        return unanswered(f"HTTP {got.status}, and no problem document", url)
    return problem_error(document, url)


def unanswered(reason: str, url: str) -> OperatingError:
    """The error for a server that did not answer like a Stateside server."""
    return OperatingError(
        f"No Stateside server answered: {reason}",
        where=url,
        next_step="Start `stateside serve` there, or give its address with --url",
    )


def problem_error(document: Mapping[str, Any], url: str) -> StatesideError:
    """The error of a server's problem document; OperatingError if a location in the document is malformed."""
    code = str(document.get("type", "")).rpartition(":")[2]
    kind = _KINDS.get(code, StatesideError)
    detail = str(document.get("detail", "The server answered with an error"))
    error = kind(detail, next_step=document.get("next_step"))
    if isinstance(error, Misdirected):
        error.location = document.get("location", {})
        try:
            addresses([server["url"] for server in error.location.get("servers", ())])
        except (LookupError, TypeError, AttributeError, RequestInvalid) as malformed:
            raise unanswered(f"the location of the keys is malformed: {malformed!r}", url) from malformed
    return error


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its kind, its data, and its own id, if any."""

    kind: str
    data: str
    id: str | None


@dataclass
class Lines:
    """The parser: takes lines, returns an event for each completed one."""

    _kind: str = ""
    _data: list[str] = field(default_factory=list)
    _id: str | None = None

    def take(self, line: str) -> ServerSentEvent | None:
        """The event completed by this line, or None."""
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
        return None

    def _complete(self) -> ServerSentEvent | None:
        event = ServerSentEvent(self._kind or "message", "\n".join(self._data), self._id) if self._data else None
        self._kind, self._data, self._id = "", [], None
        return event
