"""The lease of an application's folder: the files by which leader and standbys know each other.

FOLDER/lease/
  claims/EPOCH.json     who leads from the epoch on: {"epoch", "identity", "token", "host", "pid", "lease_s",
                        "time_us"}. Created once, and deleted when long past. Epochs are 1, 2, 3, …; the highest leads
  renewals/EPOCH.json   the leader's signs of life (`core.lease`)
  gates/EPOCH           the link in all of the leader's paths (`gate`)
  asked.json            a request to the leader of an epoch to hand over: {"epoch", "identity", "token"}
  members/NAME.json     who leads or stands by, for people, and to keep names unique: {"token", "state", "count",
                        "host", "pid", "time_us"}, where the state is "starting", "standing by" or "leading"

Times in the files are for display. No decision depends on stored times: each process measures durations with its own
monotonic clock, and a standby decides by its own observations (`core.lease.LeaseWatch`).

A newcomer first watches a name that exists already. If the file changes, its owner is alive, and the newcomer is
refused; if the file stays unchanged for half a lease, its owner was killed, and the newcomer takes the name. A process
that finds a foreign token in its own file was taken for dead, or started at the same moment as the other process, and
is refused too. A leader goes on all the same: its claim alone decides whether it leads.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stateside.core.clock import Clock
from stateside.core.errors import IdentityTaken, LeadershipLost, LeaseInvalid, SettingInvalid, StateError
from stateside.core.json_file import JsonFile
from stateside.core.lease import Lease, LeaseWatch, Owner
from stateside.core.storage import LocalObjects
from stateside.leadership.gate import FOLDER_NAME

EPOCHS_KEPT = 100  # for people who investigate
FORGOTTEN_US = 3_600_000_000  # members silent for longer are no longer shown
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Claim(Owner):
    """Who leads from an epoch on."""

    identity: str
    host: str
    pid: int
    lease_s: float
    time_us: int

    def __str__(self) -> str:
        return f"{self.identity} (process {self.pid} on {self.host})"


@dataclass(frozen=True, slots=True)
class TakeoverRequest:
    """A request to the leader of an epoch to hand over."""

    epoch: int
    identity: str
    token: str


_REQUEST = JsonFile("The request to hand over", lambda document: TakeoverRequest(**document), make_folder=False)


def _claim_file(epoch: int) -> JsonFile[Claim]:
    def parse(document: Any) -> Claim:
        claim = Claim(**document)
        if claim.epoch != epoch:
            raise ValueError(f"it is of epoch {claim.epoch}")
        return claim

    return JsonFile(
        f"The claim of epoch {epoch}",
        parse,
        damage=LeaseInvalid,
        next_step="Stop every run of this application, then delete its folder `lease`: the next run makes it",
    )


class ApplicationLease(Lease[Claim]):
    """The lease of one application, and requests to its leader."""

    def __init__(self, root: Path) -> None:
        """`root` is the application's folder."""
        self.folder = root / FOLDER_NAME
        super().__init__(
            LocalObjects(self.folder),
            "claims/{}.json",
            lambda claim: _claim_file(claim.epoch).encode(claim),
            lambda content, where: _claim_file(int(Path(where).stem)).decode(content, where),
            self._lost,
        )

    def exists(self) -> bool:
        """Whether any process ever led or stood by here: from then on every run must lead.

        OSError if the storage does not answer: unknown must not look like never.
        """
        try:
            return stat.S_ISDIR((self.folder / "claims").stat().st_mode)
        except FileNotFoundError:
            return False

    def make(self) -> None:
        for name in ("claims", "renewals", "gates", "members"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def ask(self, asked: TakeoverRequest) -> None:
        """Ask the leader of an epoch to hand over. The last request wins."""
        _REQUEST.write(self.folder / "asked.json", asked)

    def asked(self, epoch: int) -> TakeoverRequest | None:
        """The request to the leader of this epoch."""
        asked = _REQUEST.read_if_valid(self.folder / "asked.json")
        return asked if asked is not None and asked.epoch == epoch else None

    def _lost(self, own: Claim, newest: Claim | None) -> LeadershipLost:
        now = "nobody leads" if newest is None else f"{newest} leads from epoch {newest.epoch} on"
        return LeadershipLost(
            f"This leader of epoch {own.epoch} was paused or away for longer than its lease: {now}",
            where=str(self.folder),
            next_step="Nothing that it did since counts. Start it again with --standby",
        )


MemberState = Literal["starting", "standing by", "leading"]


@dataclass(frozen=True, slots=True)
class Member:
    """A member's own report, rewritten with every sign of life."""

    token: str
    state: MemberState
    count: int
    host: str
    pid: int
    time_us: int


_MEMBER = JsonFile("A member's report", lambda document: Member(**document))


class Members:
    """The processes that lead or stand by for an application, each under a unique name."""

    def __init__(self, root: Path) -> None:
        """`root` is the application's folder."""
        self._objects = LocalObjects(root / FOLDER_NAME)

    def signs(self) -> dict[str, bytes]:
        """The reports of all members by name, to be watched for changes. OSError if the storage is away."""
        names = [name.removesuffix(".json") for name in self._objects.names("members") if name.endswith(".json")]
        found = {name: self.sign(name) for name in sorted(names)}
        return {name: sign for name, sign in found.items() if sign is not None}

    def sign(self, identity: str, token: str | None = None) -> bytes | None:
        """A member's report; None if the member has left or, with a `token`, another process has its name."""
        found = self._objects.read(_report(identity))
        foreign = found is not None and token is not None and not _is_of(found.content, token)
        return None if found is None or foreign else found.content

    def known(self) -> Iterator[tuple[str, Member]]:
        """All members with a whole report, killed ones included."""
        for name, sign in self.signs().items():
            member = _member(sign)
            if member is not None:
                yield name, member

    def write(self, identity: str, member: Member) -> None:
        self._objects.replace(_report(identity), _MEMBER.encode(member), durable=False)

    def remove(self, identity: str) -> None:
        self._objects.delete(_report(identity))

    def forget_killed(self, now_us: int) -> None:
        """Remove killed processes with automatic names (host and process id): such names never come back.

        The only comparison of two machines' clocks: a live member, taken for dead because its clock is wrong by an
        hour, writes its report again with its next sign of life.
        """
        for name, member in self.known():
            if name == auto_identity(member.host, member.pid) and now_us - member.time_us > FORGOTTEN_US:
                self.remove(name)


class Membership:
    """One process's name among the members. Not thread-safe."""

    def __init__(self, root: Path, identity: str, token: str, host: str, pid: int, clock: Clock) -> None:
        if not _NAME.fullmatch(identity):
            raise SettingInvalid(
                f"{identity!r} cannot be the identity of a run", next_step="Use letters, digits, dots, _ and -"
            )
        self._members = Members(root)
        self._identity, self._token, self._host, self._pid, self._clock = identity, token, host, pid, clock
        self._watch = LeaseWatch()
        self._count = 0

    def join(self, now_s: float, patience_s: float) -> bool:
        """Take the name if it is free; whether it is ours now. IdentityTaken if its owner is alive."""
        if self._count:
            return True
        other = self._other()
        if other is not None:
            if self._watch.changed(other):
                raise self._taken(other)
            if not self._watch.look(other, now_s, patience_s):
                return False
        self._write("starting")
        return True

    def beat(self, state: MemberState) -> None:
        """Report our state; IdentityTaken if another process has the name by now."""
        other = self._other()
        if other is not None:
            raise self._taken(other)
        self._write(state)

    def leave(self) -> None:
        """Give the name back, if still ours."""
        if self._other() is None:
            self._members.remove(self._identity)

    def _other(self) -> bytes | None:
        """The report of another process under our name."""
        sign = self._members.sign(self._identity)
        return None if sign is None or _is_of(sign, self._token) else sign

    def _write(self, state: MemberState) -> None:
        self._count += 1
        member = Member(self._token, state, self._count, self._host, self._pid, self._clock.now_us())
        self._members.write(self._identity, member)

    def _taken(self, content: bytes) -> IdentityTaken:
        other = _member(content)
        who = "unknown" if other is None else f"{other.pid} on {other.host}"
        return IdentityTaken(
            f"Another process has the identity {self._identity!r}: {who}",
            where=self._members._objects.path(_report(self._identity)),
            next_step="Give each process an --identity of its own, or leave it out; or stop one of the two",
        )


def auto_identity(host: str, pid: int) -> str:
    """The name of a process started without one."""
    return f"{host}-{pid}"


def _report(identity: str) -> str:
    return f"members/{identity}.json"


def _member(sign: bytes) -> Member | None:
    """None for a damaged report, such as a loss of power leaves."""
    try:
        return _MEMBER.decode(sign, "")
    except StateError:
        return None


def _is_of(sign: bytes, token: str) -> bool:
    member = _member(sign)
    return member is not None and member.token == token


def standing(root: Path, now_us: int) -> dict[str, Any] | None:
    """The epoch, its lease, its leader and the standbys, each with the age of its last sign; None if nobody ever led.

    For display. The age of a killed process keeps growing; after an hour a standby is no longer shown.
    """
    lease = ApplicationLease(root)
    try:
        newest = lease.newest()
        if newest is None:
            return None
        released, known = lease.renewal(newest.epoch).released, dict(Members(root).known())
    except (OSError, LeaseInvalid):
        return None

    def heard_ms(member: Member) -> int:
        return max(0, (now_us - member.time_us) // 1_000)

    def shown(name: str, by: Claim | Member, heard: int | None) -> dict[str, Any]:
        return {"identity": name, "host": by.host, "pid": by.pid, "heard_ms": heard}

    leader = known.pop(newest.identity, None)
    heard = heard_ms(leader) if leader is not None and leader.token == newest.token else None
    return {
        "epoch": newest.epoch,
        "lease_ms": int(newest.lease_s * 1_000),
        "leader": None if released else shown(newest.identity, newest, heard),
        "standbys": [
            shown(name, member, heard_ms(member))
            for name, member in known.items()
            if member.state == "standing by" and heard_ms(member) * 1_000 < FORGOTTEN_US
        ],
    }
