"""What a replica that holds only its share takes over: of all that Spark stored, the rows of its keys."""

from __future__ import annotations

from stateside.checkpoint.changelog import Changelog
from stateside.checkpoint.log import Commit
from stateside.replica.keys import KeyCodec
from stateside.replica.share import Share
from stateside.replica.translation import AnySnapshot, Rows, Translator


class SharedTranslator:
    """A view's translator that leaves out the keys of other shares, in changes and in snapshots alike."""

    def __init__(self, translator: Translator, share: Share, codec: KeyCodec) -> None:
        self._translator, self._share, self._codec = translator, share, codec

    def changes(self, commit: Commit, partition: int, changelog: Changelog) -> Rows:
        """What a partition's changelog changes in the replica."""
        return self._own(self._translator.changes(commit, partition, changelog))

    def snapshot(self, partition: int, snapshot: AnySnapshot) -> Rows:
        """The replica's rows in a snapshot of a partition."""
        return self._own(self._translator.snapshot(partition, snapshot))

    def _own(self, rows: Rows) -> Rows:
        has, leading = self._share.has, self._codec.leading
        return ((key, row) for key, row in rows if has(leading(key)))
