"""Python clients, synchronous and `async`. See docs/clients.md.

`client` only does the I/O, for both. `calls` has the methods and `core` decides, without I/O, what to send, how to read
the reply, when and where to retry, and how to combine the answers of shards, step by step (`steps`).
"""

from stateside.serving.clients.answers import Answer, Change, Location, Lookup, SqlAnswer, Table
from stateside.serving.clients.client import AsyncClient, Client
from stateside.serving.stamp import Stamp

__all__ = ["Answer", "AsyncClient", "Change", "Client", "Location", "Lookup", "SqlAnswer", "Stamp", "Table"]
