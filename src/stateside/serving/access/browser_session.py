"""The browser session: a token in a cookie, for pages, whose event streams can send no header.

    Set-Cookie: stateside-8471=TOKEN; Path=/; HttpOnly; SameSite=Strict[; Secure][; Max-Age=…]

No script can read the cookie. The server keeps no session state: a session ends with its token, by expiry or
revocation. Browsers keep cookies per host and not per port, so the port is in the name: two servers on one machine do
not sign each other's users out.

A browser also sends cookies with requests made by another site's page. Two headers that no script can set,
`Sec-Fetch-Site` and `Origin`, reveal such requests: the cookie does not count for them, and requests that may change
something are refused, even where no token is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stateside.core.errors import AccessDenied, RequestInvalid

KEPT_S: Final = 30 * 86_400  # how long a browser keeps the cookie, if it keeps the cookie at all
COOKIE_CHARS_MAX: Final = 3_800  # browsers silently drop cookies of more than 4,096 bytes, name included
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_OWN: Final = ("same-origin", "none")  # a page of this server; the address bar

Headers = Mapping[str, str]


def presented(headers: Headers) -> str | None:
    """The header `Authorization`, or else the cookie's token in its form; None without either."""
    authorization = headers.get("authorization")
    if authorization is not None:
        return authorization
    cookies = headers.get("cookie")
    if cookies is None or is_foreign(headers):
        return None
    token = _value(cookies, cookie_name(headers))
    return None if token is None else f"Bearer {token}"


def check_origin(method: str, headers: Headers) -> None:
    """Raise AccessDenied if another site's page sends a request that may change something, without a token."""
    if method not in _SAFE and headers.get("authorization") is None and is_foreign(headers):
        raise AccessDenied(
            "This request comes from a page of another site", next_step="Send it from a page of this server"
        )


def is_foreign(headers: Headers) -> bool:
    """Whether the browser reports that another site's page made the request; other clients report nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OWN
    origin = headers.get("origin")
    if origin is None:
        return False
    _, named, host = origin.partition("://")
    return not named or not host or host != headers.get("host")  # `null` has no host: a page that hides its site


def signed_in(token: str, headers: Headers, *, secure: bool, keep: bool) -> tuple[str, str]:
    """The header that begins a session; RequestInvalid for a token too long for a cookie."""
    if len(token) > COOKIE_CHARS_MAX:
        raise RequestInvalid(
            f"This token has more than {COOKIE_CHARS_MAX:,} characters, which is too much for a browser's cookie",
            next_step="Ask for one that names fewer views",
        )
    return _header(headers, token, secure, f"; Max-Age={KEPT_S}" if keep else "")


def signed_out(headers: Headers, *, secure: bool) -> tuple[str, str]:
    """The header that ends a session."""
    return _header(headers, "", secure, "; Max-Age=0")


def cookie_name(headers: Headers) -> str:
    """The cookie's name, with the port of the request's host, if any."""
    port = (headers.get("host") or "").rpartition(":")[2]
    return f"stateside-{port}" if port.isascii() and port.isdigit() else "stateside"


def _header(headers: Headers, value: str, secure: bool, age: str) -> tuple[str, str]:
    ending = "; Secure" if secure or headers.get("x-forwarded-proto") == "https" else ""
    return "set-cookie", f"{cookie_name(headers)}={value}; Path=/; HttpOnly; SameSite=Strict{age}{ending}"


def _value(cookies: str, name: str) -> str | None:
    for cookie in cookies.split(";"):
        key, equals, value = cookie.strip().partition("=")
        if equals and key == name:
            return value
    return None
