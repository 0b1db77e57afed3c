"""The client: asks a server from Python, and raises its problems as the errors they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from stateside import errors
from stateside.errors import OperatingError, RequestInvalid, StatesideError
from stateside.positions import Position

TIMEOUT_S = 35.0  # longer than the longest wait that a server allows


class Client:
    """A connection to one server. Answers are the JSON documents that the HTTP interface describes, stamp included."""

    def __init__(self, base_url: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {_checked(token)}"}
        try:
            self._http = httpx.Client(base_url=base_url, timeout=timeout_s, headers=headers)
        except httpx.InvalidURL as error:
            raise RequestInvalid(
                f"{base_url!r} is no address: {error}", next_step="Write it like http://host:8471"
            ) from error

    def rows(self, view: str, *key: str, min_position: Position | None = None, **parameters: int) -> dict[str, Any]:
        """The rows of one key, or of all keys that begin with these parts."""
        path = f"/v1/views/{quote(view, safe='')}/rows"
        return self._get(path, [("key", part) for part in key], min_position, parameters)

    def sum(
        self,
        view: str,
        *key: str,
        from_time: str | None = None,
        to_time: str | None = None,
        last: str | None = None,
        min_position: Position | None = None,
        **parameters: int,
    ) -> dict[str, Any]:
        """The buckets of one key in a range of times, or over the last so long ("24h"), combined into one row."""
        path = f"/v1/views/{quote(view, safe='')}/sum"
        span = {"from": from_time, "to": to_time, "last": last}
        given = {name: value for name, value in span.items() if value is not None}
        return self._get(path, [("key", part) for part in key], min_position, {**given, **parameters})

    def rollup(
        self,
        view: str,
        columns: Sequence[str],
        *key: str,
        min_position: Position | None = None,
        **parameters: int,
    ) -> dict[str, Any]:
        """The view's rows added up by these columns: for one coarser key, or for all that begin with these parts."""
        by = f"/{quote(','.join(columns), safe=',')}" if columns else ""
        path = f"/v1/views/{quote(view, safe='')}/rollup{by}"
        return self._get(path, [("key", part) for part in key], min_position, parameters)

    def get(self, path: str, *, min_position: Position | None = None, **parameters: int | str) -> dict[str, Any]:
        """The document at a path; the error that the server answered with, or OperatingError if it did not answer."""
        return self._get(path, [], min_position, parameters)

    def content(self, path: str, *, min_position: Position | None = None, **parameters: int | str) -> bytes:
        """What is not JSON at a path, such as a PDF; errors as for `get`."""
        response = self._response(path, [], min_position, parameters)
        if response.is_error:
            raise _problem(self._json(response))
        return response.content

    def _get(
        self, path: str, keys: list[tuple[str, str]], min_position: Position | None, parameters: Mapping[str, int | str]
    ) -> dict[str, Any]:
        response = self._response(path, keys, min_position, parameters)
        document = self._json(response)
        if response.is_error:
            raise _problem(document)
        return document

    def _response(
        self, path: str, keys: list[tuple[str, str]], min_position: Position | None, parameters: Mapping[str, int | str]
    ) -> httpx.Response:
        floor = [("min_position", str(min_position))] if min_position is not None else []
        query = [*keys, *floor, *((name, str(value)) for name, value in parameters.items())]
        try:
            return self._http.get(path, params=tuple(query))
        except httpx.TransportError as error:
            raise self._unanswered(error) from error

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        try:
            document: dict[str, Any] = response.json()
            return document
        except ValueError as error:
            raise self._unanswered(error) from error

    def _unanswered(self, error: Exception) -> OperatingError:
        return OperatingError(
            f"No Stateside server answered: {error}",
            where=str(self._http.base_url),
            next_step="Start `stateside serve` there, or give its address with --url",
        )

    def close(self) -> None:
        """Let the connection go."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _checked(token: str) -> str:
    """The token, if a header can have it. Checked here, because the HTTP library's errors would show it."""
    if not (token.isascii() and token.isprintable() and token == token.strip() and token):
        raise RequestInvalid("The token is empty, or has spaces or line ends around it", next_step="Give it as it is")
    return token


def _problem(document: dict[str, Any]) -> StatesideError:
    code = str(document.get("type", "")).rpartition(":")[2]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StatesideError)]
    kind = next((kind for kind in kinds if kind.code == code), StatesideError)
    detail = str(document.get("detail", "The server answered with an error"))
    return kind(detail, where=document.get("instance"), next_step=document.get("next_step"))
