"""The election, step by step: real files, a clock that the test moves, and pauses at every step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateside.core.clock import ManualClock
from stateside.core.errors import IdentityTaken, LeadershipLost, LeaseInvalid, SettingInvalid
from stateside.leadership import ApplicationLease, Candidate, Gates, Leadership, standing
from stateside.leadership.application_lease import EPOCHS_KEPT
from tests.waiting import wait_until

LEASE_S = 8.0


class Hands:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def hands() -> Hands:
    return Hands()


def candidate(root: Path, name: str, hands: Hands, on_step: Callable[[int], None] = lambda step: None) -> Candidate:
    return Candidate(root, name, lease_s=LEASE_S, ticks=hands, on_step=on_step)


def led(leadership: Leadership | None) -> Leadership:
    assert leadership is not None
    return leadership


def looks(standby: Candidate, hands: Hands, seconds: float) -> Leadership | None:
    """Look four times a second, for so long, or until it leads."""
    for _ in range(int(seconds * 4)):
        hands.now_s += 0.25
        leadership = standby.step()
        if leadership is not None:
            return leadership
    return None


def write(leadership: Leadership) -> None:
    """What only a leader may do: by a path of its own."""
    (leadership.root / "written").write_text(str(leadership.claim.epoch))


def test_who_comes_first_leads_at_once(tmp_path: Path, hands: Hands) -> None:
    leadership = led(candidate(tmp_path, "a", hands).step())
    leadership.check()
    write(leadership)
    assert (tmp_path / "written").read_text() == "1"


def test_a_standby_does_not_lead_while_the_leader_gives_signs_of_life(tmp_path: Path, hands: Hands) -> None:
    leader, standby = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "b", hands)
    for _ in range(10):
        assert looks(standby, hands, LEASE_S - 0.5) is None
        leader.renew()


def test_a_standby_leads_after_it_has_seen_no_sign_of_life_for_a_lease_and_no_sooner(
    tmp_path: Path, hands: Hands
) -> None:
    led(candidate(tmp_path, "a", hands).step())
    hands.now_s += 1_000_000  # however long ago that was, as nobody saw it
    standby = candidate(tmp_path, "b", hands)
    assert looks(standby, hands, LEASE_S) is None
    assert led(looks(standby, hands, 0.5)).claim.epoch == 2


def test_no_clock_of_another_machine_is_believed(tmp_path: Path, hands: Hands) -> None:
    """Neither the time in a claim nor that of a file says how old it is: both are the other machine's."""
    led(candidate(tmp_path, "a", hands).step())
    for path in (tmp_path / "lease").rglob("*.json"):
        os.utime(path, (0, 0))
    standby = candidate(tmp_path, "b", hands)
    assert looks(standby, hands, LEASE_S - 0.5) is None


def test_time_in_which_the_storage_was_away_does_not_count(tmp_path: Path, hands: Hands) -> None:
    root, elsewhere = tmp_path / "application", tmp_path / "elsewhere"
    leader, standby = led(candidate(root, "a", hands).step()), candidate(root, "b", hands)
    assert looks(standby, hands, LEASE_S - 1) is None
    root.rename(elsewhere)
    with pytest.raises(OSError):
        leader.renew()
    assert looks(standby, hands, 10 * LEASE_S) is None
    elsewhere.rename(root)
    assert looks(standby, hands, LEASE_S - 1) is None
    leader.renew()  # it had a whole lease for that
    leader.check()


def test_time_in_which_a_standby_did_not_look_hardly_counts(tmp_path: Path, hands: Hands) -> None:
    """It was paused itself, and perhaps the leader with it: that one has time to give its next sign."""
    leader, standby = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "b", hands)
    assert standby.step() is None
    hands.now_s += LEASE_S + 1
    assert standby.step() is None
    assert looks(standby, hands, LEASE_S / 2) is None
    leader.renew()
    assert looks(standby, hands, LEASE_S / 2) is None
    hands.now_s += LEASE_S + 1
    assert standby.step() is None
    assert led(looks(standby, hands, LEASE_S)).claim.epoch == 2


