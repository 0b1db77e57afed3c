"""A process that appends to a journal on Kafka, for tests that kill or pause it.

    appender.py ADDRESS TOPIC FOLDER ID [STEP kill|stop]

Appends one event of emma's after the other, ID-0, ID-1, …, and prints each id once it has its receipt. At that step of
its second append it kills or stops itself, if it is told to. Ends with the name of the error that it gets.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from stateside.core.errors import StatesideError
from stateside.journal import Event
from stateside.journal.backends.kafka import KafkaWriter, Topic


def main(address: str, topic: str, folder: str, id_: str, step: str = "0", how: str = "kill") -> None:
    number = 0

    def on_step(reached: int) -> None:
        if reached == int(step) and number == 1:
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    with KafkaWriter(Topic(address, topic), Path(folder), on_step=on_step) as writer:
        try:
            while True:
                events = [
                    Event(f"{id_}-{number}{part}", "emma", "call", 0, {"id": f"{id_}-{number}{part}"}) for part in "ab"
                ]
                receipt = writer.append_to("emma", events)
                print(events[0].id, events[1].id, receipt.position, flush=True)
                number += 1
        except StatesideError as error:
            print(type(error).__name__, flush=True)


main(*sys.argv[1:])
