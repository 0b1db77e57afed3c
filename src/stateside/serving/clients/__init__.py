"""Clients: ask servers from Python, in the ordinary way or with `async`. See docs/clients.md.

`client` and `async_client` are thin: what to send, how to read what comes back, when and where to ask again, and how
the answers of shares are put together is decided in `core`, which does no I/O. It goes step by step (`steps`).
"""

from stateside.serving.clients.answers import Answer, Change, Location, Lookup, SqlAnswer, Table
from stateside.serving.clients.async_client import AsyncClient
from stateside.serving.clients.client import Client
from stateside.serving.stamp import Stamp

__all__ = ["Answer", "AsyncClient", "Change", "Client", "Location", "Lookup", "SqlAnswer", "Stamp", "Table"]
