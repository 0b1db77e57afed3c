"""Chaos without a system: the table of scenarios, the witness, the report, the matrix, and what is refused."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from stateside.billing.audit import Balance, recheck
from stateside.cli import main
from stateside.core.errors import PipelineFailed, RequestInvalid, StatesideError
from stateside.core.layout import Layout
from stateside.core.processes import free_port
from stateside.serving.clients import Client
from stateside.serving.clients.steps import NoReply, Reply
from stateside.serving.clients.transport import unanswered
from stateside.testbed.chaos import (
    ChaosSettings,
    ScenarioRun,
    Suffered,
    _failed,
    _idle,
    run_scenarios,
)
from stateside.testbed.chaos_report import COLUMNS, ChaosReport, Result, matrix
from stateside.testbed.cluster import Cluster
from stateside.testbed.component import Interrupts, Supervised
from stateside.testbed.faults import Broken, Fault, together
from stateside.testbed.feeder import Load
from stateside.testbed.producer import HURRY, STANDS, Desk, ProducerLoad
from stateside.testbed.proof import SystemProof, lost_and_doubled
from stateside.testbed.scenarios import BROKER_KILLED, NAMES, REPLICA_KILLED, SCENARIOS, at_random, chosen
from stateside.testbed.system import Ground, System, SystemShape
from stateside.testbed.witness import (
    DEADLINE_S,
    FRESH_MS_MAX,
    AnswerLog,
    Document,
    LongestSilence,
    Seen,
    Witness,
    running_bill,
    whole_bill,
)
from stateside.testing import answer
from tests.billing.audit.live_bill import right_bill
from tests.sizes import not_in_fast
from tests.waiting import wait_until

FINE = Result(
    scenario="driver-killed",
    part="driver",
    happening="killed",
    seconds=70.0,
    events=5_000,
    events_meanwhile=700,
    invoices=180,
    requests_answered=1_000,
    no_answer_s=0.21,
    no_fresh_answer_s=14.0,
    recovery_s=13.5,
    faults=("driver killed",),
)
DOUBLED = replace(FINE, events_doubled=12, invoices_doubled=3, sums_off=3, problems=("c1, 2026-01: billed twice",))


def report(*results: Result, guarantee: str = "exactly-once") -> ChaosReport:
    return ChaosReport(guarantee, 1, 30.0, "2026-11-16", results)


def told(shown: ChaosReport) -> str:
    text = io.StringIO()
    shown.show(Console(file=text, width=200))
    return text.getvalue()


def test_every_scenario_of_the_issue_is_there_and_has_a_cell_of_its_own() -> None:
    assert set(NAMES) == {
        *("worker-killed", "master-killed", "driver-killed", "driver-paused", "both-workers-killed", "replica-killed"),
        *("broker-killed", "writer-killed", "invoice-store-away", "checkpoint-away", "disk-full", "at-random"),
        "savepoint-restored",
    }
    cells = {(each.part, each.happening) for each in SCENARIOS.values()}
    assert len(cells) == len(SCENARIOS)
    assert {happening for _, happening in cells} <= set(COLUMNS)


def test_a_shape_has_the_part_that_something_happens_to() -> None:
    for name, each in SCENARIOS.items():
        assert each.shape.cluster == (name in ("worker-killed", "both-workers-killed", "master-killed")), name
        assert (each.shape.journal == "kafka") == (name == "broker-killed"), name
        assert each.shape.standby == (name == "driver-paused"), name
        assert each.shape.small_disk == (name == "disk-full"), name


def test_a_seed_draws_the_same_faults_every_time_and_seeds_differ() -> None:
    assert at_random(3) == at_random(3)
    assert len({at_random(seed).faults for seed in range(20)}) > 10
    assert at_random(3).shape.cluster and at_random(3).shape.journal == "kafka", "it has every part"


def test_faults_that_come_together_are_all_injected_and_healed_in_order() -> None:
    done: list[str] = []

    def fault(part: str, since_s: float | None, away_s: float = 0.0) -> Fault:
        def inject(_: System) -> Broken:
            done.append(part)
            return Broken(lambda: done.append(f"no {part}"), since_s)

        return Fault(part, "killed", inject, away_s)

    system = cast(System, None)  # none of these looks at it
    both = together(fault("worker", None, 3.0), fault("replica", 1.0))
    assert (both.part, both.happening, both.away_s) == ("worker and replica", "killed", 3.0)
    broken = both.inject(system)
    assert broken.since_s is None, "one of them has to be healed first"
    broken.heal()
    assert done == ["worker", "replica", "no worker", "no replica"]
    assert together(fault("a", 5.0), fault("b", 4.0)).inject(system).since_s == 4.0


def test_all_scenarios_or_some_of_them_can_be_chosen() -> None:
    assert [each.name for each in chosen([], all_=True, seed=1, guarantee="exactly-once")] == list(NAMES)
    some = ["replica-killed", "at-random", "replica-killed"]
    assert [each.name for each in chosen(some, all_=False, seed=1, guarantee="exactly-once")] == some[:2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["drver-killed"],
            "There is no scenario 'drver-killed'. Did you mean driver-killed? There are: driver-killed,",
        ),
        (["fire"], "There is no scenario 'fire'. There are: driver-killed,"),
        ([], "Name scenarios, or give --all. There are: driver-killed,"),
        (["driver-killed", "--all"], "Name scenarios, or give --all"),
        (["replica-killed", "--guarantee", "at-least-once"], "Name some of: driver-killed, driver-paused."),
        (["--all", "--guarantee", "at-least-once"], "Name some of: driver-killed, driver-paused."),
        (["driver-killed", "--guarantee", "at-most-once"], "'at-most-once' is not one of"),
        (["driver-killed", "--seconds", "1"], "1.0 is not in the range"),
        (["driver-killed", "--json", "/no/such/folder/report.json"], "There is no folder /no/such/folder"),
    ],
    ids=str,
)
def test_bad_input_is_refused_in_a_sentence_before_anything_starts(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["chaos", *arguments])
    assert done.exit_code != 0
    assert sentence in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_a_folder_of_an_earlier_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "driver-killed").mkdir()
    done = CliRunner().invoke(main, ["chaos", "driver-killed", "--dir", str(tmp_path)])
    assert done.exit_code == 1
    assert "This folder has the outcome of an earlier run" in done.output


def test_a_folder_of_an_earlier_run_is_refused_before_the_first_scenario_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "writer-killed").mkdir()
    monkeypatch.setattr(ScenarioRun, "play", lambda course: FINE)
    with pytest.raises(RequestInvalid, match="an earlier run"):
        run("driver-killed", "writer-killed", folder=tmp_path)


def run(*names: str, folder: Path) -> list[Result]:
    return run_scenarios([SCENARIOS[name] for name in names], ChaosSettings(), folder, Console(file=io.StringIO()))


def test_an_error_of_any_library_is_one_result_and_the_next_scenario_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: Iterator[Exception | Result] = iter(
        [subprocess.TimeoutExpired("java", 5.0), json.JSONDecodeError("no", "", 0), FINE]
    )

    def play(course: ScenarioRun) -> Result:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(ScenarioRun, "play", play)
    first, second, third = run("driver-killed", "writer-killed", "replica-killed", folder=tmp_path)
    assert first.problems == ("It was not carried out: TimeoutExpired('java', 5.0)",)
    assert "JSONDecodeError" in second.problems[0]
    assert third == FINE


def test_the_report_file_has_each_scenario_as_soon_as_it_is_done_and_is_not_ok_before_all_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = tmp_path / "report.json", list[dict[str, Any]]()

    def play(course: ScenarioRun) -> Result:
        if file.exists():
            seen.append(json.loads(file.read_bytes()))
        return FINE

    monkeypatch.setattr(ScenarioRun, "play", play)
    asked = ["driver-killed", "writer-killed", "--dir", str(tmp_path / "chaos"), "--json", str(file)]
    assert CliRunner().invoke(main, ["chaos", *asked]).exit_code == 0
    assert [(one["ok"], len(one["scenarios"]), one["to_come"]) for one in seen] == [(False, 1, ["writer-killed"])]
    done = json.loads(file.read_bytes())
    assert (done["ok"], len(done["scenarios"]), done["to_come"]) == (True, 2, [])


def test_ctrl_c_is_heard_while_the_ground_is_prepared_and_no_other_scenario_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = list[Path]()

    @contextmanager
    def slowly(layout: Layout, *_: object, **__: object) -> Iterator[None]:
        prepared.append(layout.root)
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)
        yield

    monkeypatch.setattr("stateside.testbed.system.prepared", slowly)
    with pytest.raises(KeyboardInterrupt):
        run("broker-killed", "writer-killed", folder=tmp_path)
    assert prepared == [tmp_path / "broker-killed" / "application"]


def test_ctrl_c_between_two_scenarios_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = list[str]()

    def play(course: ScenarioRun) -> Result:
        played.append("one")
        signal.raise_signal(signal.SIGTERM)
        return FINE

    monkeypatch.setattr(ScenarioRun, "play", play)
    with pytest.raises(KeyboardInterrupt):
        run("driver-killed", "writer-killed", folder=tmp_path)
    assert played == ["one"]


def test_the_list_has_all_scenarios() -> None:
    done = CliRunner().invoke(main, ["chaos", "--list"])
    assert [line.split()[0] for line in done.output.splitlines()] == list(NAMES)


gaps = st.lists(st.floats(0, 100), max_size=20)


@given(gaps, st.floats(0, 100))
def test_the_longest_silence_is_the_longest_gap_the_present_one_included(between: list[float], last: float) -> None:
    silence, now_s = LongestSilence(0.0), 0.0
    for gap_s in between:
        now_s += gap_s
        silence.broken(now_s)
    assert silence.longest_s(now_s + last) == pytest.approx(max([*between, last]))


def test_an_old_answer_breaks_the_silence_but_is_not_fresh() -> None:
    seen = Seen(0.0)
    seen.note_answer(1.0, age_ms=10)
    seen.note_answer(4.0, age_ms=FRESH_MS_MAX + 1)
    seen.note_failure(9.0, "gone")
    seen.note_answer(10.0, age_ms=FRESH_MS_MAX)
    assert (seen.answered, seen.failed, list(seen.failures)) == (3, 1, ["gone"])
    assert (seen.no_answer_s, seen.no_fresh_answer_s) == (6.0, 9.0)


def test_a_silence_at_the_end_counts() -> None:
    seen = Seen(0.0)
    seen.note_answer(1.0, age_ms=0)
    seen.note_failure(6.0, "gone")
    assert (seen.no_answer_s, seen.no_fresh_answer_s) == (5.0, 5.0)


def test_where_nobody_answers_the_watcher_counts_failures(tmp_path: Path) -> None:
    record = AnswerLog(tmp_path / "answers.jsonl")
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    witness = Witness(urls, 3, 1, [running_bill], record, deadline_s=DEADLINE_S / 50)
    witness.start()
    try:
        wait_until(lambda: witness.seen.failed >= 2)
    finally:
        witness.stop()
    assert witness.seen.answered == 0
    assert witness.seen.no_answer_s >= DEADLINE_S / 50
    assert "127.0.0.1" in witness.seen.failures[0]


def test_a_failure_of_one_server_counts_although_another_one_answers(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"

    def failing(client: Client, customer: str) -> Document:
        if client is not witness._client:
            raise StatesideError("Something is wrong inside of this server")
        return {"stamp": {"age_ms": 0}}

    witness = Witness([url, url], 3, 1, [failing], AnswerLog(tmp_path / "answers.jsonl"))
    witness.start()
    try:
        wait_until(lambda: witness.seen.answered > 2 and bool(witness.seen.server_errors))
    finally:
        witness.stop()
    assert witness.seen.failed == 0
    (told,) = _failed(witness.seen)
    assert told.endswith(f"{url}: Something is wrong inside of this server.")


def test_a_server_that_is_not_reached_is_told_from_one_that_fails() -> None:
    seen = Seen(0.0)
    seen.note_attempt("one", 7.0, NoReply("ConnectError", sent=False))
    seen.note_attempt("two", 8.0, Reply(500, {}, b"no problem document"))
    seen.note_server_error("two", unanswered("the reply is no JSON", "two"))
    assert (dict(seen.unreached), len(seen.server_errors), seen.attempts_failed()) == ({"one": [7.0]}, 2, 3)


RIGHT = json.dumps({"rows": [], "stamp": {"age_ms": 0}}).encode()
GARBAGE = b"<html>"


@contextmanager
def server_that(replies: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """A server that replies so to each path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = replies(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def ask_anything(client: Client, customer: str) -> Document:
    return client.get("/v1/anything")


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [(500, b"{}", "answered with an error"), (502, b"", "HTTP 502"), (200, GARBAGE, "no JSON"), (404, b"{}", "error")],
)
def test_a_single_bad_reply_of_one_server_counts_although_the_other_one_answers(
    tmp_path: Path, status: int, content: bytes, told: str
) -> None:
    """Exactly one, whomever it is told: the witness's client that asks any server, or the one that asks this server."""
    left = [(status, content)]
    with (
        server_that(
            lambda path: (left.pop() if left else (200, RIGHT)) if "anything" in path else (404, b"{}")
        ) as failing,
        server_that(lambda path: (200, RIGHT) if "anything" in path else (404, b"{}")) as fine,
    ):
        witness = Witness([failing, fine], 3, 1, [ask_anything], AnswerLog(tmp_path / "answers.jsonl"))
        witness.start()
        try:
            wait_until(lambda: witness.seen.answered > 2 and not left)
        finally:
            witness.stop()
    assert any(told in problem for problem in _failed(witness.seen)), _failed(witness.seen)


