"""The lease: files that say who leads, in the application's folder, which the leader and its standbys share.

FOLDER/lease/
  claims/EPOCH.json     who leads from this epoch on: {"epoch", "identity", "token", "host", "pid", "lease_s",
                        "time_us"}. It gets its name by a link, whole and durable, if nobody else has that name; it
                        is never changed, and deleted when it is long past. Epochs are 1, 2, 3, …; the highest one leads
  renewals/EPOCH.json   that leader's signs of life, counted: {"count", "released", "to"}. Nobody else writes it, so one
                        that wakes up late disturbs no other. With `released` it leads no longer; `to` says who is next
  gates/EPOCH           what that leader's paths go through (`gate`)
  asked.json            who asks the leader of which epoch to hand over: {"epoch", "identity", "token"}
  members/NAME.json     who leads or stands by, for people, and so that nobody has a name twice (`members`)

Times in these files are shown to people. Nothing is decided by them.

Time that only passes: each process measures with its own, and never compares it with another's.

What a standby has seen of a lease, by its own clock.

The probe: whether an application's folder can hold a lease at all, found out before anybody leads.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stateside.core.errors import LeaseInvalid, SettingInvalid
from stateside.core.storage import sync_directory, write_atomically

FOLDER_NAME = "lease"
EPOCHS_KEPT = 100  # for people who look what happened


@dataclass(frozen=True, slots=True)
class Claim:
    """Who leads from an epoch on; equal to no other claim, as the token was drawn at random."""

    epoch: int
    identity: str
    token: str
    host: str
    pid: int
    lease_s: float
    time_us: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """A leader's newest sign of life, as a standby reads it."""

    count: int = 0
    released: bool = False
    to: str | None = None  # the token of who is to be the next leader; None is anybody


@dataclass(frozen=True, slots=True)
class TakeoverRequest:
    """A wish that the leader of an epoch hands over."""

    epoch: int
    identity: str
    token: str


