"""The event loop of a worker process."""

from __future__ import annotations

from typing import Any, Final

import uvloop

HANDSHAKE_S_MAX: Final = 10.0


class Loop(uvloop.Loop):
    """uvloop's, which gives a TLS handshake less than its minute: until it is done, nobody knows of the connection."""

    async def create_server(self, *given: Any, **options: Any) -> Any:
        """As asked, with the limit."""
        if options.get("ssl"):
            options["ssl_handshake_timeout"] = HANDSHAKE_S_MAX
        return await super().create_server(*given, **options)
