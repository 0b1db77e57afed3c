"""The election: of all candidates one leads at a time, and an old leader that wakes up can commit nothing.

How a candidate becomes the leader, and why it is the only one whose work counts. No two machines' clocks are compared.

1. It takes its name among the members (`members`), and is refused if another process lives under it.
2. It watches the newest claim and its renewals, by its own clock. The leader gives a sign of life four times in
   `lease_s`, which stands in the claim. If neither claim nor renewals change for `lease_s`, as the candidate itself saw
   from first to last, the lease has run out. Time in which the storage could not be read does not count: the leader
   could not renew then either. Of time in which the candidate did not look, as it was paused itself, or slow, little
   counts (`watch`): the leader may have been paused with it. A lease that was released, to this candidate or to
   anybody, has run out at once.
3. It claims the next epoch by a link, which one candidate alone can make: the others see a new claim, and go on at 2.
   From here on every `check` of the old leader fails.
4. It shuts the gates of all earlier epochs (`gate`). From here on no path of an old leader leads anywhere: not those of
   its driver, of its JVM, of its executors, of its sinks. So it plans no batch, stores no state, commits no batch, and
   opens no table any more, wherever it was paused. What it did before lies open to be read.
5. It opens its own gate, and fails if a later leader has shut that already. If the storage fails it between 3 and 5,
   nobody leads: it may claim the next epoch as soon as it can, for nobody works under the one that it has. It does so
   once, and then waits as anybody: it may be the only one whom the storage fails.
6. It reads the checkpoint. After step 4 nothing changes there any more, so what it finds is what a crash of the old
   leader at some moment would have left. Whatever holds after a crash holds now: Spark repeats the batch that was
   planned last, if it is not committed, with the same range of the journal; every other one is either committed, and
   its rows were delivered before that, or was never planned.
7. Before each attempt to deliver a batch, the leader's delivery asks `check`.

What an old leader can still do between 4 and its end, and who stops that. It has passed step 7 for the batch that it
planned last, which is the very one that the new leader repeats, with the same rows under the same (query, batch), and:

- it holds a Delta table opened: its commit is refused by the table's own log if the new leader's is in, as both set
  (query, batch); if it is first, the new leader finds the batch stored. Rows with a key and billing's documents are
  stored on top of the version that was looked at, or not at all;
- it writes a file at a whole path outside the folder: the file's name is the batch's;
- it is in a transaction of Kafka's: the new leader's producer has the same transactional id, which fences the old one;
- it appends to the journal, with a segment open: its events have ids made of query, batch and key, and are stored once;
- it is in a request to an HTTP endpoint: that is sent, and the new leader sends it again, with the same idempotency
  key. What the endpoint does without looking at that key is done twice, and so is what it does after it has forgotten
  the key, if the old leader slept so long. Nothing here can prevent that;
- it finishes writing a file under a temporary name, which nobody reads.

Spark's own guard stays in place as the second line: a driver that finds `offsets/N` or `commits/N` there already ends
with CONCURRENT_STREAM_LOG_UPDATE, and state files carry the id of the attempt (checkpoint format v2).

How long a takeover takes: at most `lease_s` and one look (`lease_s` / 20) after the last sign of life, longer if the
standby is held up itself; then the start of the queries; of Spark as well, if the standby is cold. After a stop or a
hand-over in order there is nothing to wait for but one look. A leader hands over to who asks for it, and has given a
sign of life since that was seen: until then, which takes up to half a lease, it goes on working.

A leader, from its claim to its end: gives signs of life, hears who asks for the leadership, knows if it leads.

Alone: the leadership for somebody who changes what jobs stand on, and wants none of them to live meanwhile.

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

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stateside.core.clock import Clock, SystemClock
from stateside.core.errors import IdentityTaken, LeadershipLost, PipelineRunning, SettingInvalid, StatesideError
from stateside.leadership.gate import Gates
from stateside.leadership.lease import (
    EPOCHS_KEPT,
    Claim,
    Lease,
    LeaseWatch,
    Renewal,
    TakeoverRequest,
    Ticks,
    boot_s,
    read_renewal,
)
from stateside.leadership.membership import Membership, auto_identity, forget_killed, sign_of, signs

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
        self._asked: TakeoverRequest | None = None
        self._asking: tuple[TakeoverRequest | None, LeaseWatch] = None, LeaseWatch()
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
    def asked(self) -> TakeoverRequest | None:
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

    def _alive(self, asked: TakeoverRequest | None) -> TakeoverRequest | None:
        if asked != self._asking[0]:
            self._asking = asked, LeaseWatch()
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


LEASE_S_MIN = 0.2  # shorter ones run out while a busy machine is about something else
LOOKS_A_LEASE = 20
AUTO = "auto"
OnStep = Callable[[int], None]  # told each numbered step from 3 on as it is reached: tests pause and crash there


class Candidate:
    """A process that stands by for an application's folder. `wait` for the leadership, or `step` by step."""

    def __init__(
        self,
        root: Path,
        identity: str = AUTO,
        *,
        lease_s: float,
        ticks: Ticks = boot_s,
        clock: Clock | None = None,
        on_step: OnStep = lambda step: None,
    ) -> None:
        """The `identity` AUTO is made of host and process."""
        if not lease_s >= LEASE_S_MIN or lease_s == float("inf"):
            raise SettingInvalid(f"A lease of {lease_s} s cannot be kept", next_step=f"Give {LEASE_S_MIN} s or more")
        self._host, self._pid = socket.gethostname(), os.getpid()
        self.identity = auto_identity(self._host, self._pid) if identity == AUTO else identity
        self.token = secrets.token_hex(8)
        self._root, self._lease, self._gates = root, Lease(root), Gates(root)
        self._lease_s, self._ticks, self._clock, self._on_step = lease_s, ticks, clock or SystemClock(), on_step
        self._membership = Membership(root, self.identity, self.token, self._host, self._pid, self._clock)
        self._watch = LeaseWatch()
        self._beat_due_s = 0.0
        self._tried_again = False
        self._asked_epoch: int | None = None  # of the leader that we have asked to hand over; None if we ask nobody
        self._seeing = True
        self._lease.make()

    def enter(self, told_to_stop: Callable[[], bool]) -> bool:
        """Step 1 alone, for who has to get ready before it waits; False if it is told to stop before that."""
        while not told_to_stop():
            if self._membership.join(self._ticks(), self._lease_s / 2):
                return True
            time.sleep(self._lease_s / LOOKS_A_LEASE)
        return False

    @contextmanager
    def getting_ready(self) -> Iterator[None]:
        """After `enter`, until the `with` ends: signs of life from a thread, so that its name stays its own meanwhile.

        Nothing else of the candidate may be called in it.
        """
        ended = threading.Event()
        thread = threading.Thread(target=self._keep_starting, args=(ended,), name="member", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def wait(self, told_to_stop: Callable[[], bool], wait_s: float = float("inf")) -> Leadership | None:
        """Until it leads, with renewals begun; None if it is told to stop before, or the time is over."""
        deadline_s = self._ticks() + wait_s
        while not told_to_stop():
            leadership = self.step()
            if leadership is not None:
                return leadership.start()
            if self._ticks() >= deadline_s:
                return None
            time.sleep(self._lease_s / LOOKS_A_LEASE)
        return None

    def step(self) -> Leadership | None:
        """One look, and what follows from it; the leadership if it is ours now, with its first renewal given.

        Who leads does not look any more.
        """
        try:
            if not self._known():
                return None
            epoch = self._epoch_to_take()
            self._seeing = True
            return None if epoch is None else self._take(epoch)
        except OSError as error:  # nothing was seen: what was seen before counts no more
            if self._seeing:
                log.warning("the lease cannot be read: %s", error)
            self._seeing = False
            self._watch.forget()
            return None

    def ask(self) -> Claim | None:
        """Ask the present leader to hand over to us; who that is, None if nobody leads.

        If another one leads before us, `step` asks that one; unless the one that we asked has handed over to who asked
        after us: two would take the leadership from each other.
        """
        newest = self._lease.newest()
        leads = newest is not None and not read_renewal(self._lease.sign(newest.epoch)).released
        if newest is not None and leads:
            self._lease.ask(TakeoverRequest(newest.epoch, self.identity, self.token))
        self._asked_epoch = 0 if newest is None else newest.epoch
        return newest if leads else None

    def leader(self) -> Claim | None:
        """The newest claim."""
        return self._lease.newest()

    def leave(self) -> None:
        """Stand by no longer."""
        try:
            self._membership.leave()
        except OSError as error:
            log.warning("the name %s could not be given back: %s", self.identity, error)

    def _keep_starting(self, ended: threading.Event) -> None:
        while not ended.wait(self._lease_s / RENEWALS_A_LEASE):
            try:
                self._membership.beat("starting")
            except OSError as error:
                log.warning("no sign of life can be given: %s", error)
            except IdentityTaken:  # the next `step` says the same
                return

    def _known(self) -> bool:
        """Step 1, and from then on our own signs of life; whether the name is ours."""
        now_s = self._ticks()
        if not self._membership.join(now_s, self._lease_s / 2):
            return False
        if now_s >= self._beat_due_s:
            self._membership.beat("standing by")
            self._beat_due_s = now_s + self._lease_s / RENEWALS_A_LEASE
        return True

    def _epoch_to_take(self) -> int | None:
        """Step 2."""
        newest = self._lease.newest()
        if newest is None:
            return 1
        if newest.token == self.token and not self._tried_again:
            self._tried_again = True
            return newest.epoch + 1
        sign = self._lease.sign(newest.epoch)
        renewal = read_renewal(sign)
        silent = self._watch.look((newest.epoch, newest.token, sign), self._ticks(), newest.lease_s)
        if renewal.released and renewal.to in (None, self.token):
            return newest.epoch + 1
        self._ask_again(newest)
        return newest.epoch + 1 if silent else None

    def _ask_again(self, newest: Claim) -> None:
        """If we have asked another leader than this one, which was replaced without handing over to anybody else."""
        if self._asked_epoch is None or self._asked_epoch >= newest.epoch:
            return
        with suppress(OSError):  # it is tried again at the next look, and no reason not to watch this leader
            if read_renewal(self._lease.sign(self._asked_epoch)).to in (None, self.token):
                self.ask()
            else:
                self._asked_epoch = newest.epoch

    def _take(self, epoch: int) -> Leadership | None:
        """Steps 3 to 5."""
        time_us = self._clock.now_us()
        claim = Claim(epoch, self.identity, self.token, self._host, self._pid, self._lease_s, time_us)
        self._on_step(3)
        if not self._lease.claim(claim):
            return None
        self._on_step(4)
        self._gates.shut_before(epoch)
        self._on_step(5)
        try:
            self._gates.open(epoch)
            leadership = Leadership(self._root, claim, self._membership)
            leadership.renew()
        except LeadershipLost as error:  # paused here for a whole lease
            log.warning("%s", error)
            return None
        self._tidy(epoch)
        return leadership

    def _tidy(self, epoch: int) -> None:
        """Each run leaves a claim, and one that is killed its name: a leader removes what nobody needs any more."""
        try:
            self._lease.forget_before(epoch - EPOCHS_KEPT)
            forget_killed(self._root, self._clock.now_us())
        except OSError as error:  # the next leader tries it again
            log.info("the lease's folder was not tidied: %s", error)


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
        watch = LeaseWatch()
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
