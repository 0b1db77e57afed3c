"""The command line: thin. It parses, calls, prints.

`group` is the command itself, `applications` has what works in an application's folder, `serving` the server, `asking`
what asks it, `auditing` what proves it.
"""

from stateside.cli.applications import append, demo, doctor, new, run
from stateside.cli.asking import get, rollup, sum_
from stateside.cli.auditing import audit
from stateside.cli.group import PORT, main
from stateside.cli.serving import serve

__all__ = ["PORT", "main"]

for command in (append, audit, demo, doctor, get, new, rollup, run, serve, sum_):
    main.add_command(command)
