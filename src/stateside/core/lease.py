"""The lease: one owner at a time of something shared, with an epoch that grows at every takeover, and a fence.

How a process becomes the owner. No two machines' clocks are compared.

1. The process reads the newest claim, and makes sure that its owner is gone, in one of four ways: the owner has
   released the lease; its renewals did not change for a lease, as the process observed by its own clock (`LeaseWatch`);
   the lock that the owner held while it lived is free (`hold`: one machine, but at once); or an operator says so.
2. The process claims the lease by compare-and-swap: of several that found the same claim one succeeds. From here on
   every `check` of the former owner fails.
3. The process makes harmless what the former owner may still do after a check that it has passed: leaders shut its gate
   (`leadership.gate`), owners of a node seal its log (`journal.backends.nodes.log`).
4. The process works as the owner, renews or holds its lock, and calls `check` before each act reserved to the owner.
5. The owner releases the lease, or its lock.

A crash before step 2 changes nothing. A crash after it leaves an owner that renews nothing and holds no lock: the next
process begins with step 1, and repeats step 3.

    CLAIMS               the newest claim: who owns, at least {"epoch", "token"}. One object, replaced; or, with a `{}`
                         in its name, one object per epoch, of which the highest counts
    renewals/EPOCH.json  the owner's signs of life, counted: {"count", "released", "to"}. Only this owner writes the
                         object, so a late one disturbs no other. `released` ends the ownership; `to` names the next
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from stateside.core.errors import StateError, StatesideError
from stateside.core.json_file import JsonFile
from stateside.core.storage import SmallObjects, Versioned, lock_within, try_lock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """The claim of one owner. No two are equal, not even of the same epoch, because of the random token."""

    epoch: int
    token: str

    @classmethod
    def of(cls, epoch: int) -> Owner:
        """A new owner for an epoch."""
        return Owner(epoch, secrets.token_hex(8))


C = TypeVar("C", bound=Owner)


@dataclass(frozen=True, slots=True)
class Renewal:
    """An owner's newest sign of life."""

    count: int = 0
    released: bool = False
    to: str | None = None  # the token of the next owner; None is any process


_RENEWAL = JsonFile("The renewal of the lease", lambda document: Renewal(**document))


class Lease(Generic[C]):
    """What processes know of each other: claims and renewals."""

    def __init__(
        self,
        objects: SmallObjects,
        claims: str,
        encode: Callable[[C], bytes],
        decode: Callable[[bytes, str], C],
        lost: Callable[[C, C | None], StatesideError],
    ) -> None:
        """`claims`: the name, as drawn above. `decode` gets the path for its error.

        `lost` makes the error of a former owner, from its claim and the newest one.
        """
        self._objects, self._claims, self._encode, self._decode, self.lost = objects, claims, encode, decode, lost

    def newest(self) -> C | None:
        """The claim that counts; None before the first. OSError if the storage is away."""
        epochs = self._epochs(self._claims)
        name = self._claims.format(max(epochs, default=0))
        newest = self._decoded(name, self._objects.read(name))
        if epochs and newest is None:  # the storage went away between the two: unknown must not look like nobody
            raise FileNotFoundError(errno.ENOENT, "The newest claim is gone", self._objects.path(name))
        return newest

    def claim(self, claim: C, after: C | None = None) -> Held[C] | None:
        """Step 2; None if another process was first. `after`: the claim replaced, where there is one object for all."""
        name = self._claims.format(claim.epoch)
        found = self._objects.read(name)
        if self._decoded(name, found) != after:
            return None
        version = None if found is None else found.version
        return Held(self, claim) if self._objects.compare_and_swap(name, version, self._encode(claim)) else None

    def renewal(self, epoch: int) -> Renewal:
        """The newest renewal of an owner, watched for changes; one that a loss of power left empty is none."""
        found = self._objects.read(_renewals(epoch))
        try:
            return Renewal() if found is None else _RENEWAL.decode(found.content, "")
        except StateError:
            return Renewal()

    def renew(self, epoch: int, renewal: Renewal) -> None:
        """Write a renewal. Not durable unless released: after a loss of power the owner is gone as well."""
        self._objects.replace(_renewals(epoch), _RENEWAL.encode(renewal), durable=renewal.released)

    def forget_before(self, epoch: int) -> None:
        """Delete claims and renewals of epochs long past: for the owner, of epochs before its own.

        A process paused before it claimed such an epoch finds the name free when it wakes up, and gets a `Held` of an
        epoch that never counts: the highest claim is not deleted, so `check` fails, and what step 3 made harmless stays
        harmless.
        """
        for names in (self._claims, _renewals("{}")):
            for past in self._epochs(names):
                if past < epoch:
                    self._objects.delete(names.format(past))

    def _epochs(self, names: str) -> list[int]:
        folder, numbered, suffix = names.partition("{}")
        if not numbered:
            return []
        found = [name.removesuffix(suffix) for name in self._objects.names(folder) if name.endswith(suffix)]
        return [int(name) for name in found if name.isascii() and name.isdigit()]

    def _decoded(self, name: str, found: Versioned | None) -> C | None:
        return None if found is None else self._decode(found.content, self._objects.path(name))


