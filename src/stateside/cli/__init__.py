"""The command line: parses, calls, prints.

`group` is the command itself, and loads the module of a command when the command is called; `applications` works in an
application's folder; `serve` is the server; `query` asks servers; `journal` has the upkeep and retention of journals,
`kafka` journals on Kafka, `dev` a local broker and a local Spark cluster; `inspection` shows what a job does; `chaos`
injects faults; `savepoints` takes and restores savepoints; `tokens` manages access; `billing` has the application's
commands and the audit; `tables` prints.
"""

from stateside.cli.group import PORT, main

__all__ = ["PORT", "main"]
