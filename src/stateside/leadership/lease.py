"""The lease: files in the application's folder, shared by leader and standbys, that record who leads.

FOLDER/lease/
  claims/EPOCH.json     who leads from the epoch on: {"epoch", "identity", "token", "host", "pid", "lease_s",
                        "time_us"}. Created by a hard link, whole and durable, if the name is free; never changed, and
                        deleted when long past. Epochs are 1, 2, 3, …; the highest one leads
  renewals/EPOCH.json   the leader's signs of life, counted: {"count", "released", "to"}. Only this leader writes the
                        file, so a late one disturbs no other. `released` ends the leadership; `to` names the next
  gates/EPOCH           the link in all of the leader's paths (`gate`)
  asked.json            a request to the leader of an epoch to hand over: {"epoch", "identity", "token"}
  members/NAME.json     who leads or stands by, for people, and to keep names unique (`membership`)

Times in the files are for display. No decision depends on stored times: each process measures durations with its own
monotonic clock (`boot_s`), and a standby decides by its own observations (`LeaseWatch`).

The probe (`check_folder`) finds out whether an application's folder can hold a lease at all, before anybody leads.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stateside.core.errors import LeaseInvalid, SettingInvalid, StateError
from stateside.core.json_file import JsonFile
from stateside.core.storage import sync_directory

FOLDER_NAME = "lease"
EPOCHS_KEPT = 100  # for people who investigate


@dataclass(frozen=True, slots=True)
class Claim:
    """Who leads from an epoch on. The random token makes every claim unique."""

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
    to: str | None = None  # the token of the next leader; None is any candidate


@dataclass(frozen=True, slots=True)
class TakeoverRequest:
    """A request to the leader of an epoch to hand over."""

    epoch: int
    identity: str
    token: str


class Lease:
    """Reads and writes the lease's files. `election` decides which process may write which file."""

    def __init__(self, root: Path) -> None:
        """`root` is the application's folder."""
        self.folder = root / FOLDER_NAME
        self._claims, self._renewals = self.folder / "claims", self.folder / "renewals"

    def exists(self) -> bool:
        """Whether any process ever led or stood by here: from then on every run must lead.

        OSError if the storage does not answer: unknown must not look like never.
        """
        try:
            return stat.S_ISDIR(self._claims.stat().st_mode)
        except FileNotFoundError:
            return False

    def make(self) -> None:
        for folder in (self._claims, self._renewals, self.folder / "gates", self.folder / "members"):
            folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> Claim | None:
        """The claim of the highest epoch, whose leader leads; None before the first. OSError if nothing can be read."""
        found = (path.stem for path in self._claims.iterdir() if path.suffix == ".json")
        epochs = [int(name) for name in found if name.isascii() and name.isdigit()]
        return self._read_claim(max(epochs)) if epochs else None

    def forget_before(self, epoch: int) -> None:
        """Delete the claims and renewals of earlier epochs; for the leader alone, of epochs before its own.

        Deleting claims is safe because the gates stay: a candidate paused before it claimed such an epoch finds the
        name free when it wakes up, and takes it; but every leader since has shut the epoch's gate, so the candidate
        fails at step 5 of the election. The highest claim leads all the while, and is never deleted.
        """
        for folder in (self._claims, self._renewals):
            for path in folder.glob("[0-9]*.json"):
                if path.stem.isascii() and path.stem.isdigit() and int(path.stem) < epoch:
                    path.unlink(missing_ok=True)

    def claim(self, claim: Claim) -> bool:
        """Claim the epoch; False if another candidate was first."""
        named = self._claims / f"{claim.epoch}.json"
        temporary = self._claims / f".{claim.epoch}.{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                file.write(_claim_file(claim.epoch).encode(claim))
                file.flush()
                os.fsync(file.fileno())
            won = _link(temporary, named)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(self._claims)
        return won

    def sign(self, epoch: int) -> bytes:
        """The bytes of a leader's renewal file, watched by standbys for changes; empty before the first renewal."""
        try:
            return self._renewal_file(epoch).read_bytes()
        except FileNotFoundError:
            return b""

    def renew(self, epoch: int, renewal: Renewal) -> None:
        """Give a sign of life. Not durable unless released: after a loss of power the leader is gone as well."""
        _RENEWAL.write(self._renewal_file(epoch), renewal, durable=renewal.released)

    def ask(self, asked: TakeoverRequest) -> None:
        """Ask the leader of an epoch to hand over. The last request wins."""
        _REQUEST.write(self.folder / "asked.json", asked)

    def asked(self, epoch: int) -> TakeoverRequest | None:
        """The request to the leader of this epoch."""
        asked = _REQUEST.read_if_valid(self.folder / "asked.json")
        return asked if asked is not None and asked.epoch == epoch else None

    def _renewal_file(self, epoch: int) -> Path:
        return self._renewals / f"{epoch}.json"

    def _read_claim(self, epoch: int) -> Claim:
        path = self._claims / f"{epoch}.json"
        return _claim_file(epoch).decode(path.read_bytes(), str(path))


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


_RENEWAL = JsonFile("The renewal of the lease", lambda document: Renewal(**document), make_folder=False)
_REQUEST = JsonFile("The request to hand over", lambda document: TakeoverRequest(**document), make_folder=False)


def read_renewal(sign: bytes) -> Renewal:
    """Parse a renewal; a file that a loss of power left empty is an empty renewal."""
    try:
        return _RENEWAL.decode(sign, "")
    except StateError:
        return Renewal()


def _link(temporary: Path, named: Path) -> bool:
    """Give the file its name if the name is free; whether the file has the name now.

    Over a network the reply to a successful link may be lost, and the repeated call then reports that the name is
    taken: the file has two names in that case.
    """
    try:
        named.hardlink_to(temporary)
    except FileExistsError:
        return temporary.stat().st_nlink == 2
    return True


Ticks = Callable[[], float]  # seconds since some moment
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_s() -> float:
    """Seconds since this machine was started, including those it slept: a sleeping watcher did not look."""
    return time.clock_gettime(_BOOT_CLOCK)


LOOKS_MIN = 4  # of a gap between two looks at most 1/LOOKS_MIN of the lease counts


@dataclass(slots=True)
class LeaseWatch:
    """How long a sign has been observed unchanged. Time without a readable sign does not count.

    Nor does most of the time between distant looks: the watcher may have been paused, and the leader with it, on the
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


Scope = Literal["shared", "machine"]


# File systems invisible to other machines. All others count as shared, if they can do what a lease needs.
LOCAL_TYPES = frozenset(
    {"btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "xfs", "zfs"}
)


# The NFS mount options with which all machines see a rename at once (`gate`), as the kernel reports them. `actimeo=0`
# is reported as its four parts; `noac` is equivalent to these.
NFS_TYPES = frozenset({"nfs", "nfs4"})
NFS_NAMES = "lookupcache=none"
NFS_OPTIONS = frozenset({NFS_NAMES, "acregmin=0", "acregmax=0", "acdirmin=0", "acdirmax=0"})
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system: its type and its mount options."""

    kind: str
    options: frozenset[str]


def check_folder(root: Path, scope: Scope, mounts: Path = _MOUNTS) -> None:
    """SettingInvalid if standbys on other machines would not see the lease, LeaseInvalid if the folder cannot hold one.

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
    """The file system of a folder; None if unknown (not on Linux)."""
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
    """Exclusive hard links; a rename that replaces a symbolic link, after which no path resolves through the link."""
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
