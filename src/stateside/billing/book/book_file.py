"""Snapshots of a book: Arrow files that are mapped into memory, so that a million accounts are there at once.

    FOLDER/book-00000000000012345678.arrow     named by the offset that it covers

The file's one record batch are the accounts; the schema's metadata, as JSON under `book`, are the journal's id, the
offset, the plans and what was refused. A snapshot spares reading the journal and is nothing more: all of them may be
deleted. The newest two are kept, as a reader may be about to open the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from stateside.billing.book.accounts import SCHEMA, Accounts
from stateside.billing.book.folding import Fold, Refused
from stateside.billing.plans.version import PlanVersion
from stateside.errors import StateError
from stateside.storage import write_atomically

VERSION = 1
_KEPT = 2
_PREFIX, _SUFFIX = "book-", ".arrow"
_METADATA = b"book"


@dataclass(frozen=True, slots=True)
class Pages:
    """What a book has beside its accounts. `plan_names` gives plans their numbers in the accounts, and only grows."""

    covers: int = 0
    plan_names: tuple[str, ...] = ()
    versions: tuple[tuple[int, PlanVersion], ...] = ()  # with their offsets, in order
    refused: tuple[Refused, ...] = ()

    def covering(self, covers: int) -> Pages:
        """The same up to a later offset."""
        return replace(self, covers=covers)

    def extended(self, fold: Fold, covers: int) -> Pages:
        """With what a fold accepted and refused."""
        published = [version.plan for _, version in fold.versions]
        assigned = [one.plan for several in fold.assignments.values() for one in several]
        more = (*self.versions, *fold.versions), (*self.refused, *fold.refused)
        return Pages(covers, self.plan_names, *more).naming([*published, *assigned])

    def naming(self, plans: Iterable[str]) -> Pages:
        """With numbers for these plans too."""
        return replace(self, plan_names=tuple(dict.fromkeys([*self.plan_names, *plans])))

    @property
    def numbers(self) -> dict[str, int]:
        """Each plan's number."""
        return {plan: number for number, plan in enumerate(self.plan_names)}

    def as_json(self) -> dict[str, Any]:
        """The pages for a file."""
        return {
            "covers": self.covers,
            "plan_names": self.plan_names,
            "versions": [[offset, version.as_payload()] for offset, version in self.versions],
            "refused": [[one.offset, one.id, one.reason, one.detail] for one in self.refused],
        }

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Pages:
        """The pages of a file."""
        return cls(
            content["covers"],
            tuple(content["plan_names"]),
            tuple((offset, PlanVersion.from_payload(payload)) for offset, payload in content["versions"]),
            tuple(Refused(*fields) for fields in content["refused"]),
        )


def save(folder: Path, journal_id: str | None, pages: Pages, accounts: Accounts) -> None:
    """Write a snapshot, in one step and durably, and delete those that nobody needs any more."""
    content = json.dumps({"version": VERSION, "journal": journal_id, **pages.as_json()})
    batch = accounts.as_batch()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA.with_metadata({_METADATA: content.encode()})) as writer:
        writer.write_batch(batch)
    write_atomically(folder / f"{_PREFIX}{pages.covers:020d}{_SUFFIX}", sink.getvalue().to_pybytes())
    for path in list(_newest_first(folder))[_KEPT:]:
        path.unlink(missing_ok=True)


def load_newest(folder: Path, journal_id: str | None) -> tuple[Pages, Accounts] | None:
    """The newest snapshot; None where there is none. StateError if it is damaged, or of another journal."""
    for path in _newest_first(folder):
        try:
            return _load(path, journal_id)
        except FileNotFoundError:
            continue  # deleted meanwhile: there is a newer one, or this one's place was taken
        except (pa.ArrowInvalid, OSError, ValueError, LookupError, TypeError) as error:
            raise _unusable(path, f"it is damaged: {error}") from error
    return None


def _load(path: Path, journal_id: str | None) -> tuple[Pages, Accounts]:
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    content = json.loads(file.schema.metadata[_METADATA])
    if content["version"] != VERSION:
        raise _unusable(path, f"it has the format version {content['version']}, not {VERSION}")
    if content["journal"] != journal_id:
        raise _unusable(path, f"it is of the journal {content['journal']}, this one is {journal_id}")
    return Pages.parse(content), Accounts.from_batch(file.get_batch(0))


def _newest_first(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"), reverse=True)


def _unusable(path: Path, reason: str) -> StateError:
    return StateError(
        f"The snapshot of the book cannot be used: {reason}",
        where=str(path),
        next_step="Delete it: the book is then read from the journal",
    )
