"""The hosts that an open server answers to: where nobody needs a token, the name that it is asked by must be its own.

A website can have its own name lead to 127.0.0.1 once its page is loaded (DNS rebinding). To the browser, page and
server are one site then: it names no other origin, and the page may read all answers. But it says in the header `Host`
by which name it asks, and no script can change that. So only hosts count that no stranger's name can be:

    127.0.0.1:8471, [::1]:8471      an address, any one: what is asked by it was not looked up
    localhost, x.localhost          which browsers look up nowhere
    bills.internal                  a name that this server listens at; the machine's own, where others reach it

Ports do not matter: a tunnel's may be another one. What is no browser may send no `Host`, as HTTP/1.0 does. Over TLS
the certificate says which names are this server's, and with tokens a stranger's page has none: nothing is checked then.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from typing import Final

from stateside.errors import AccessDenied
from stateside.serving.access.exposure import is_loopback

_LOCAL: Final = "localhost"
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]@/\s]+))(?::[0-9]{0,5})?", re.ASCII)
_SHOWN_CHARS: Final = 80


class Hosts:
    """Those of one server, which has these names beside its addresses."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(map(_plain, names))
        self._last: str | None = None  # that was let in: most often the next one is the same

    def check(self, host: str | None) -> None:
        """AccessDenied if a request with this header may come from a stranger's page."""
        if host is None or host == self._last:
            return
        if not self._has(host):
            raise AccessDenied(
                f"Without tokens this server does not answer as {host[:_SHOWN_CHARS]!r}: any website can have such a"
                " name, and lead it here",
                next_step="Ask at localhost or an address, like 127.0.0.1; a proxy must send such a Host too. Or make"
                " tokens: `stateside token create NAME --role operator --dir FOLDER`",
            )
        self._last = host

    def _has(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        bracketed, name = found[1], _plain(found[2] or "")
        if bracketed is not None:
            return _is_address(bracketed)
        return name == _LOCAL or name.endswith(f".{_LOCAL}") or name in self._names or _is_address(name)


def names_at(address: str) -> frozenset[str]:
    """The names of who listens there: that one, and the machine's own if others reach it."""
    return frozenset({address} if is_loopback(address) else {address, socket.gethostname(), socket.getfqdn()})


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _plain(name: str) -> str:
    """As names are compared: in small letters, without the dot that may end them."""
    return name.lower().removesuffix(".")