def test_a_standby_that_is_merely_slow_leads_in_the_end(tmp_path: Path, hands: Hands) -> None:
    led(candidate(tmp_path, "a", hands).step())
    standby = candidate(tmp_path, "b", hands)
    for _ in range(9):
        hands.now_s += LEASE_S
        leadership = standby.step()
        if leadership is not None:
            return
    pytest.fail("it never leads")


def test_a_lease_that_was_released_is_taken_at_once(tmp_path: Path, hands: Hands) -> None:
    leader, standby = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "b", hands)
    assert standby.step() is None
    leader.release()
    leader.release()  # nothing more
    assert led(standby.step()).claim.epoch == 2


def hear(leader: Leadership, newcomer: Candidate, hands: Hands) -> None:
    """Have the leader asked by a newcomer that gives signs of life."""
    newcomer.step()
    asked = newcomer.ask()
    assert asked is not None and asked.identity == leader.claim.identity
    leader.renew()
    assert leader.asked is None, "whether it lives is not known yet"
    hands.now_s += LEASE_S / 2
    newcomer.step()
    leader.renew()
    assert leader.asked is not None


def test_a_lease_is_handed_over_to_who_asked_for_it_and_to_nobody_else(tmp_path: Path, hands: Hands) -> None:
    leader = led(candidate(tmp_path, "a", hands).step())
    standby, newcomer = candidate(tmp_path, "b", hands), candidate(tmp_path, "c", hands)
    assert (leader.asked, standby.step(), newcomer.step()) == (None, None, None)
    hear(leader, newcomer, hands)
    assert leader.asked is not None and leader.asked.identity == "c"
    leader.release()
    assert standby.step() is None
    assert led(newcomer.step()).claim.epoch == 2


def test_who_asked_and_died_keeps_nobody_from_the_leadership(tmp_path: Path, hands: Hands) -> None:
    leader, standby = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "b", hands)
    newcomer = candidate(tmp_path, "c", hands)
    hear(leader, newcomer, hands)
    leader.release()
    assert led(looks(standby, hands, LEASE_S + 0.5)).claim.identity == "b"


@pytest.mark.parametrize("killed", [True, False])
def test_a_leader_does_not_hand_over_to_who_asked_and_has_ended(tmp_path: Path, hands: Hands, killed: bool) -> None:
    leader, newcomer = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "c", hands)
    newcomer.step()
    newcomer.ask()
    leader.renew()
    if not killed:
        newcomer.leave()
    for _ in range(9):
        hands.now_s += LEASE_S / 4
        leader.renew()
    assert leader.asked is None


def test_a_wish_is_not_believed_for_another_ones_sign_of_life(tmp_path: Path, hands: Hands) -> None:
    leader = led(candidate(tmp_path, "a", hands).step())
    first, second = candidate(tmp_path, "c", hands), candidate(tmp_path, "d", hands)
    for newcomer in (first, second):
        newcomer.step()
        newcomer.ask()
        leader.renew()
    assert leader.asked is None
    hands.now_s += LEASE_S / 2
    second.step()
    leader.renew()
    assert leader.asked is not None and leader.asked.identity == "d", "the last one who asked"


def test_a_wish_to_an_earlier_leader_is_none_to_a_later_one(tmp_path: Path, hands: Hands) -> None:
    first = led(candidate(tmp_path, "a", hands).step())
    hear(first, candidate(tmp_path, "c", hands), hands)
    first.end()
    second = led(looks(candidate(tmp_path, "b", hands), hands, LEASE_S + 0.5))
    second.renew()
    assert second.asked is None


def test_who_asked_a_leader_that_was_replaced_asks_the_next_one(tmp_path: Path, hands: Hands) -> None:
    first, standby = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "b", hands)
    newcomer = candidate(tmp_path, "c", hands)
    assert (standby.step(), newcomer.step()) == (None, None)
    newcomer.ask()
    first.release()  # told to stop, before it has heard that anybody asks
    second = led(standby.step())
    for _ in range(3):
        hands.now_s += LEASE_S / 4
        newcomer.step()
        second.renew()
    assert second.asked is not None and second.asked.identity == "c"


