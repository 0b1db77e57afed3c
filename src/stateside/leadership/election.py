"""The election: one candidate leads at a time, and an old leader that wakes up can commit nothing.

How a candidate becomes the leader by the application's lease (`core.lease`), and why only its work counts:

1. The candidate takes its name among the members (`application_lease`); refused if another live process has it.
2. The candidate watches the newest claim and its renewals, by its own clock. The leader renews four times per
   `lease_s`, a duration stored in the claim. If neither claim nor renewals change for `lease_s`, as the candidate
   itself observed (`LeaseWatch`), the lease has expired. A lease released to this candidate or to anyone has expired at
   once.
3. The candidate claims the next epoch, possible for one candidate only: the others see a new claim, and go on at 2.
   From here on every `check` of the old leader fails.
4. The candidate shuts the gates of all earlier epochs (`gate`). From here on no path of an old leader resolves: not
   those of its driver, of its JVM, of its executors, of its sinks. So the old leader plans no batch, stores no state,
   commits no batch, and opens no table any more, wherever it was paused. Its earlier writes stay readable.
5. The candidate opens its own gate, and fails if a later leader has shut the gate already. If the storage fails between
   3 and 5, nobody leads: the candidate may claim the next epoch as soon as possible, because nobody works under its
   current epoch. After one such retry the candidate waits like any other: the storage may be failing for this candidate
   alone.
6. The new leader reads the checkpoint. After step 4 the checkpoint no longer changes, so its content is as a crash of
   the old leader at some moment would have left it. Whatever holds after a crash holds now: Spark repeats the batch
   planned last, if uncommitted, with the same range of the journal; every other batch either is committed, with its
   rows delivered before the commit, or was never planned.
7. Before each attempt to deliver a batch, the leader's delivery calls `check`.

What an old leader can still do between step 4 and its end, and the effect. The old leader has passed step 7 for the
batch planned last, the very batch that the new leader repeats, with the same rows under the same (query, batch), and:

- has a Delta table open: the table's own log refuses its commit if the new leader's is in, as both set (query, batch);
  if the old leader commits first, the new one finds the batch stored. Rows with a key and billing's documents are
  stored on top of the version that was read, or not at all;
- writes a file at an absolute path outside the folder: the file's name is derived from the batch;
- is in a Kafka transaction: the new leader's producer has the same transactional id, and so fences the old one;
- appends to the journal, with a segment open: the events have ids made of query, batch and key, and are stored once;
- is in a request to an HTTP endpoint: the request is sent, and the new leader repeats the request with the same
  idempotency key. An endpoint that ignores the key, or has forgotten the key because the old leader slept so long, acts
  twice. Nothing here can prevent such a repetition;
- finishes writing a file under a temporary name, read by nobody.

Spark's own guard remains as the second line of defence: a driver that finds `offsets/N` or `commits/N` present ends
with CONCURRENT_STREAM_LOG_UPDATE, and state files carry the id of the attempt (checkpoint format v2).

A failover waits at most `lease_s` plus one look (`lease_s` / 20) after the last renewal, longer if the standby itself
is held up; after an orderly stop or hand-over one look. A leader hands over to a candidate that asked and has given a
sign of life since the request was seen: until then, up to half a lease, the leader goes on working.

`alone` takes the leadership for a tool that changes the foundations of jobs, and needs all jobs stopped:

1. Where the lease was released, or nobody has led yet, every member with a file is watched for a lease: the file of a
   waiting or starting process changes, the file of a killed one does not. No clocks are compared. A process that left
   in order has no file, and is not waited for.
2. The tool waits for the leadership like any standby: the lease of a killed or paused leader expires without renewals.
   Any sign of life meanwhile, from leader or member, ends the attempt.
3. From here on the tool leads. A leader that was merely paused finds its gate shut when it wakes up, and its `check`
   fails.

Watching the others serves people: they learn that a job is alive, instead of finding the job restarted. Safety comes
from step 3. So a standby whose own lease is longer than the last leader's, and gives no sign in time, does no harm: the
standby goes on waiting, and leads after the release.
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
from stateside.core.layout import Layout
from stateside.core.lease import Held, LeaseWatch, Ticks, boot_s, hold
from stateside.leadership.application_lease import (
    EPOCHS_KEPT,
    ApplicationLease,
    Claim,
    Members,
    Membership,
    TakeoverRequest,
    auto_identity,
)
from stateside.leadership.gate import Gates

RENEWALS_A_LEASE = 4
log = logging.getLogger(__name__)


class Leadership:
    """The leadership of one epoch, from claim to release. `start` begins the renewals in a thread.

    Before every action reserved for the leader a caller calls `check`, and then uses only paths under `root`, all of
    them through the epoch's gate.
    """

    def __init__(self, root: Path, held: Held[Claim], membership: Membership) -> None:
        self.claim, self._held = held.claim, held
        self.root = Gates(root).path(self.claim.epoch)
        self._lease, self._members, self._membership = ApplicationLease(root), Members(root), membership
        self._released = False
        self._asked: TakeoverRequest | None = None
        self._asking: tuple[TakeoverRequest | None, LeaseWatch] = None, LeaseWatch()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="lease", daemon=True)

    def start(self) -> Leadership:
        """Begin to renew the lease, four times per `lease_s`."""
        self._thread.start()
        return self

    def check(self) -> None:
        """LeadershipLost if another process leads by now; OSError if the storage is away and cannot answer."""
        self._held.check()

    def renew(self) -> None:
        """One renewal, a sign of life. LeadershipLost and OSError as in `check`."""
        self._held.renew()
        self._asked = self._asked or self._alive(self._lease.asked(self.claim.epoch))
        self._tell_members()

    @property
    def pause_file(self) -> Path:
        """Exists while the leader may begin no new batch. One per epoch: another leader's stop has no effect."""
        return self._lease.folder / f"pause-{self.claim.epoch}"

    @property
    def asked(self) -> TakeoverRequest | None:
        """The live candidate that asks for the leadership, as of the last renewal.

        Live means a sign of life since its request was seen. A hand-over to a dead candidate would leave no leader.
        """
        return self._asked

    def end(self) -> None:
        """Stop renewing without releasing the lease: the effect of a crash, in order."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(self.claim.lease_s)  # bounded: the thread may hang in storage that is away

    def release(self) -> None:
        """End the leadership: the requesting candidate, or else any candidate, may lead at once. Idempotent.

        The caller has stopped all of its work. A request of a candidate that has left since is dropped.
        """
        if self._released:
            return
        self._released = True
        self.end()
        try:
            self._membership.leave()
            self._forget_who_left()
            self._held.release(to=None if self._asked is None else self._asked.token)
        except LeadershipLost:
            return
        except (OSError, StatesideError) as error:
            log.warning("the lease was not released, and runs out by itself: %s", error)

    def _keep_renewing(self) -> None:
        while not self._ended.wait(self.claim.lease_s / RENEWALS_A_LEASE):
            try:
                self.renew()
            except OSError as error:  # the storage is away, for standbys too: the next turn retries
                log.warning("the lease cannot be renewed: %s", error)
            except StatesideError as error:  # `check` raises the same for callers
                log.error("%s", error)
                return

    def _alive(self, asked: TakeoverRequest | None) -> TakeoverRequest | None:
        if asked != self._asking[0]:
            self._asking = asked, LeaseWatch()
        sign = None if asked is None else self._members.sign(asked.identity, asked.token)
        if sign is None or self._asking[1].changed(sign):
            return None if sign is None else asked
        self._asking[1].look(sign, 0.0, self.claim.lease_s)
        return None

    def _forget_who_left(self) -> None:
        asked = self._asked
        if asked is not None and self._members.sign(asked.identity, asked.token) is None:
            log.warning("%s asked for the leadership, and has ended since: anybody may lead now", asked.identity)
            self._asked = None

    def _tell_members(self) -> None:
        try:
            self._membership.beat("leading")
        except IdentityTaken as error:
            log.warning("%s", error)
        except OSError as error:  # the leader has just renewed its lease, and goes on leading
            log.warning("the members cannot be told who leads: %s", error)


LEASE_S_MIN = 0.2  # shorter ones expire while a busy machine does other work
LOOKS_A_LEASE = 20
AUTO = "auto"
OnStep = Callable[[int], None]  # called with each numbered step from 3 on as it is reached: tests pause and crash there


class Candidate:
    """A process that stands by for an application's folder. Call `wait` for the leadership, or `step` by step."""

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
        """With `identity` AUTO the name is made of host and process id."""
        if not lease_s >= LEASE_S_MIN or lease_s == float("inf"):
            raise SettingInvalid(f"A lease of {lease_s} s cannot be kept", next_step=f"Give {LEASE_S_MIN} s or more")
        self._host, self._pid = socket.gethostname(), os.getpid()
        self.identity = auto_identity(self._host, self._pid) if identity == AUTO else identity
        self.token = secrets.token_hex(8)
        self._root, self._lease, self._gates = root, ApplicationLease(root), Gates(root)
        self._lease_s, self._ticks, self._clock, self._on_step = lease_s, ticks, clock or SystemClock(), on_step
        self._membership = Membership(root, self.identity, self.token, self._host, self._pid, self._clock)
        self._watch = LeaseWatch()
        self._beat_due_s = 0.0
        self._tried_again = False
        self._asked_epoch: int | None = None  # of the leader asked to hand over; None without a request
        self._seeing = True
        self._lease.make()

    def enter(self, told_to_stop: Callable[[], bool]) -> bool:
        """Step 1 alone, for a process that prepares before waiting; False if told to stop before joining."""
        while not told_to_stop():
            if self._membership.join(self._ticks(), self._lease_s / 2):
                return True
            time.sleep(self._lease_s / LOOKS_A_LEASE)
        return False

    @contextmanager
    def getting_ready(self) -> Iterator[None]:
        """Signs of life from a thread between `enter` and the first `step`, so that the name stays taken meanwhile.

        No other method of the candidate may be called inside the `with`.
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
        """Wait until this candidate leads, and start its renewals; None if told to stop before, or after `wait_s`."""
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
        """One look at the lease and its consequence; returns the leadership once won, with its first renewal given.

        A leader takes no more steps.
        """
        try:
            if not self._known():
                return None
            epoch = self._epoch_to_take()
            self._seeing = True
            return None if epoch is None else self._take(epoch)
        except OSError as error:  # nothing was seen: earlier observations no longer count
            if self._seeing:
                log.warning("the lease cannot be read: %s", error)
            self._seeing = False
            self._watch.forget()
            return None

    def ask(self) -> Claim | None:
        """Ask the current leader to hand over to this candidate; returns its claim, or None if nobody leads.

        If another process leads first, `step` asks again; unless the leader asked here has handed over to a later
        requester: otherwise two candidates would take the leadership from each other for ever.
        """
        newest = self._lease.newest()
        leads = newest is not None and not self._lease.renewal(newest.epoch).released
        if newest is not None and leads:
            self._lease.ask(TakeoverRequest(newest.epoch, self.identity, self.token))
        self._asked_epoch = 0 if newest is None else newest.epoch
        return newest if leads else None

    def leader(self) -> Claim | None:
        return self._lease.newest()

    def leave(self) -> None:
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
            except IdentityTaken:  # the next `step` raises the same
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
        renewal = self._lease.renewal(newest.epoch)
        silent = self._watch.look((newest, renewal), self._ticks(), newest.lease_s)
        if renewal.released and renewal.to in (None, self.token):
            return newest.epoch + 1
        self._ask_again(newest)
        return newest.epoch + 1 if silent else None

    def _ask_again(self, newest: Claim) -> None:
        """Ask again if the leader asked before was replaced without handing over to another candidate."""
        if self._asked_epoch is None or self._asked_epoch >= newest.epoch:
            return
        with suppress(OSError):  # the next look retries; no reason to stop watching this leader
            if self._lease.renewal(self._asked_epoch).to in (None, self.token):
                self.ask()
            else:
                self._asked_epoch = newest.epoch

    def _take(self, epoch: int) -> Leadership | None:
        """Steps 3 to 5."""
        time_us = self._clock.now_us()
        claim = Claim(epoch, self.token, self.identity, self._host, self._pid, self._lease_s, time_us)
        self._on_step(3)
        held = self._lease.claim(claim)
        if held is None:
            return None
        self._on_step(4)
        self._gates.shut_before(epoch)
        self._on_step(5)
        try:
            self._gates.open(epoch)
            leadership = Leadership(self._root, held, self._membership)
            leadership.renew()
        except LeadershipLost as error:  # paused here for a whole lease
            log.warning("%s", error)
            return None
        self._tidy(epoch)
        return leadership

    def _tidy(self, epoch: int) -> None:
        """Each run leaves a claim, and a killed run its name: a leader removes the old ones."""
        try:
            self._lease.forget_before(epoch - EPOCHS_KEPT)
            Members(self._root).forget_killed(self._clock.now_us())
        except OSError as error:  # the next leader retries
            log.info("the lease's folder was not tidied: %s", error)


LEASE_S = 10.0  # where nobody has led yet, and so no claim has a duration
LEASES_MAX = 4  # how long to wait for the leadership; one is enough unless this process is held up


def hold_driver_lock(path: Path, wait_s: float = 0.0, *, shared: bool) -> int:
    """The lock of the one Spark driver of a folder, for its JVM to inherit; PipelineRunning if not free in time.

    Spark does not stop a second driver from starting on a checkpoint, and sinks have no protection against it. After a
    kill of the Python process the JVM keeps the lock until the JVM has ended too: the next driver never runs beside it.
    Leaders share the lock: a new leader may start although a paused one still holds the lock, because the old leader's
    gate is shut. A shared lock keeps out drivers without a lease. A process with the lock, and with the lease if there
    is one, knows that no savepoint restore is running.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return hold(
        path,
        lambda pids: PipelineRunning(
            f"A job runs on this folder: its Spark driver is process {pids}",
            where=str(path.parent),
            next_step="Stop it first, or use another --dir",
        ),
        wait_s=wait_s,
        shared=shared,
    )