def test_a_500_that_a_retry_hides_counts(tmp_path: Path) -> None:
    """The server fails whenever the client asks that may turn to another server: nobody else sees a failure."""
    with server_that(lambda path: (500, b"{}")) as failing, server_that(lambda path: (200, RIGHT)) as fine:
        witness = Witness([failing, fine], 3, 1, [ask_anything], AnswerLog(tmp_path / "answers.jsonl"))
        witness.seen = Seen(0.0)
        for _ in range(20):
            witness._ask(ask_anything, "c1")
        witness.stop()
    assert (witness.seen.answered, witness.seen.failed) == (20, 0), "each is answered after all"
    assert any(url.startswith(failing) for url in witness.seen.server_errors)


@not_in_fast("a whole run; other wrong answers are here")
def test_one_wrong_row_of_one_server_among_right_answers_is_found(tmp_path: Path) -> None:
    """From the server's reply over the witness's record to the judgement; nobody in this journal is called c0, c1, …"""
    layout = right_bill(tmp_path / "billing").layout
    emma = answer(layout, "bill", "emma")
    right = {"stamp": emma.stamp.as_dict(), "rows": []}
    wrong = [json.dumps({**right, "rows": [{**emma.rows[0], "customer": "c1"}]}).encode()]

    def replies(path: str) -> tuple[int, bytes]:
        if "/rows" not in path:
            return 404, b"{}"
        return 200, wrong.pop() if wrong and "key=c1" in path else json.dumps(right).encode()

    record = AnswerLog(tmp_path / "answers.jsonl")
    with server_that(replies) as one, server_that(replies) as other:
        witness = Witness([one, other], 3, 1, [running_bill], record)
        witness.start()
        try:
            wait_until(lambda: witness.seen.answered > 5 and not wrong)
        finally:
            witness.stop()
    assert _failed(witness.seen) == []
    count, verdict = recheck(layout, tmp_path / "recheck", record.answers(running_bill))
    assert count > 10
    (sentence,) = verdict.sentences
    assert sentence.startswith(
        "c1, 2026-01, call on basic@1: the answer of batch 0, position 0:6, says 7,260 in 2 events"
    )


