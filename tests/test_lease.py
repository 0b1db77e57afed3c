"""The lease: one owner at a time, with an epoch and a fence, crashed at every step of its protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateside.core.errors import JournalFenced, StateError
from stateside.core.lease import Held, Lease, Owner, Renewal, hold, holders
from stateside.core.storage import LocalObjects, Versioned
from tests.sizes import not_in_fast

NAMES = ["owner", "claims/{}"]  # one object for all claims, one for each epoch


class Killed(BaseException):
    """Stands for SIGKILL where the moment must be exact."""


def encode(owner: Owner) -> bytes:
    return f"{owner.epoch} {owner.token}".encode()


def decode(content: bytes, where: str) -> Owner:
    epoch, token = content.decode().split()
    return Owner(int(epoch), token)


def lost(own: Owner, newest: Owner | None) -> JournalFenced:
    return JournalFenced(f"{own.epoch} was replaced by {newest and newest.epoch}")


def lease(folder: Path, names: str, objects: LocalObjects | None = None) -> Lease[Owner]:
    for name in ("claims", "renewals"):
        (folder / name).mkdir(exist_ok=True)
    return Lease(objects or LocalObjects(folder), names, encode, decode, lost)


def take(own: Lease[Owner], names: str) -> Held[Owner] | None:
    """Claim the next epoch, after whatever is the newest claim."""
    newest = own.newest()
    claim = Owner.of(1 if newest is None else newest.epoch + 1)
    return own.claim(claim, after=None if "{}" in names else newest)


def taken(own: Lease[Owner], names: str) -> Held[Owner]:
    held = take(own, names)
    assert held is not None
    return held


@pytest.mark.parametrize("names", NAMES)
def test_the_epoch_grows_with_every_takeover_and_the_former_owner_is_fenced(tmp_path: Path, names: str) -> None:
    own = lease(tmp_path, names)
    assert own.newest() is None
    first = taken(own, names)
    first.check()
    second = taken(lease(tmp_path, names), names)
    assert (first.claim.epoch, second.claim.epoch) == (1, 2)
    for act in (first.check, first.renew, first.release):
        with pytest.raises(JournalFenced, match="1 was replaced by 2"):
            act()
    second.check()
    assert own.renewal(1) == own.renewal(2) == Renewal()


@pytest.mark.parametrize("names", NAMES)
def test_of_two_that_found_the_same_claim_one_becomes_the_owner(tmp_path: Path, names: str) -> None:
    found = taken(lease(tmp_path, names), names).claim
    after = None if "{}" in names else found
    held = [lease(tmp_path, names).claim(Owner.of(2), after) for _ in range(2)]
    assert held[0] is not None and held[1] is None
    held[0].check()


def test_an_owner_of_the_same_epoch_with_another_token_is_another_owner(tmp_path: Path) -> None:
    own = lease(tmp_path, "owner")
    first = taken(own, "owner")
    again = own.claim(Owner.of(1), after=first.claim)
    assert again is not None
    again.check()
    with pytest.raises(JournalFenced):
        first.check()


@pytest.mark.parametrize("names", NAMES)
def test_renewals_are_counted_and_a_release_names_the_next_owner(tmp_path: Path, names: str) -> None:
    own = lease(tmp_path, names)
    held = taken(own, names)
    assert own.renewal(1) == Renewal()
    held.renew()
    held.renew()
    assert own.renewal(1) == Renewal(2)
    held.release(to="token")
    assert own.renewal(1) == Renewal(3, released=True, to="token")
    (tmp_path / "renewals" / "1.json").write_bytes(b"")  # as a loss of power leaves it
    assert own.renewal(1) == Renewal()


class DyingBefore(LocalObjects):
    def compare_and_swap(self, name: str, expected: str | None, content: bytes) -> bool:
        raise Killed


class DyingAfter(LocalObjects):
    def compare_and_swap(self, name: str, expected: str | None, content: bytes) -> bool:
        LocalObjects.compare_and_swap(self, name, expected, content)
        raise Killed


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("before", [True, False])
def test_a_process_that_dies_around_its_claim_leaves_the_old_owner_or_one_that_is_replaced(
    tmp_path: Path, names: str, before: bool
) -> None:
    """Step 2. What comes before changes nothing; what comes after begins with the claim."""
    old = taken(lease(tmp_path, names), names)
    objects = DyingBefore if before else DyingAfter
    with pytest.raises(Killed):
        take(lease(tmp_path, names, objects(tmp_path)), names)
    if before:
        old.check()
    else:
        with pytest.raises(JournalFenced):
            old.check()
    new = taken(lease(tmp_path, names), names)
    assert new.claim.epoch == (2 if before else 3)
    new.check()


def test_a_storage_that_goes_away_between_list_and_read_is_no_lease_without_owner(tmp_path: Path) -> None:
    class Away(LocalObjects):
        def read(self, name: str) -> Versioned | None:
            return None

    held = taken(lease(tmp_path, "claims/{}"), "claims/{}")
    away = Held(lease(tmp_path, "claims/{}", Away(tmp_path)), held.claim)
    with pytest.raises(FileNotFoundError, match="newest claim is gone"):
        away.check()


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["take", "renew", "check", "release"])), max_size=30))
@pytest.mark.parametrize("names", NAMES)
def test_whatever_happens_the_last_to_claim_owns_alone(
    tmp_path_factory: pytest.TempPathFactory, names: str, story: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("lease")
    own = lease(folder, names)
    held: dict[int, Held[Owner]] = {}
    newest = 0
    for who, what in story:
        if what == "take":
            held[who], newest = taken(own, names), newest + 1
        elif who in held and held[who].claim.epoch == newest:
            getattr(held[who], what)()
        elif who in held:
            with pytest.raises(JournalFenced):
                getattr(held[who], what)()
    found = own.newest()
    assert (0 if found is None else found.epoch) == newest


def refusal(pids: str) -> StateError:
    return StateError(f"process {pids} holds it")


def test_a_lock_names_its_holders_and_is_free_once_they_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    handle = hold(path, refusal)
    for wait_s in (0.0, 0.05):
        with pytest.raises(StateError, match=f"process {os.getpid()} holds it"):
            hold(path, refusal, wait_s=wait_s)
    os.close(handle)
    os.close(hold(path, refusal))


def test_a_lock_may_be_shared_and_excludes_those_that_do_not_share_it(tmp_path: Path) -> None:
    handles = [hold(tmp_path / "lock", refusal, shared=True) for _ in range(2)]
    with pytest.raises(StateError):
        hold(tmp_path / "lock", refusal)
    for handle in handles:
        os.close(handle)


HOLDER = """
import os, subprocess, sys
from pathlib import Path
from stateside.core.lease import hold
handle = hold(Path(sys.argv[1]), RuntimeError)
child = subprocess.Popen(["sleep", "60"], pass_fds=(handle,))
print(child.pid, flush=True)
child.wait()
"""


@not_in_fast("whole processes")
def test_a_child_that_inherited_the_lock_keeps_it_after_its_parent_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        assert holders(path) == str(parent.pid)
        with pytest.raises(StateError):
            hold(path, refusal)
        os.kill(child, 9)
    os.close(hold(path, refusal, wait_s=10.0))
