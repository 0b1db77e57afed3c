"""Alone: the leadership for somebody who changes what jobs stand on, and wants none of them to live meanwhile.

1. Where the lease was released, or nobody has led yet, whoever has a file among the members is watched for a lease: of
   a process that stands by or starts it changes, of one that was killed it does not. No clocks are compared. Who left
   in order has no file, and is not waited for.
2. The leadership is waited for, as any standby does (`election`): that of a leader that was killed or is paused runs
   out after a lease in which it gave no sign. If anybody gives one meanwhile, leader or member, that is the end.
3. From here on it leads. A leader that was only paused, and wakes up, finds its gate shut, and its `check` fails.

That others are watched is for people: they are told that a job lives, instead of finding it begun again. Step 3 is what
makes it safe. So it does no harm if a standby whose own lease is longer than the last leader's gives no sign in time:
it goes on waiting, and leads when this is released.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stateside.errors import PipelineRunning
from stateside.leadership.election import LOOKS_A_LEASE, Candidate
from stateside.leadership.leader import Leadership
from stateside.leadership.lease import Lease, read_renewal
from stateside.leadership.members import signs
from stateside.leadership.ticks import boot_s
from stateside.leadership.watch import Watch

LEASE_S = 10.0  # where nobody has led yet, and so nobody has said how long theirs is
LEASES_MAX = 4  # so long the leadership is waited for; one is enough unless this process is held up


@contextmanager
def alone(root: Path) -> Iterator[Leadership]:
    """The leadership of a folder where nobody else lives, on whichever machine; released when the `with` ends.

    PipelineRunning if anybody leads, stands by or starts there; OSError or LeaseInvalid if that cannot be found out.
    """
    newest = Lease(root).newest()
    lease_s = LEASE_S if newest is None else newest.lease_s
    candidate = Candidate(root, lease_s=lease_s)
    others = _Others(root, candidate.identity)
    candidate.enter(lambda: False)
    try:
        if newest is None or read_renewal(Lease(root).sign(newest.epoch)).released:
            with candidate.getting_ready():
                others.wait(lease_s)
        leadership = candidate.wait(others.live, LEASES_MAX * lease_s)
        if leadership is None:
            raise _running(root, others.living() or ["another process"])
        try:
            yield leadership
        finally:
            leadership.release()
    finally:
        candidate.leave()


class _Others:
    """The other members, and the newest leader: whether any of them gives a sign of life."""

    def __init__(self, root: Path, own: str) -> None:
        self._root, self._own = root, own
        self._first = self._signs()

    def wait(self, lease_s: float) -> None:
        """Until no member has given a sign for a lease; PipelineRunning as soon as one does."""
        watch = Watch()
        while (members := self._members()) and not watch.look(members, boot_s(), lease_s):
            if self.live():
                raise _running(self._root, self.living())
            time.sleep(lease_s / LOOKS_A_LEASE)

    def live(self) -> bool:
        """Whether anybody has given a sign since the beginning."""
        return bool(self.living())

    def living(self) -> list[str]:
        """Who has: who came, or whose sign is another one. Who has left does not live."""
        return [name for name, sign in self._signs().items() if self._first.get(name) != sign]

    def _signs(self) -> dict[str, object]:
        """With the newest leader's renewals, which it gives even if another process has its name by now."""
        lease = Lease(self._root)
        newest = lease.newest()
        if newest is None or newest.identity == self._own:  # by a claim that the storage kept us from making good
            return self._members()
        renewals = newest.epoch, newest.token, lease.sign(newest.epoch)
        return {**self._members(), f"{newest.identity} (process {newest.pid} on {newest.host})": renewals}

    def _members(self) -> dict[str, object]:
        return {name: sign for name, sign in signs(self._root).items() if name != self._own}


def _running(root: Path, names: list[str]) -> PipelineRunning:
    return PipelineRunning(
        f"Jobs lead this folder or stand by for it: {', '.join(names)}",
        where=str(root),
        next_step="Stop them all. One that was killed is known to be gone after its lease",
    )