def test_answers_are_recorded_by_question(tmp_path: Path) -> None:
    record = AnswerLog(tmp_path / "answers.jsonl")
    record.add(running_bill, "c1", {"rows": [1]})
    record.add(whole_bill, "c2", {"periods": []})
    record.close()
    assert list(record.answers(running_bill)) == [("c1", {"rows": [1]})]
    assert list(record.answers(whole_bill)) == [("c2", {"periods": []})]


def test_restarts_and_silences_that_nobody_caused_are_reported(tmp_path: Path) -> None:
    def part(name: str, restarts: int = 0, caused: int = 0, log: str = "", code: int | None = None, **more: Any) -> Any:
        return SimpleNamespace(
            **{"name": name, "restarts": restarts, "caused": caused, "log": tmp_path / name, "killed_s": [], **more},
            **{"last_error": lambda: "out of memory", "log_text": lambda: log},
            gone=lambda: code is not None and (name, code) != ("writer", 0),
        )

    system = System(SystemShape(), tmp_path, Layout(tmp_path), cast(Interrupts, None))
    system.urls = ("one", "two")

    def unexplained(*parts: Any, unreached: Any = (), fails_view: bool = False, restarts: int = 0) -> list[str]:
        given = {each.name: each for each in (part("driver-1"), part("replica-1"), part("replica-2"), *parts)}
        system.parts, system.ground = given, Ground("application", None)
        system.ground.restarts = restarts
        return system.unexplained(dict(unreached), [(10.0, 20.0), (50.0, 60.0)], fails_view=fails_view)

    assert unexplained(part("writer", code=0), part("driver-1", 2, 2)) == []
    assert unexplained(part("driver-1", 2, 1)) == ["driver-1 ended 1 times by itself: out of memory"]
    assert unexplained(part("driver-1", code=-9)) == ["driver-1 is not running at the end: out of memory"]
    assert unexplained(part("writer", code=1)) == ["writer is not running at the end: out of memory"]
    assert unexplained(restarts=1) == ["Parts of the cluster ended 1 times by themselves"]
    silent = {"one": [12.0, 19.0, 22.0], "two": [12.0]}
    assert unexplained(part("replica-1", 1, 1, killed_s=[11.0]), unreached=silent) == [
        "replica-1 did not reply 1 times while nobody had killed it",
        "replica-2 did not reply 1 times while nobody had killed it",
    ]
    (crashed,) = unexplained(part("replica-2", log="Traceback (most recent call last):"))
    assert crashed.startswith("The log of replica-2 has 'Traceback")
    (ended,) = unexplained(part("replica-2", log="worker 7 was ended by SIGBUS. It is started again"))
    assert ended.startswith("The log of replica-2 has 'was ended by SIG'")
    failing = part("driver-1", log="view bill failed: it is so. Restart 1 of 5 in 1 s")
    assert unexplained(failing)[0].startswith("The view failed 1 times in driver-1")
    assert unexplained(failing, fails_view=True) == []