class Lease:
    """Reads and writes these files. Whether one may write which of them is the caller's to know: see `election`."""

    def __init__(self, root: Path) -> None:
        """`root` is the application's folder."""
        self.folder = root / FOLDER_NAME
        self._claims, self._renewals = self.folder / "claims", self.folder / "renewals"

    def exists(self) -> bool:
        """Whether anybody ever led here, or stood by for it: from then on whoever runs must lead.

        OSError if that cannot be found out: it must not look as if nobody had.
        """
        try:
            return stat.S_ISDIR(self._claims.stat().st_mode)
        except FileNotFoundError:
            return False

    def make(self) -> None:
        """Have the folders."""
        for folder in (self._claims, self._renewals, self.folder / "gates", self.folder / "members"):
            folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> Claim | None:
        """The claim of the highest epoch, whose leader leads; None before the first. OSError if nothing can be read."""
        found = (path.stem for path in self._claims.iterdir() if path.suffix == ".json")
        epochs = [int(name) for name in found if name.isascii() and name.isdigit()]
        return self._read_claim(max(epochs)) if epochs else None

    def forget_before(self, epoch: int) -> None:
        """Delete the claims and renewals of earlier epochs; for the leader alone, of epochs before its own.

        The gates stay, and therefore a claim need not: a candidate that was paused before it claimed such an epoch
        finds the name free when it wakes up, and takes it; but the epoch's gate was shut by every leader since, so it
        does not get through step 5 of the election. The highest claim leads all the while, and is never deleted.
        """
        for folder in (self._claims, self._renewals):
            for path in folder.glob("[0-9]*.json"):
                if path.stem.isascii() and path.stem.isdigit() and int(path.stem) < epoch:
                    path.unlink(missing_ok=True)

    def claim(self, claim: Claim) -> bool:
        """Lead from the claim's epoch on; whether nobody else was first."""
        named = self._claims / f"{claim.epoch}.json"
        temporary = self._claims / f".{claim.epoch}.{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                file.write(json.dumps(asdict(claim)).encode())
                file.flush()
                os.fsync(file.fileno())
            won = _link(temporary, named)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(self._claims)
        return won

    def sign(self, epoch: int) -> bytes:
        """The file of a leader's renewals as it is: what a standby watches for changes; empty before the first."""
        try:
            return self._renewal_file(epoch).read_bytes()
        except FileNotFoundError:
            return b""

    def renew(self, epoch: int, renewal: Renewal) -> None:
        """Give a sign of life. It need not outlast a loss of power: its leader would not either."""
        content = json.dumps(asdict(renewal)).encode()
        write_atomically(self._renewal_file(epoch), content, durable=renewal.released, make_folder=False)

    def ask(self, asked: TakeoverRequest) -> None:
        """Ask the leader of an epoch to hand over. Of several who ask the last one is heard."""
        write_atomically(self.folder / "asked.json", json.dumps(asdict(asked)).encode(), make_folder=False)

    def asked(self, epoch: int) -> TakeoverRequest | None:
        """Who asks the leader of this epoch to hand over."""
        try:
            asked = TakeoverRequest(**_document((self.folder / "asked.json").read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return asked if asked.epoch == epoch else None

    def _renewal_file(self, epoch: int) -> Path:
        return self._renewals / f"{epoch}.json"

    def _read_claim(self, epoch: int) -> Claim:
        path = self._claims / f"{epoch}.json"
        try:
            claim = Claim(**_document(path.read_bytes()))
            if claim.epoch == epoch:
                return claim
            error: Exception = ValueError(f"it is of epoch {claim.epoch}")
        except (ValueError, TypeError) as broken:
            error = broken
        raise LeaseInvalid(
            f"The claim of epoch {epoch} cannot be read: {error}",
            where=str(path),
            next_step="Stop every run of this application, then delete its folder `lease`: the next run begins it anew",
        )


def read_renewal(sign: bytes) -> Renewal:
    """What a sign of life says; one that a loss of power left empty says nothing."""
    try:
        return Renewal(**_document(sign))
    except (ValueError, TypeError):
        return Renewal()


def _document(content: bytes) -> dict[str, Any]:
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _link(temporary: Path, named: Path) -> bool:
    """Give the file its name if nobody has it; whether it has it now.

    Over a network the answer to a link that was made may be lost, and the repeated call told that the name is taken:
    then the file has two names.
    """
    try:
        named.hardlink_to(temporary)
    except FileExistsError:
        return temporary.stat().st_nlink == 2
    return True


Ticks = Callable[[], float]  # seconds since some moment
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_s() -> float:
    """Seconds since this machine was started, with those in which it slept: who watches has not looked meanwhile."""
    return time.clock_gettime(_BOOT_CLOCK)


LOOKS_MIN = 4  # of a gap between two looks only that part of the whole time counts


@dataclass(slots=True)
class LeaseWatch:
    """For how long something has been seen unchanged. Time in which it could not be seen does not count.

    Nor does most of the time in which nobody looked: who watches may have been paused, and what it watches with it, on
    the same machine or by the same storage, so that no sign could be given. Of a gap between two looks a quarter of the
    time that is waited for counts, and not more. Who is merely slow, and looks seldom, so comes to an end all the same.
    """

    _seen: object = None
    _looked_s: float | None = None
    _unchanged_s: float = 0.0

    def look(self, sign: object, now_s: float, enough_s: float) -> bool:
        """This is what it looks like now; whether it surely has for `enough_s`."""
        if self._looked_s is None or sign != self._seen:
            self._seen, self._unchanged_s = sign, 0.0
        else:
            self._unchanged_s += min(now_s - self._looked_s, enough_s / LOOKS_MIN)
        self._looked_s = now_s
        return self._unchanged_s >= enough_s

    def changed(self, sign: object) -> bool:
        """Whether it was seen before, and looked different."""
        return self._looked_s is not None and sign != self._seen

    def forget(self) -> None:
        """It cannot be seen: begin anew with the next look."""
        self._looked_s = None


Scope = Literal["shared", "machine"]


# What no other machine sees. Everything else is taken for shared, if it can do what a lease needs.
LOCAL_TYPES = frozenset(
    {"btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "xfs", "zfs"}
)


# What NFS must be mounted with, for a rename to be seen by all at once (`gate`); as the kernel tells it. `actimeo=0` is
# told by its four parts; `noac` says the same as these.
NFS_TYPES = frozenset({"nfs", "nfs4"})
NFS_NAMES = "lookupcache=none"
NFS_OPTIONS = frozenset({NFS_NAMES, "acregmin=0", "acregmax=0", "acdirmin=0", "acdirmax=0"})
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mount:
    """What a folder is on: the type of the file system, and the options that it is mounted with."""

    kind: str
    options: frozenset[str]


def check_folder(root: Path, scope: Scope, mounts: Path = _MOUNTS) -> None:
    """SettingInvalid if standbys on other machines would not see the folder's lease, LeaseInvalid if it cannot be kept.

    With the scope `machine` all candidates are on this machine, and a local disk will do.
    """
    folder = root / FOLDER_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_scope(root, scope, file_system(root, mounts))
        _check_abilities(folder / f".probe-{secrets.token_hex(8)}")
    except OSError as error:
        raise _unable(folder, str(error)) from error


def file_system(folder: Path, mounts: Path = _MOUNTS) -> Mount | None:
    """The file system that a folder is on; None where that cannot be told (not on Linux)."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    place = str(folder.resolve())
    found = [(len(line[4]), at) for at, line in enumerate(lines) if _within(place, line[4])]
    if not found:
        return None
    told = lines[max(found)[1]]  # the deepest mount point; of several there the last one covers the others
    return Mount(told[told.index("-") + 1], frozenset(told[-1].split(",")))


def _check_scope(root: Path, scope: Scope, mount: Mount | None) -> None:
    if scope == "machine" or mount is None:
        return
    if mount.kind in LOCAL_TYPES:
        raise SettingInvalid(
            f"The folder {root} is on a local disk ({mount.kind}): a standby on another machine does not see its "
            "lease, and would lead beside this one",
            next_step="Put it on storage that all machines share; or say --standby-scope machine, if all standbys are "
            "on this machine",
        )
    missing = NFS_OPTIONS - mount.options if "noac" not in mount.options else {NFS_NAMES} - mount.options
    if mount.kind in NFS_TYPES and missing:
        raise SettingInvalid(
            f"The folder {root} is on NFS, mounted without {', '.join(sorted(missing))}: a machine remembers names for "
            "some seconds, in which an old leader could write beside the new one",
            next_step="Mount it with lookupcache=none,actimeo=0 on every machine (docs/standby.md); or say "
            "--standby-scope machine, if all standbys are on this machine",
        )


def _check_abilities(own: Path) -> None:
    """Links that one alone can make; a rename that puts one in another's place, after which no path leads through."""
    file, name, gate, shut = (own / each for each in ("file", "name", "gate", "shut"))
    own.mkdir()
    try:
        file.write_bytes(b"")
        name.hardlink_to(file)
        if not _refused(FileExistsError, lambda: name.hardlink_to(file)):
            raise _unable(own.parent, "two files can have one name there")
        gate.symlink_to(Path(".."), target_is_directory=True)
        (gate / own.name).stat()
        shut.symlink_to(gate.name)
        os.replace(shut, gate)  # noqa: PTH105 - a rename replaces the link itself
        if not _refused(OSError, lambda: (gate / "through").write_bytes(b"")):
            raise _unable(own.parent, "paths lead through a gate that is shut")
    finally:
        for path in (file, name, gate, shut):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            own.rmdir()


def _refused(kind: type[OSError], act: Callable[[], object]) -> bool:
    try:
        act()
    except kind:
        return True
    return False


def _within(place: str, mount_point: str) -> bool:
    point = mount_point.replace("\\040", " ")
    return place == point or place.startswith(point.rstrip("/") + "/")


def _unable(folder: Path, why: str) -> LeaseInvalid:
    return LeaseInvalid(
        f"This folder cannot hold a lease: {why}",
        where=str(folder),
        next_step="It needs the right to write, links, symbolic links and atomic renames. Mend that, or choose another "
        "--dir; without --standby no lease is needed",
    )
