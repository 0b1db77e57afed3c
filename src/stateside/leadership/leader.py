"""A leader, from its claim to its end: gives signs of life, hears who asks for the leadership, knows if it leads."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from stateside.errors import IdentityTaken, LeadershipLost, StatesideError
from stateside.leadership.gate import Gates
from stateside.leadership.lease import Asked, Claim, Lease, Renewal
from stateside.leadership.members import Membership, sign_of
from stateside.leadership.watch import Watch

RENEWALS_A_LEASE = 4

log = logging.getLogger(__name__)


class Leadership:
    """The leadership of one epoch. `start` begins the renewals in a thread; `release` ends it in order.

    Whoever does something that only a leader may calls `check` before, and does it by paths under `root` alone, which
    go through the epoch's gate.
    """

    def __init__(self, root: Path, claim: Claim, membership: Membership) -> None:
        self.claim = claim
        self.root = Gates(root).path(claim.epoch)
        self._root = root
        self._lease = Lease(root)
        self._membership = membership
        self._count = 0
        self._released = False
        self._asked: Asked | None = None
        self._asking: tuple[Asked | None, Watch] = None, Watch()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="lease", daemon=True)

    def start(self) -> Leadership:
        """Begin to renew the lease, four times in its length."""
        self._thread.start()
        return self

    def check(self) -> None:
        """LeadershipLost if somebody else leads by now; OSError if that cannot be found out, as the storage is away."""
        newest = self._lease.newest()
        if newest is None or (newest.epoch, newest.token) != (self.claim.epoch, self.claim.token):
            raise self._lost(newest)

    def renew(self) -> None:
        """One sign of life. LeadershipLost and OSError as in `check`."""
        self.check()
        self._count += 1
        self._lease.renew(self.claim.epoch, Renewal(self._count))
        self._asked = self._asked or self._alive(self._lease.asked(self.claim.epoch))
        self._tell_members()

    @property
    def pause_file(self) -> Path:
        """While it is there this leader begins no new batch. Its own: another leader's stop is no concern of it."""
        return self._lease.folder / f"pause-{self.claim.epoch}"

    @property
    def asked(self) -> Asked | None:
        """Who asks for the leadership, as of the last renewal, and lives: it has given a sign since its wish was seen.

        Who asked, and was killed or stopped since, is not handed over to: nobody would lead.
        """
        return self._asked

    def end(self) -> None:
        """Renew no longer, and release nothing: what a crash does, in order."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(self.claim.lease_s)  # no longer: it may hang in storage that is away

    def release(self) -> None:
        """Lead no longer: who asked for it, or else anybody, may at once. The caller has stopped all that it did.

        Who asked, and has left since, is forgotten: nobody need wait for it. Called again it does nothing.
        """
        if self._released:
            return
        self._released = True
        self.end()
        try:
            self._membership.leave()
            self.check()
            self._forget_who_left()
            to = self._asked.token if self._asked is not None else None
            self._lease.renew(self.claim.epoch, Renewal(self._count + 1, released=True, to=to))
        except LeadershipLost:
            return  # nothing is left to be released
        except (OSError, StatesideError) as error:
            log.warning("the lease was not released, and runs out by itself: %s", error)

    def _keep_renewing(self) -> None:
        while not self._ended.wait(self.claim.lease_s / RENEWALS_A_LEASE):
            try:
                self.renew()
            except OSError as error:  # the storage is away, for standbys too: it is tried again
                log.warning("the lease cannot be renewed: %s", error)
            except StatesideError as error:  # whoever asks `check` is told the same
                log.error("%s", error)
                return

    def _alive(self, asked: Asked | None) -> Asked | None:
        if asked != self._asking[0]:
            self._asking = asked, Watch()
        sign = None if asked is None else sign_of(self._root, asked.identity, asked.token)
        if sign is None or self._asking[1].changed(sign):
            return None if sign is None else asked
        self._asking[1].look(sign, 0.0, self.claim.lease_s)
        return None

    def _forget_who_left(self) -> None:
        asked = self._asked
        if asked is not None and sign_of(self._root, asked.identity, asked.token) is None:
            log.warning("%s asked for the leadership, and has ended since: anybody may lead now", asked.identity)
            self._asked = None

    def _tell_members(self) -> None:
        try:
            self._membership.beat("leading")
        except IdentityTaken as error:
            log.warning("%s", error)
        except OSError as error:  # it leads all the same, and has just renewed its lease
            log.warning("the members cannot be told who leads: %s", error)

    def _lost(self, newest: Claim | None) -> LeadershipLost:
        now = "nobody" if newest is None else f"{newest.identity} (process {newest.pid} on {newest.host})"
        epoch = "" if newest is None else f" from epoch {newest.epoch} on"
        return LeadershipLost(
            f"This leader of epoch {self.claim.epoch} was paused or away for longer than its lease: {now} leads{epoch}",
            where=str(self._lease.folder),
            next_step="Nothing that it did since counts. Start it again with --standby",
        )