def test_the_driver_is_the_leader_and_nobody_is_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SystemShape(drivers=("driver-1", "driver-2"))
    system = System(shape, tmp_path, Layout(tmp_path), cast(Interrupts, None))
    system.parts = {name: cast(Supervised, object()) for name in shape.drivers}
    leading: list[Any] = [{"leader": {"identity": "driver-2"}}, {"leader": None}, None]
    monkeypatch.setattr("stateside.testbed.system.standing", lambda root, now_us: leading.pop(0))
    assert system.driver() is system.parts["driver-2"]
    for _ in range(2):
        with pytest.raises(PipelineFailed, match="None of the drivers leads"):
            system.driver()


def test_a_part_that_has_ended_by_itself_was_not_killed(tmp_path: Path) -> None:
    part = Supervised("part", [], tmp_path / "log", module="no_such_module")
    wait_until(lambda: part.child.returncode() is not None)
    part.kill()
    part.supervise()
    assert (part.restarts, part.caused) == (1, 0)
    part.stop()


def test_a_number_that_must_be_0_and_is_not_is_no_success_also_without_a_sentence() -> None:
    names = ("events_lost", "events_doubled", "invoices_missing", "invoices_doubled", "sums_off")
    for name in (*names, "requests_failed", "answers_wrong"):
        wrong = replace(FINE, **cast(Any, {name: 1}))
        assert not wrong.ok and wrong.verdict() == "wrong: a number that must be 0 is not", name


