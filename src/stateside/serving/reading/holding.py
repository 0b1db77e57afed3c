"""Whether a replica holds what it is asked for: one with a share of the keys never says that another one's is empty."""

from __future__ import annotations

from functools import lru_cache

from stateside.errors import Misdirected
from stateside.replica.keys import KeyCodec
from stateside.replica.share import Share
from stateside.serving.stamp import Stamp

_parse = lru_cache(maxsize=64)(Share.parse)


def check_held(stamp: Stamp, codec: KeyCodec, prefix: bytes, *, scattered: bool = True) -> None:
    """Misdirected if the replica of this stamp holds a share, and keys that begin so are in another one.

    Keys that do not have all of the leading column may be in any share. What is found of them here is the share's, as
    the stamp says; with `scattered` False that is not good enough, and Misdirected too.
    """
    if stamp.share is None:
        return
    leading = codec.leading_of(prefix)
    if leading is None and not scattered:
        raise not_whole(stamp)
    if leading is not None and not _parse(stamp.share).has(leading):
        raise Misdirected(
            f"This server holds share {stamp.share} of the view {stamp.view!r}, and this key is in another one",
            next_step="Ask a server that `location` names",
            view=stamp.view,
            leading=leading,
        )


def not_whole(stamp: Stamp) -> Misdirected:
    """For a question that only a server with all keys can answer."""
    return Misdirected(
        f"This server holds share {stamp.share} of the view {stamp.view!r}, and this is asked of all of its keys",
        next_step="Ask a server without a share; `location` names those that there are",
        view=stamp.view,
    )
