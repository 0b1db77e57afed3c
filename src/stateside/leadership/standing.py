"""Who leads an application and who stands by, as readers are told. Times are shown, and nothing is decided by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stateside.errors import LeaseInvalid
from stateside.leadership.lease import Lease, read_renewal
from stateside.leadership.members import FORGOTTEN_US, Member, members


def standing(root: Path, now_us: int) -> dict[str, Any] | None:
    """The epoch, its lease, its leader and the standbys, each with how long ago it was heard; None if nobody ever led.

    A process that was killed is heard longer and longer ago, and after an hour a standby is not shown any more.
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
