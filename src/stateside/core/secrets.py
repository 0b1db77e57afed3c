"""Secrets in options: a value `env:NAME` stands for the value of the environment variable NAME.

So a password is neither in the application's code nor in its folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from stateside.core.errors import SetupError

PREFIX = "env:"
HIDDEN = "…"
_SECRET = re.compile(
    r"pass(word|phrase)|secret|key\.pem|jaas|oauthbearer\.config"
)  # in the names of options of Kafka's clients


def with_secrets(options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The options with each `env:NAME` replaced. SetupError names an unset variable; no value appears in a message."""
    found = os.environ if environ is None else environ
    return {option: _value(option, value, found) for option, value in options.items()}


def without_secrets(text: str, options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str:
    """A foreign text, such as an error message, with the values of all `env:NAME` among the options taken out."""
    secrets = [with_secrets({option: value}, environ)[option] for option, value in options.items() if _is_secret(value)]
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def plain_secret(options: Mapping[str, str]) -> str | None:
    """The first option whose value is a secret itself instead of `env:NAME`; None if there is none."""
    return next((name for name, value in options.items() if _SECRET.search(name) and not _is_secret(value)), None)


def _is_secret(value: str) -> bool:
    return value.startswith(PREFIX)


def _value(option: str, value: str, environ: Mapping[str, str]) -> str:
    if not _is_secret(value):
        return value
    name = value.removeprefix(PREFIX)
    if name not in environ:
        raise SetupError(
            f"The option {option!r} is to come from the environment variable {name!r}, which is not set",
            next_step="Set it where the application runs",
        )
    return environ[name]