class Held(Generic[C]):
    """A lease that was claimed, from the claim to its release."""

    def __init__(self, lease: Lease[C], claim: C) -> None:
        self.lease, self.claim = lease, claim
        self._count = 0

    def check(self) -> None:
        """The fence: raises `lost` if another process has claimed the lease since; OSError if nobody can know."""
        newest = self.lease.newest()
        if newest != self.claim:
            raise self.lease.lost(self.claim, newest)

    def renew(self) -> None:
        """Give a sign of life; raises as `check` does."""
        self.check()
        self._count += 1
        self.lease.renew(self.claim.epoch, Renewal(self._count))

    def release(self, to: str | None = None) -> None:
        """Let the process with the token `to`, or any other, claim the lease at once; raises as `check` does."""
        self.check()
        self.lease.renew(self.claim.epoch, Renewal(self._count + 1, released=True, to=to))


def _renewals(epoch: object) -> str:
    return f"renewals/{epoch}.json"


Ticks = Callable[[], float]  # seconds since some moment
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_s() -> float:
    """Seconds since this machine was started, including those it slept: a sleeping watcher did not look."""
    return time.clock_gettime(_BOOT_CLOCK)


LOOKS_MIN = 4  # of a gap between two looks at most 1/LOOKS_MIN of the lease counts


@dataclass(slots=True)
class LeaseWatch:
    """How long a sign has been observed unchanged. Time without a readable sign does not count.

    Nor does most of the time between distant looks: the watcher may have been paused, and the owner with it, on the
    same machine or by the same storage, so that no sign could be given. Of a gap between two looks at most a quarter of
    `enough_s` counts. A merely slow watcher, with rare looks, thus still reaches the end.
    """

    _seen: object = None
    _looked_s: float | None = None
    _unchanged_s: float = 0.0

    def look(self, sign: object, now_s: float, enough_s: float) -> bool:
        """Record the current sign; whether the sign has surely been unchanged for `enough_s`."""
        if self._looked_s is None or sign != self._seen:
            self._seen, self._unchanged_s = sign, 0.0
        else:
            self._unchanged_s += min(now_s - self._looked_s, enough_s / LOOKS_MIN)
        self._looked_s = now_s
        return self._unchanged_s >= enough_s

    def changed(self, sign: object) -> bool:
        """Whether an earlier look saw another sign."""
        return self._looked_s is not None and sign != self._seen

    def forget(self) -> None:
        """The sign cannot be read: start again with the next look."""
        self._looked_s = None


def hold(path: Path, refusal: Callable[[str], StatesideError], *, wait_s: float = 0.0, shared: bool = False) -> int:
    """Lock a file while this process lives, or a child that inherits the descriptor, which is returned.

    `refusal` makes the error from the process ids of the holders, if the lock is not free after `wait_s`. A lock is
    never taken from a live process: its owner needs neither epoch nor fence on this machine.
    """
    handle = try_lock(path, shared=shared)
    if handle is None and wait_s:
        log.warning("waiting for process %s, which holds %s", holders(path), path)
        handle = lock_within(path, wait_s, shared=shared)
    if handle is None:
        raise refusal(holders(path))
    if holders(path).split()[0] != str(os.getpid()):  # otherwise the file already lists this process and its children
        note_holders(handle, os.getpid())
    return handle


def note_holders(handle: int, *pids: int) -> None:
    """Write the process ids of the holders into the lock file, for operators."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, " ".join(map(str, pids)).encode(), 0)


def holders(path: Path) -> str:
    """The process ids of the present or last holders, separated by spaces."""
    return path.read_text().strip() or "unknown"
