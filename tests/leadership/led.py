"""A process that stands by for a folder, leads, and does what only a leader may. Run by `test_processes`.

    led.py ROOT NAME LEASE_S [stop]

It says `leads EPOCH`, then writes one file after the other through its gate, `written/EPOCH-N`, each after a check.
With `stop` it stops itself (SIGSTOP) between the check and the write of its third. Exit code 7: the leadership is lost.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from stateside.core.errors import LeadershipLost
from stateside.leadership import Candidate, Leadership

LOST = 7
FENCED = 8  # by its gate alone: the check was passed before


def main(root: Path, name: str, lease_s: float, stops: bool) -> int:
    leadership = Candidate(root, name, lease_s=lease_s).wait(lambda: False)
    assert leadership is not None
    print(f"leads {leadership.claim.epoch}", flush=True)
    try:
        work(leadership, stops)
    except LeadershipLost as error:
        print(f"lost {error}", flush=True)
        return LOST
    except OSError as error:
        print(f"fenced {error}", flush=True)
        return FENCED
    return 0


def work(leadership: Leadership, stops: bool) -> None:
    for number in range(100_000):
        leadership.check()
        if stops and number == 2:
            print("stops", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        temporary = leadership.root / "written" / f".{leadership.claim.epoch}-{number}"
        temporary.write_text("")
        temporary.rename(temporary.with_name(temporary.name[1:]))
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), "stop" in sys.argv[4:]))
