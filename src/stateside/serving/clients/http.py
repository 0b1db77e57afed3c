"""What both clients have in common at the edge: how httpx is set up, and what its errors mean."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from stateside.errors import RequestInvalid, SetupError
from stateside.serving.clients.steps import Ask, Reply, Silence

CONNECT_S_MAX: Final = 2.0
CONNECTIONS_MAX: Final = 100
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def settings(token: str | None, certificate: str | Path | None) -> dict[str, Any]:
    """What an httpx client is made with. `certificate`: of whom to trust, beside those that Python trusts."""
    headers = {} if token is None else {"Authorization": f"Bearer {_checked(token)}"}
    limits = httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX)
    return {"headers": headers, "verify": _trust(certificate), "limits": limits, "follow_redirects": False}


def addresses(urls: str | Sequence[str]) -> list[str]:
    """The addresses, each checked; RequestInvalid if one is none."""
    given = [urls] if isinstance(urls, str) else list(urls)
    for url in given:
        try:
            urlsplit(url)  # it knows some that httpx does not
            parsed = httpx.URL(url)
        except (ValueError, httpx.InvalidURL) as error:
            raise _no_address(url, str(error)) from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise _no_address(url, "it does not begin with http:// or https:// and a host")
    return given


def request(url: str, ask: Ask, timeout_s: float) -> dict[str, Any]:
    """What httpx is given to send."""
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
    """What a server replied."""
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, content)


def silence(error: httpx.HTTPError | TimeoutError) -> Silence:
    """What it means that there was no reply."""
    return Silence(str(error) or type(error).__name__, sent=not isinstance(error, _NEVER_SENT))


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
    """The token, if a header can have it. Checked here, because the HTTP library's errors would show it."""
    if not (token.isascii() and token.isprintable() and token == token.strip() and token):
        raise RequestInvalid("The token is empty, or has spaces or line ends around it", next_step="Give it as it is")
    return token


def _no_address(url: str, reason: str) -> RequestInvalid:
    return RequestInvalid(f"{url!r} is no address: {reason}", next_step="Write it like http://host:8471")