def test_a_fault_that_hit_an_idle_system_is_a_problem_unless_it_stops_the_producer_itself() -> None:
    (told,) = _idle(
        [Suffered(REPLICA_KILLED, 1.0, 0), Suffered(REPLICA_KILLED, 1.0, 7), Suffered(BROKER_KILLED, 1.0, 0)]
    )
    assert told == "No event was appended while this lasted: replica killed"


@pytest.mark.parametrize("name", SCENARIOS)
def test_running_and_whole_bills_are_asked_for_in_every_scenario(tmp_path: Path, name: str) -> None:
    course = ScenarioRun(SCENARIOS[name], ChaosSettings(), Path(), Console(), cast(Interrupts, None))
    system = cast(System, SimpleNamespace(urls=("http://127.0.0.1:1",)))
    witness = course._witness(system, AnswerLog(tmp_path / "answers.jsonl"))
    assert witness._questions == [running_bill, whole_bill]
    witness.stop()


def test_a_kill_that_missed_its_moment_is_a_failure() -> None:
    course = ScenarioRun(SCENARIOS["driver-killed"], ChaosSettings(), Path(), Console(), cast(Interrupts, None))
    audited = SimpleNamespace(balance=Balance(), counts={"events": 5}, differences=list)
    numbers = {"differences": (), "answers": 3, "wrong_answers": (), "never_journalled": 0, "journalled_twice": 0}
    judged = cast(SystemProof, SimpleNamespace(audit=audited, outcome=SimpleNamespace(invoices=1), **numbers))
    seen = Seen(0.0)
    seen.note_answer(1.0, age_ms=0)
    for missed in ("", "The worst moment did not come."):
        result = course._result(judged, seen, [Suffered(REPLICA_KILLED, 1.0, 7, missed)], [])
        assert result.ok == (not missed)
        assert result.problems == ((missed,) if missed else ())


