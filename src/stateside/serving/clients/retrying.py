"""Whether, where and when a question is asked again. Decided from values alone.

    what came back                       what is done
    an answer                            it is the answer
    no reply                             asked elsewhere, then here again; if it may be repeated, or was never sent
    421 misdirected                      the servers are looked up again
    429, 503, 502, 504                   asked elsewhere, then here again, not before Retry-After
    503 not-fresh-enough, 500            asked elsewhere, once each: this server has said what it can
    anything else                        raised

What may be repeated: every question, since they change nothing, and an append, since events are told by their ids.
"""

from __future__ import annotations

import random
from enum import Enum, auto
from typing import Final

from stateside.errors import Misdirected, NotFreshEnough
from stateside.serving.clients.problems import code_of
from stateside.serving.clients.steps import Ask, Reply, Silence

PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 1.0
_BUSY: Final = (429, 502, 503, 504)


class Verdict(Enum):
    """What to do with what came back."""

    DONE = auto()
    RAISE = auto()
    ELSEWHERE = auto()  # not here again, for this question
    AGAIN = auto()  # elsewhere first, then here
    LOOK = auto()  # it has moved


def verdict(ask: Ask, got: Reply | Silence) -> Verdict:
    """The table above."""
    if isinstance(got, Silence):
        return Verdict.AGAIN if ask.repeatable or not got.sent else Verdict.RAISE
    if got.status < 400:
        return Verdict.DONE
    code = code_of(got)
    if code == Misdirected.code:
        return Verdict.LOOK
    if not ask.repeatable and got.status != 429:  # a busy server has done nothing
        return Verdict.RAISE
    if got.status == 500 or code == NotFreshEnough.code:
        return Verdict.ELSEWHERE
    return Verdict.AGAIN if got.status in _BUSY else Verdict.RAISE


def retry_after_s(got: Reply | Silence) -> float:
    """For how long a server asks to be left alone; 0 if it does not say. A date, which HTTP allows too, counts as 0."""
    text = "" if isinstance(got, Silence) else got.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0


def pause_s(rounds: int, chance: random.Random) -> float:
    """How long to wait after so many rounds in which every server was asked in vain.

    It doubles from round to round, and by chance is up to half as long, so that many clients do not come back at once.
    """
    longest = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0 ** min(rounds - 1, 16))
    return longest * chance.uniform(0.5, 1.0)
