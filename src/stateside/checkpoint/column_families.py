"""Column families: the parts that `transformWithState` divides a state store into, one or more a state variable.

A changelog tells families by ids. Their names stand in the snapshots: Spark writes one whenever the families change,
before the changelog of that batch (see `snapshot`). Ids count up from 1 within a partition and are never given twice,
unless Spark repartitions the state: that batch is a snapshot, of which they are learnt anew.

Besides the family of its own name a variable may have others, whose names begin with `$`: counts, times to expire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stateside.checkpoint.changelog import Changelog, state_stem
from stateside.checkpoint.log import Commit
from stateside.checkpoint.snapshot import read_contents
from stateside.errors import CheckpointInvalid
from stateside.storage import Storage


class ColumnFamilies:
    """The names of one operator's families, looked up as ids are met, and kept until a snapshot has others."""

    def __init__(self, storage: Storage, operator: int) -> None:
        self._storage, self._operator = storage, operator
        self._names: dict[int, dict[int, str]] = {}

    def names(self, commit: Commit, partition: int, changelog: Changelog) -> Mapping[int, str]:
        """The names by id of at least the families in this changelog; CheckpointInvalid if one has none."""
        names = self._names.setdefault(partition, {})
        ids = {change.family for change in changelog.changes if change.family is not None}
        for snapshot in self._snapshots(commit, partition, changelog):
            if ids <= names.keys():
                break
            names.update(self._mapping(snapshot))
        unknown = ids - names.keys()
        if unknown:
            raise CheckpointInvalid(
                f"The column family {min(unknown)} is in no snapshot up to batch {commit.batch}",
                where=self._storage.path(state_stem(commit, self._operator, partition)),
                next_step="Spark keeps a snapshot for every batch it keeps: see whether files were deleted by hand",
            )
        return names

    def learn(self, partition: int, names: Mapping[int, str]) -> None:
        """Keep the names that a snapshot of this partition has, all that count from its version on."""
        self._names[partition] = dict(names)

    def _snapshots(self, commit: Commit, partition: int, changelog: Changelog) -> Iterator[str]:
        """The snapshots up to this batch that there may be, newest first, without looking further than is needed."""
        yield f"{state_stem(commit, self._operator, partition)}.zip"
        folder = f"state/{self._operator}/{partition}"
        if commit.state_ids:
            yield from (f"{folder}/{version}_{state_id}.zip" for version, state_id in reversed(changelog.lineage))
            return
        stems = (name.removesuffix(".zip") for name in self._storage.names(folder) if name.endswith(".zip"))
        older = (int(stem) for stem in stems if stem.isdigit() and int(stem) <= commit.batch)
        yield from (f"{folder}/{version}.zip" for version in sorted(older, reverse=True))

    def _mapping(self, name: str) -> Mapping[int, str]:
        try:
            return read_contents(self._storage, name).families
        except FileNotFoundError:
            return {}  # there is no snapshot of that version
