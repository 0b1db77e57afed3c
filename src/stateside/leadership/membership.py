"""Membership: the processes that lead or stand by, each under a unique name, for people to see.

    members/NAME.json := {"token", "state", "count", "host", "pid", "time_us"}
    state             := "starting" | "standing by" | "leading"

A newcomer first watches a name that exists already. If the file changes, its owner is alive, and the newcomer is
refused; if the file stays unchanged for half a lease, its owner was killed, and the newcomer takes the name. A process
that finds a foreign token in its own file was taken for dead, or started at the same moment as the other process, and
is refused too. A leader goes on all the same: its claim alone decides whether it leads.

`standing` reports leader and standbys to readers. Times are for display, and decide nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stateside.core.clock import Clock
from stateside.core.errors import IdentityTaken, LeaseInvalid, SettingInvalid
from stateside.core.json_file import JsonFile
from stateside.leadership.lease import FOLDER_NAME, Lease, LeaseWatch, read_renewal

MemberState = Literal["starting", "standing by", "leading"]
FORGOTTEN_US = 3_600_000_000  # members silent for longer are no longer shown
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Member:
    """A member's own report, rewritten with every sign of life."""

    token: str
    state: MemberState
    count: int
    host: str
    pid: int
    time_us: int


_MEMBER = JsonFile("A member's report", lambda document: Member(**document), durable=False, make_folder=False)


class Membership:
    """One process's name among the members. Not thread-safe."""

    def __init__(self, root: Path, identity: str, token: str, host: str, pid: int, clock: Clock) -> None:
        check_identity(identity)
        self._path = root / FOLDER_NAME / "members" / f"{identity}.json"
        self._identity, self._token, self._host, self._pid, self._clock = identity, token, host, pid, clock
        self._watch = LeaseWatch()
        self._count = 0

    @property
    def joined(self) -> bool:
        return self._count > 0

    def join(self, now_s: float, patience_s: float) -> bool:
        """Take the name if it is free; whether it is ours now. IdentityTaken if its owner is alive."""
        if self.joined:
            return True
        content = _content(self._path)
        if content is not None and _token(content) != self._token:
            if self._watch.changed(content):
                raise self._taken(content)
            if not self._watch.look(content, now_s, patience_s):
                return False
        self._write("starting")
        return True

    def beat(self, state: MemberState) -> None:
        """Report our state; IdentityTaken if another process has the name by now."""
        content = _content(self._path)
        if content is not None and _token(content) != self._token:
            raise self._taken(content)
        self._write(state)

    def leave(self) -> None:
        """Give the name back, if still ours."""
        content = _content(self._path)
        if content is not None and _token(content) == self._token:
            self._path.unlink(missing_ok=True)

    def _write(self, state: MemberState) -> None:
        self._count += 1
        member = Member(self._token, state, self._count, self._host, self._pid, self._clock.now_us())
        _MEMBER.write(self._path, member)

    def _taken(self, content: bytes) -> IdentityTaken:
        other = _document(content)
        return IdentityTaken(
            f"Another process has the identity {self._identity!r}: {other.get('pid')} on {other.get('host')}",
            where=str(self._path),
            next_step="Give each process an --identity of its own, or leave it out; or stop one of the two",
        )


def members(root: Path) -> dict[str, Member]:
    """All members by name, including killed ones."""
    found = {}
    for path in sorted((root / FOLDER_NAME / "members").glob("[!.]*.json")):
        try:
            member = _MEMBER.read_if_valid(path)
        except OSError:
            continue
        if member is not None:
            found[path.stem] = member
    return found


def forget_killed(root: Path, now_us: int) -> None:
    """Delete the files of killed processes with automatic names (host and process id): such names never come back.

    The only comparison of two machines' clocks: a live member, taken for dead because its clock is wrong by an hour,
    writes its file again with its next sign of life.
    """
    for name, member in members(root).items():
        if name == auto_identity(member.host, member.pid) and now_us - member.time_us > FORGOTTEN_US:
            (root / FOLDER_NAME / "members" / f"{name}.json").unlink(missing_ok=True)


def auto_identity(host: str, pid: int) -> str:
    """The name of a process started without one."""
    return f"{host}-{pid}"


def signs(root: Path) -> dict[str, bytes]:
    """The file contents of all members by name, to be watched for changes. OSError if the storage is away."""
    found = {path.stem: _content(path) for path in (root / FOLDER_NAME / "members").iterdir() if path.suffix == ".json"}
    return {name: content for name, content in found.items() if content is not None and not name.startswith(".")}


def sign_of(root: Path, identity: str, token: str) -> bytes | None:
    """A member's file content, to be watched for changes; None if the member has left, or another has its name."""
    content = _content(root / FOLDER_NAME / "members" / f"{identity}.json")
    return content if content is not None and _token(content) == token else None


def check_identity(identity: str) -> None:
    """SettingInvalid for an invalid member name."""
    if not _NAME.fullmatch(identity):
        raise SettingInvalid(
            f"{identity!r} cannot be the identity of a run", next_step="Use letters, digits, dots, _ and -"
        )


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _token(content: bytes) -> object:
    return _document(content).get("token")


def _document(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def standing(root: Path, now_us: int) -> dict[str, Any] | None:
    """The epoch, its lease, its leader and the standbys, each with the age of its last sign; None if nobody ever led.

    The age of a killed process keeps growing; after an hour a standby is no longer shown.
    """
    lease = Lease(root)
    try:
        newest = lease.newest()
        if newest is None:
            return None
        released = read_renewal(lease.sign(newest.epoch)).released
    except (OSError, LeaseInvalid):
        return None
    known = members(root)
    leader = known.pop(newest.identity, None)
    own = leader if leader is not None and leader.token == newest.token else None
    heard = None if own is None else _heard_ms(own, now_us)
    told = {"identity": newest.identity, "host": newest.host, "pid": newest.pid, "heard_ms": heard}
    standbys = [_shown(name, member, now_us) for name, member in known.items() if member.state == "standing by"]
    return {
        "epoch": newest.epoch,
        "lease_ms": int(newest.lease_s * 1_000),
        "leader": None if released else told,
        "standbys": [standby for standby in standbys if standby["heard_ms"] * 1_000 < FORGOTTEN_US],
    }


def _shown(name: str, member: Member, now_us: int) -> dict[str, Any]:
    return {"identity": name, "host": member.host, "pid": member.pid, "heard_ms": _heard_ms(member, now_us)}


def _heard_ms(member: Member, now_us: int) -> int:
    return max(0, (now_us - member.time_us) // 1_000)