@contextmanager
def excluding_drivers(root: Path, wait_s: float = 0.0) -> Iterator[tuple[Path, int]]:
    """A folder on which no job runs and none starts: its path for writing, and the driver's lock, for a JVM to inherit.

    Where a lease exists, the path is the gate of this process's own leadership, and LeadershipLost is raised for any
    error once another process leads. PipelineRunning while a process runs a job on the folder, or stands by.
    """
    leads = ApplicationLease(root).exists()
    handle = hold_driver_lock(Layout(root).driver_lock, wait_s, shared=leads)
    try:
        if not leads:
            yield root, handle
            return
        with alone(root) as leadership:
            try:
                yield leadership.root, handle
            except Exception:
                leadership.check()
                raise
    finally:
        os.close(handle)


@contextmanager
def alone(root: Path) -> Iterator[Leadership]:
    """The leadership of a folder with no other live process, on whatever machine; released when the `with` ends.

    PipelineRunning if another process leads, stands by or starts there; OSError or LeaseInvalid if the storage gives no
    answer.
    """
    lease = ApplicationLease(root)
    newest = lease.newest()
    lease_s = LEASE_S if newest is None else newest.lease_s
    candidate = Candidate(root, lease_s=lease_s)
    others = _Others(root, candidate.identity)
    candidate.enter(lambda: False)
    try:
        if newest is None or lease.renewal(newest.epoch).released:
            with candidate.getting_ready():
                others.wait(lease_s)
        leadership = candidate.wait(lambda: bool(others.living()), LEASES_MAX * lease_s)
        if leadership is None:
            raise _running(root, others.living() or ["another process"])
        try:
            yield leadership
        finally:
            leadership.release()
    finally:
        candidate.leave()


