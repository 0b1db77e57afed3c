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
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stateside.errors import LeaseInvalid
from stateside.storage import sync_directory, write_atomically

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
class Asked:
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

    def ask(self, asked: Asked) -> None:
        """Ask the leader of an epoch to hand over. Of several who ask the last one is heard."""
        write_atomically(self.folder / "asked.json", json.dumps(asdict(asked)).encode(), make_folder=False)

    def asked(self, epoch: int) -> Asked | None:
        """Who asks the leader of this epoch to hand over."""
        try:
            asked = Asked(**_document((self.folder / "asked.json").read_bytes()))
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
