"""Children: stopped in order, logged, and never left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stateside.core.processes import EXIT_NO_COMMAND, Child, free_port, run

pytestmark = pytest.mark.e2e

WAIT_S_MAX = 90.0
SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "child.log"


@pytest.fixture
def sleeper(log: Path) -> Iterator[Child]:
    child = Child(SLEEP, log)
    _wait_for(lambda: child.tail() == "up")
    yield child
    child.stop(wait_s=0)


def test_a_running_child_has_no_return_code_and_a_stopped_one_does(sleeper: Child) -> None:
    assert sleeper.returncode() is None
    assert sleeper.stop() == -signal.SIGTERM
    assert sleeper.returncode() == -signal.SIGTERM
    assert not _alive(sleeper.pid)


def test_stopping_a_child_twice_is_harmless(sleeper: Child) -> None:
    assert sleeper.stop() == sleeper.stop()


def test_a_child_that_does_not_listen_is_killed_after_a_while(log: Path) -> None:
    child = Child(STUBBORN, log)
    _wait_for(lambda: child.tail() == "up")
    assert child.stop(wait_s=0.1) == -signal.SIGKILL


def test_the_output_of_a_child_stands_in_its_log_behind_what_was_there(log: Path) -> None:
    for text in ("first", "second"):
        script = f"import sys; print({text!r}); print('error', file=sys.stderr)"
        assert _ended(Child([sys.executable, "-u", "-c", script], log)) == 0
    assert log.read_text().splitlines() == ["first", "error", "second", "error"]


def test_the_tail_has_the_last_lines_even_of_output_that_is_no_text(log: Path) -> None:
    script = r"import sys; sys.stdout.buffer.write(b'one\ntwo \xff\nthree\n')"
    child = Child([sys.executable, "-c", script], log)
    _ended(child)
    assert child.tail(2) == "two �\nthree"


def test_ctrl_c_in_the_terminal_reaches_the_parent_alone(sleeper: Child) -> None:
    assert os.getpgid(sleeper.pid) != os.getpgid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_child_does_not_outlive_a_parent_that_was_killed(log: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from stateside.core.processes import Child\n"
        f"print(Child({SLEEP!r}, Path({str(log)!r})).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _alive(pid)
        parent.kill()
    assert _ends(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_child_whose_parent_died_before_it_could_ask_ends_too(tmp_path: Path) -> None:
    script = (
        "import sys, time; from stateside.core.processes import die_with_parent\n"
        "sys.stdin.read(); die_with_parent(int(sys.argv[1])); print('lives on', flush=True); time.sleep(60)"
    )
    parent = (
        f"import os, subprocess, sys; out = open({str(tmp_path / 'out')!r}, 'w'); pipe = subprocess.PIPE\n"
        f"command = [sys.executable, '-c', {script!r}, str(os.getpid())]\n"
        "print(subprocess.Popen(command, stdin=pipe, stdout=out, stderr=out).pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"  # the pipe closes with it, and only then the child goes on
    )
    done = subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, check=False)
    assert _ends(int(done.stdout))
    assert (tmp_path / "out").read_text() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_child_does_not_outlive_a_parent_that_is_killed_as_soon_as_it_has_started_it(log: Path) -> None:
    script = (
        "import os; from pathlib import Path; from stateside.core.processes import Child\n"
        f"print(Child({SLEEP!r}, Path({str(log)!r})).pid, flush=True); os.kill(os.getpid(), 9)"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
        assert _ends(int(done.stdout))


def test_no_python_runs_between_fork_and_exec(log: Path) -> None:
    script = (
        "import os; from pathlib import Path; from stateside.core.processes import Child\n"
        "os.register_at_fork(before=lambda: print('Python runs in the fork'))\n"
        f"Child([{sys.executable!r}, '-c', ''], Path({str(log)!r})).stop()"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_child_is_its_command_and_ignores_no_signal_that_the_command_would_not_ignore(log: Path) -> None:
    command = ["sh", "-c", "echo $$; exec grep SigIgn /proc/self/status"]
    child = Child(command, log)
    assert _ended(child) == 0
    alone = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert child.tail().splitlines() == [str(child.pid), *alone.splitlines()[1:]]


def test_a_command_that_does_not_exist_is_told_in_the_log(log: Path) -> None:
    child = Child(["no-such-command"], log)
    assert _ended(child) == EXIT_NO_COMMAND
    assert child.tail() == "Error: no-such-command cannot be run: No such file or directory."


def test_a_command_is_run_to_its_end_and_says_how_it_was() -> None:
    found = asyncio.run(run(["sh", "-c", "echo said; echo meant >&2; exit 3"], 20))
    assert found == (3, "said\n", "meant\n")
    assert asyncio.run(run(["no-such-command"], 20))[0] == EXIT_NO_COMMAND


def test_a_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(run(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"], 1))
    assert not _alive(int((tmp_path / "pid").read_text()))


@pytest.mark.timeout(60)
def test_a_loop_that_ends_does_not_wait_for_a_command_and_leaves_none(tmp_path: Path) -> None:
    """As with a server that is stopped while an audit runs: in a thread it would have waited for the audit's end."""

    async def begin() -> asyncio.Task[tuple[int, str, str]]:
        task = asyncio.create_task(run(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"], 500))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        return task

    assert asyncio.run(begin()).cancelled()
    assert not _alive(int((tmp_path / "pid").read_text()))


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()


def _ended(child: Child) -> int | None:
    _wait_for(lambda: child.returncode() is not None)
    return child.returncode()


def _ends(pid: int) -> bool:
    """Waits until the process has ended; one that does not is killed, and the test fails."""
    try:
        _wait_for(lambda: not _alive(pid))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return True


def _alive(pid: int) -> bool:
    """Whether the process runs: a dead one that nobody has fetched yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