class _Others:
    """The other members and the newest leader: whether any gives a sign of life."""

    def __init__(self, root: Path, own: str) -> None:
        self._root, self._own = root, own
        self._first = self._signs()

    def wait(self, lease_s: float) -> None:
        """Wait until no member has given a sign for a lease; PipelineRunning as soon as one does."""
        watch = LeaseWatch()
        while (members := self._members()) and not watch.look(members, boot_s(), lease_s):
            if living := self.living():
                raise _running(self._root, living)
            time.sleep(lease_s / LOOKS_A_LEASE)

    def living(self) -> list[str]:
        """Members that joined or changed their sign since the start. A member that left is not alive."""
        return [name for name, sign in self._signs().items() if self._first.get(name) != sign]

    def _signs(self) -> dict[str, object]:
        """Includes the newest leader's renewals, given even if another process has its name by now."""
        lease = ApplicationLease(self._root)
        newest = lease.newest()
        if newest is None or newest.identity == self._own:  # our own claim, which a storage failure kept incomplete
            return self._members()
        return {**self._members(), str(newest): (newest, lease.renewal(newest.epoch))}

    def _members(self) -> dict[str, object]:
        return {name: sign for name, sign in Members(self._root).signs().items() if name != self._own}


def _running(root: Path, names: list[str]) -> PipelineRunning:
    return PipelineRunning(
        f"Jobs lead this folder or stand by for it: {', '.join(names)}",
        where=str(root),
        next_step="Stop them all. One that was killed is known to be gone after its lease",
    )