def test_of_two_who_ask_the_one_that_was_passed_over_stands_by(tmp_path: Path, hands: Hands) -> None:
    """It does not ask the other one, which would end at once, and perhaps ask again."""
    first = led(candidate(tmp_path, "a", hands).step())
    one, other = candidate(tmp_path, "b", hands), candidate(tmp_path, "c", hands)
    one.step()
    one.ask()
    hear(first, other, hands)
    first.release()
    assert one.step() is None
    second = led(other.step())
    for _ in range(9):
        hands.now_s += LEASE_S / 4
        assert one.step() is None
        second.renew()
    assert second.asked is None
    assert led(looks(one, hands, LEASE_S + 0.5)).claim.epoch == 3


def test_who_asked_and_left_while_the_leader_stopped_keeps_nobody_waiting(tmp_path: Path, hands: Hands) -> None:
    leader, standby = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "b", hands)
    newcomer = candidate(tmp_path, "c", hands)
    hear(leader, newcomer, hands)
    newcomer.leave()
    leader.release()
    assert leader.asked is None, "it has handed over to nobody"
    assert led(standby.step()).claim.epoch == 2


def test_a_wish_that_cannot_be_written_keeps_nobody_from_taking_over(
    tmp_path: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomer = candidate(tmp_path, "c", hands)
    newcomer.ask()
    led(candidate(tmp_path, "a", hands).step())

    def full(lease: ApplicationLease, asked: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ApplicationLease, "ask", full)
    assert led(looks(newcomer, hands, LEASE_S + 0.5)).claim.epoch == 2


def test_nobody_is_asked_where_nobody_leads(tmp_path: Path, hands: Hands) -> None:
    assert candidate(tmp_path, "c", hands).ask() is None
    led(candidate(tmp_path, "a", hands).step()).release()
    assert candidate(tmp_path, "c", hands).ask() is None


@pytest.mark.parametrize("step", [3, 4, 5])
def test_wherever_a_candidate_dies_the_next_one_leads(tmp_path: Path, hands: Hands, step: int) -> None:
    def die(at: int) -> None:
        if at == step:
            raise KeyboardInterrupt

    old = led(candidate(tmp_path, "a", hands).step())
    with pytest.raises(KeyboardInterrupt):
        looks(candidate(tmp_path, "b", hands, die), hands, LEASE_S + 0.5)
    new = led(looks(candidate(tmp_path, "c", hands), hands, LEASE_S + 0.5))
    write(new)
    with pytest.raises(OSError):
        write(old)


@pytest.mark.parametrize("step", [3, 4, 5])
def test_wherever_a_candidate_is_paused_for_a_lease_it_does_not_lead_beside_another(
    tmp_path: Path, hands: Hands, step: int
) -> None:
    """It wakes up after another has gone all the way: it sees that, at once, and its gate stays shut."""
    others: list[Leadership] = []

    def pause(at: int) -> None:
        if at == step:
            others.append(led(looks(candidate(tmp_path, "c", hands), hands, LEASE_S + 0.5)))

    led(candidate(tmp_path, "a", hands).step())
    slow = candidate(tmp_path, "b", hands, pause)
    assert looks(slow, hands, LEASE_S + 0.5) is None
    others[0].check()
    write(others[0])
    assert [epoch for epoch in range(1, 9) if Gates(tmp_path).path(epoch).is_dir()] == [others[0].claim.epoch]


def test_a_candidate_whom_the_storage_failed_after_its_claim_tries_again_at_once_and_once(
    tmp_path: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(gates: Gates, epoch: int) -> None:
        raise OSError(5, "Input/output error")

    led(candidate(tmp_path, "a", hands).step()).release()
    unlucky = [candidate(tmp_path, name, hands) for name in "bc"]
    with monkeypatch.context() as storage:
        storage.setattr(Gates, "shut_before", fail)
        assert unlucky[0].step() is None
    assert led(unlucky[0].step()).claim.epoch == 3
    with monkeypatch.context() as storage:
        storage.setattr(Gates, "shut_before", fail)
        assert looks(unlucky[1], hands, LEASE_S + 1) is None
        newest = ApplicationLease(tmp_path).newest()
        assert newest is not None and newest.epoch == 5, "the other candidates may try too"
    assert led(looks(candidate(tmp_path, "d", hands), hands, LEASE_S + 0.5)).claim.epoch == 6


def test_a_leader_whose_member_file_cannot_be_written_leads_and_says_what_is_wrong(
    tmp_path: Path, hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    leader, standby = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "b", hands)
    assert looks(standby, hands, LEASE_S - 0.5) is None
    members = tmp_path / "lease" / "members"
    members.rename(members.with_name("away"))
    leader.renew()
    members.with_name("away").rename(members)
    assert looks(standby, hands, LEASE_S - 0.5) is None
    assert [record.getMessage()[:37] for record in caplog.records] == ["the members cannot be told who leads:"]


def test_an_old_leader_is_told_who_leads_now(tmp_path: Path, hands: Hands) -> None:
    old = led(candidate(tmp_path, "a", hands).step())
    led(looks(candidate(tmp_path, "b", hands), hands, LEASE_S + 0.5))
    with pytest.raises(LeadershipLost, match=r"leader of epoch 1 was paused .* b .process .* leads from epoch 2 on"):
        old.renew()
    old.release()
    assert led(looks(candidate(tmp_path, "c", hands), hands, LEASE_S + 0.5)).claim.epoch == 3


def test_the_length_of_a_lease_is_the_leaders(tmp_path: Path, hands: Hands) -> None:
    led(candidate(tmp_path, "a", hands).step())
    hasty = Candidate(tmp_path, "b", lease_s=1.0, ticks=hands)
    assert looks(hasty, hands, LEASE_S) is None


def test_a_second_process_of_the_same_identity_is_refused(tmp_path: Path, hands: Hands) -> None:
    leader, twin = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "a", hands)
    assert twin.step() is None
    leader.renew()
    with pytest.raises(IdentityTaken, match=r"Another process has the identity 'a': .*Give each process an --identity"):
        twin.step()
    leader.check()


def test_two_standbys_of_the_same_identity_do_not_both_stand_by(tmp_path: Path, hands: Hands) -> None:
    led(candidate(tmp_path, "a", hands).step())
    one, other = candidate(tmp_path, "b", hands), candidate(tmp_path, "b", hands)
    one.step()
    other.step()
    with pytest.raises(IdentityTaken):
        for _ in range(20):
            hands.now_s += 1
            one.step()
            other.step()


def test_who_gets_ready_keeps_its_name_however_long_that_takes(tmp_path: Path) -> None:
    starting, twin = Candidate(tmp_path, "b", lease_s=0.4), Candidate(tmp_path, "b", lease_s=60.0)
    assert starting.enter(lambda: False)
    with starting.getting_ready(), pytest.raises(IdentityTaken, match="'b'"):
        wait_until(lambda: twin.step() is not None)
    assert led(starting.step()).claim.identity == "b"


def test_a_name_whose_owner_was_killed_can_be_had_again(tmp_path: Path, hands: Hands) -> None:
    led(candidate(tmp_path, "a", hands).step())
    assert led(looks(candidate(tmp_path, "a", hands), hands, 2 * LEASE_S)).claim.epoch == 2


def test_a_stray_file_among_the_claims_is_none(tmp_path: Path, hands: Hands) -> None:
    leader = led(candidate(tmp_path, "a", hands).step())
    (tmp_path / "lease" / "claims" / "copy of 1.json").write_text("{}")
    leader.renew()
    leader.check()


def test_a_claim_that_cannot_be_read_is_told_with_its_file(tmp_path: Path, hands: Hands) -> None:
    led(candidate(tmp_path, "a", hands).step())
    (tmp_path / "lease" / "claims" / "1.json").write_text("{}")
    with pytest.raises(LeaseInvalid, match=r"claim of epoch 1 cannot be read.*claims/1\.json"):
        candidate(tmp_path, "b", hands).step()


@pytest.mark.parametrize("lease_s", [0.0, 0.1, -1.0, float("nan"), float("inf")])
def test_a_lease_that_cannot_be_kept_is_refused(tmp_path: Path, lease_s: float) -> None:
    with pytest.raises(SettingInvalid, match="cannot be kept"):
        Candidate(tmp_path, "a", lease_s=lease_s)


@pytest.mark.parametrize("identity", ["", "a/b", ".a", "a b", "ä", "x" * 101])
def test_what_cannot_be_a_files_name_is_no_identity(tmp_path: Path, identity: str) -> None:
    with pytest.raises(SettingInvalid, match="cannot be the identity"):
        Candidate(tmp_path, identity, lease_s=1)


def test_people_are_told_who_leads_and_who_stands_by(tmp_path: Path, hands: Hands) -> None:
    assert standing(tmp_path, 0) is None
    leader, standby = led(candidate(tmp_path, "a", hands).step()), candidate(tmp_path, "b", hands)
    standby.step()
    told = standing(tmp_path, time.time_ns() // 1_000 + 60_000_000)
    assert told is not None and told["epoch"] == 1
    assert told["leader"]["identity"] == "a" and told["leader"]["heard_ms"] > 0
    assert [each["identity"] for each in told["standbys"]] == ["b"]
    standby.leave()
    leader.release()
    assert standing(tmp_path, 0) == {"epoch": 1, "lease_ms": 8_000, "leader": None, "standbys": []}


class TestTidying:
    def test_claims_long_past_are_deleted_and_their_gates_stay(self, tmp_path: Path, hands: Hands) -> None:
        for _ in range(EPOCHS_KEPT + 3):
            leader = led(candidate(tmp_path, "a", hands).step())
            leader.release()
        kept = list(range(3, EPOCHS_KEPT + 4))
        for folder in ("claims", "renewals"):
            assert sorted(int(path.stem) for path in (tmp_path / "lease" / folder).iterdir()) == kept
        assert all(Gates(tmp_path).is_shut(epoch) for epoch in (1, 2, 3))

    def test_who_claims_an_epoch_that_was_deleted_does_not_lead(self, tmp_path: Path, hands: Hands) -> None:
        """It was paused since before that was claimed first."""
        leaders: list[Leadership] = []

        def sleep_long(step: int) -> None:
            if step == 3 and not leaders:
                for _ in range(EPOCHS_KEPT + 3):
                    leaders.append(led(candidate(tmp_path, "a", hands).step()))
                    leaders[-1].release()
                leaders.append(led(candidate(tmp_path, "c", hands).step()))

        slow = candidate(tmp_path, "b", hands, sleep_long)
        assert slow.step() is None
        leaders[-1].check()
        write(leaders[-1])
        assert [epoch for epoch in range(1, 200) if Gates(tmp_path).path(epoch).is_dir()] == [EPOCHS_KEPT + 4]
        assert slow.step() is None

    def test_names_that_come_again_never_are_forgotten_after_an_hour(self, tmp_path: Path, hands: Hands) -> None:
        clock = ManualClock(0)
        killed = {name: Candidate(tmp_path, name, lease_s=LEASE_S, ticks=hands, clock=clock) for name in ("auto", "b")}
        for each in killed.values():
            each.enter(lambda: False)
        members = tmp_path / "lease" / "members"
        for now_us, left in ((3_600_000_000, {killed["auto"].identity, "b", "c"}), (3_600_000_001, {"b", "c"})):
            late = Candidate(tmp_path, "c", lease_s=LEASE_S, ticks=hands, clock=ManualClock(now_us))
            leader = led(late.step())
            assert {path.stem for path in members.iterdir()} == left
            leader.release()


class Crowd:
    """Some candidates, of which each is paused, woken and killed as the test likes; and what may never be seen."""

    def __init__(self, root: Path) -> None:
        self.root, self.hands = root, Hands()
        self.candidates = [candidate(root, f"c{number}", self.hands) for number in range(3)]
        self.leaders: dict[int, Leadership] = {}  # whoever believes to lead, by candidate
        self.highest, self.born = 0, 3

    def act(self, who: int, what: str) -> None:
        leader = self.leaders.get(who)
        if what == "look" and leader is None:
            self._look(who)
        elif what == "renew" and leader is not None:
            self._renew(who, leader)
        elif what == "write" and leader is not None:
            self._write(who, leader)
        elif what == "kill":
            self.leaders.pop(who, None)
            self.candidates[who] = candidate(self.root, f"c{self.born}", self.hands)
            self.born += 1
        elif what == "release" and leader is not None:
            leader.release()
            del self.leaders[who]
            self.act(who, "kill")

    def _look(self, who: int) -> None:
        leadership = self.candidates[who].step()
        if leadership is not None:
            assert leadership.claim.epoch > self.highest
            self.leaders[who], self.highest = leadership, leadership.claim.epoch

    def _renew(self, who: int, leader: Leadership) -> None:
        try:
            leader.renew()
            assert leader.claim.epoch == self.highest
        except LeadershipLost:
            assert leader.claim.epoch < self.highest
            self.act(who, "kill")

    def _write(self, who: int, leader: Leadership) -> None:
        """Without a check before, as one that was paused after it."""
        try:
            write(leader)
            assert leader.claim.epoch == self.highest
        except OSError:
            assert leader.claim.epoch < self.highest
            self.act(who, "kill")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(["look", "look", "renew", "write", "kill", "release"]), st.integers(0, 6)
        ),
        max_size=60,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_only_the_newest_leader_can_write(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[int, str, int]]
) -> None:
    crowd = Crowd(tmp_path_factory.mktemp("crowd"))
    for who, what, seconds in story:
        crowd.hands.now_s += seconds
        crowd.act(who, what)
    epochs = sorted(int(path.stem) for path in (crowd.root / "lease" / "claims").glob("*.json"))
    assert epochs == list(range(1, crowd.highest + 1))
    assert json.dumps(standing(crowd.root, 0))


