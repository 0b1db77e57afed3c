"""Problem documents as the errors that they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stateside import errors
from stateside.errors import Misdirected, OperatingError, StatesideError
from stateside.serving.clients.steps import Reply, Silence

_KINDS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, StatesideError) and "code" in vars(kind)
}


def document_of(reply: Reply, url: str) -> dict[str, Any]:
    """The JSON object in a reply; OperatingError if it has none: then it is no Stateside server's."""
    return object_of(reply.content, "the reply", url)


def object_of(content: bytes | str, what: str, url: str) -> dict[str, Any]:
    """The JSON object that this content of a server's is; OperatingError if it is none."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise unanswered(f"{what} is no JSON: {error}", url) from None
    if not isinstance(document, dict):
        raise unanswered(f"{what} is no JSON object", url)
    return document


def code_of(reply: Reply) -> str:
    """The code of the problem in a reply; empty if it is something else."""
    try:
        document = json.loads(reply.content)
        return str(document["type"]).rpartition(":")[2]
    except (ValueError, LookupError, TypeError):
        return ""


def error_of(got: Reply | Silence, url: str) -> StatesideError:
    """The error that a reply, or no reply, means."""
    if isinstance(got, Silence):
        return unanswered(got.reason, url)
    try:
        document = document_of(got, url)
    except OperatingError:
        return unanswered(f"HTTP {got.status}, and no problem document", url)
    return problem_error(document)


def unanswered(reason: str, url: str) -> OperatingError:
    """For whoever did not answer as a Stateside server does."""
    return OperatingError(
        f"No Stateside server answered: {reason}",
        where=url,
        next_step="Start `stateside serve` there, or give its address with --url",
    )


def problem_error(document: Mapping[str, Any]) -> StatesideError:
    """The error that a problem document tells of."""
    code = str(document.get("type", "")).rpartition(":")[2]
    kind = _KINDS.get(code, StatesideError)
    detail = str(document.get("detail", "The server answered with an error"))
    error = kind(detail, next_step=document.get("next_step"))
    if isinstance(error, Misdirected):
        error.location = document.get("location")
    return error