def test_a_system_that_never_came_back_is_wrong_in_the_matrix() -> None:
    gone = Result("driver-killed", "driver", "killed", 200.0, problems=("It was not carried out: After 180 s",))
    assert "| driver | **WRONG** it did not come back |" in matrix(report(gone).as_dict())


def test_a_report_of_before_there_was_more_to_tell_can_be_read() -> None:
    document = {name: value for name, value in FINE.as_dict().items() if name != "events_meanwhile"}
    document["notes"] = ["The worst moment did not come."]
    assert Result.of(document) == replace(FINE, events_meanwhile=0)


def test_what_went_well_is_told_so_and_what_did_not_as_well() -> None:
    assert report(FINE).ok and "Everything adds up." in told(report(FINE))
    wrong = told(report(FINE, DOUBLED))
    assert "driver-killed: c1, 2026-01: billed twice" in wrong
    assert "It does NOT add up." in wrong
    assert not report(FINE, DOUBLED).ok


def test_a_result_is_told_in_a_sentence_as_soon_as_it_is_there() -> None:
    assert FINE.verdict() == "nothing lost, nothing doubled, back after 13.5 s"
    assert DOUBLED.verdict() == "wrong: c1, 2026-01: billed twice"


def test_the_control_says_whether_it_has_shown_anything() -> None:
    found = report(DOUBLED, guarantee="at-least-once")
    assert "The control doubled 15 events and documents, and the auditor found it" in told(found)
    assert not found.ok, "what is doubled is wrong, also where it is meant to be"
    assert "this run proves nothing" in told(report(FINE, guarantee="at-least-once"))


