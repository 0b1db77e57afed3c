"""Both clients behind one face, so that every test asks both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from stateside.serving.clients import AsyncClient, Client


class InLoop:
    """An AsyncClient in a loop of its own; its methods wait, and its iterators are lists, of so many at most."""

    def __init__(self, urls: str | Sequence[str], **settings: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(urls, **settings)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *args, **kwargs: self._runner.run(_waited(method, args, kwargs))

    def __enter__(self) -> InLoop:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


async def _waited(method: Any, args: Any, kwargs: Any) -> Any:
    count = kwargs.pop("count", None)
    found = method(*args, **kwargs)
    if not hasattr(found, "__aiter__"):
        return await found
    items = []
    async for item in found:
        items.append(item)
        if len(items) == count:
            break
    await found.aclose()
    return items


class InThread(Client):
    """A Client whose iterators are lists too."""

    def scan(self, *args: Any, **kwargs: Any) -> Any:
        return _taken(super().scan, args, kwargs)

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        return _taken(super().watch, args, kwargs)


def _taken(method: Any, args: Any, kwargs: Any) -> list[Any]:
    count = kwargs.pop("count", None)
    found, items = method(*args, **kwargs), []
    for item in found:
        items.append(item)
        if len(items) == count:
            break
    found.close()
    return items


KINDS: dict[str, Any] = {"sync": InThread, "async": InLoop}