def test_a_folder_knows_whether_anybody_ever_led_there(tmp_path: Path, hands: Hands) -> None:
    assert not ApplicationLease(tmp_path).exists()
    candidate(tmp_path, "a", hands)
    assert ApplicationLease(tmp_path).exists()


def test_a_leader_of_version_0_1_0_is_respected_and_replaced_by_files_that_it_understands(
    tmp_path: Path, hands: Hands
) -> None:
    lease = tmp_path / "lease"
    old = {"epoch": 1, "identity": "old", "token": "01234567", "host": "h", "pid": 7, "lease_s": LEASE_S, "time_us": 5}
    for name in ("claims", "renewals", "gates", "members"):
        (lease / name).mkdir(parents=True)
    (lease / "claims" / "1.json").write_text(json.dumps(old))
    (lease / "gates" / "1").symlink_to("../..")
    standby = candidate(tmp_path, "b", hands)
    for count in range(1, 4):
        (lease / "renewals" / "1.json").write_text(json.dumps({"count": count, "released": False, "to": None}))
        assert looks(standby, hands, LEASE_S - 0.5) is None
    new = led(looks(standby, hands, LEASE_S))
    assert {path.name for path in lease.iterdir()} == {"claims", "renewals", "gates", "members"}
    assert json.loads((lease / "claims" / "2.json").read_bytes()).keys() == old.keys()
    assert json.loads((lease / "renewals" / "2.json").read_bytes()) == {"count": 1, "released": False, "to": None}
    assert Gates(tmp_path).is_shut(1)
    new.release()
    assert json.loads((lease / "renewals" / "2.json").read_bytes()) == {"count": 2, "released": True, "to": None}