def test_what_this_machine_has_no_means_for_is_told_and_is_no_success() -> None:
    full = Result("disk-full", "disk", "full", 0.0, skipped="A small disk cannot be mounted here.")
    assert "disk-full: not tried: A small disk cannot be mounted here." in told(report(FINE, full))
    assert not report(FINE, full).ok


def test_the_report_for_machines_has_every_number_and_can_be_read_again() -> None:
    document = json.loads(json.dumps(report(FINE, DOUBLED).as_dict()))
    assert document["ok"] is False
    assert [Result.of(each) for each in document["scenarios"]] == [FINE, DOUBLED]
    assert document["scenarios"][0]["ok"] is True


def test_the_matrix_has_a_row_for_each_part_and_a_column_for_what_happened() -> None:
    paused = replace(FINE, scenario="driver-paused", happening="paused", recovery_s=1.25)
    store = replace(DOUBLED, scenario="invoice-store-away", part="invoice store", happening="away")
    full = Result("disk-full", "disk", "full", 0.0, skipped="A small disk cannot be mounted here.")
    page = matrix(report(FINE, paused, store, full).as_dict())
    rows = [line for line in page.splitlines() if line.startswith("| ") and "scenario" not in line]
    assert rows[0] == "| | killed | paused | away | full |"
    driver, invoices, disk = (
        next(row for row in rows if row.startswith(f"| {part}")) for part in ("driver |", "in", "disk |")
    )
    assert driver.count("0 events lost, 0 doubled") == 2
    assert "back after 13.5 s" in driver and "back after 1.2 s" in driver
    assert "**WRONG** 0 events lost, 12 doubled<br>0 invoices missing, 3 doubled" in invoices
    assert "not measured here" in disk
    assert "2026-11-16" in page and "seed 1" in page


def test_the_desk_tells_the_producer_what_to_do_and_how_fast(tmp_path: Path) -> None:
    urls = ("http://one", "http://two")
    desk, load = Desk(tmp_path), ProducerLoad(folder="/somewhere", urls=urls, seconds=30.0, customers=60, seed=7)
    desk.lay(load)
    assert Desk(tmp_path).load() == load
    assert (desk.pace(0.1), desk.pace(0.2), desk.drained()) == (1.0, STANDS, False)
    desk.allow(0.5)
    assert (desk.pace(0.4), desk.pace(0.5)) == (1.0, STANDS)
    assert desk.done() == 0.0
    desk.note_done(0.6)
    desk.go_on(2)
    assert (desk.done(), desk.pace(0.79), desk.pace(0.81)) == (0.6, 1.0, STANDS)
    desk.hurry()
    desk.note_drained(17)
    assert (desk.pace(0.9), desk.drained(), desk.watermark_us()) == (HURRY, True, 17)


def test_a_load_is_the_same_at_every_run() -> None:
    load = Load(seconds=30.0, customers=5, seed=7)
    assert [a.event for a in load.generator().arrivals()] == [a.event for a in load.generator().arrivals()]


def test_an_event_that_is_lost_does_not_hide_one_that_is_doubled() -> None:
    assert lost_and_doubled(["a", "b", "c", "c"], ["a", "a", "c", "c"]) == (1, 1)
    assert lost_and_doubled(["a", "c", "c"], ["c", "a", "c"]) == (0, 0)


def test_parts_of_a_cluster_are_started_again_unless_a_fault_holds_them_down() -> None:
    started: list[str] = []
    cluster = SimpleNamespace(address="spark://here:1", ended=lambda: ["worker-1", "worker-2"], restart=started.append)
    ground = Ground("application", cast(Cluster, cluster))
    ground.supervise(held={"worker-1"})
    assert (started, ground.restarts) == (["worker-2"], 1)


def test_no_scenario_can_be_had_by_a_name_that_is_none() -> None:
    with pytest.raises(RequestInvalid):
        chosen([""], all_=False, seed=1, guarantee="exactly-once")
