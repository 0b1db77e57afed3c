"""The command line: parses, calls, prints.

`group` is the command itself; `applications` works in an application's folder; `serve` is the server; `query` asks
servers; `journal` has the upkeep and retention of journals, `kafka` journals on Kafka and a local broker, `dev` a local
Spark cluster; `chaos` injects faults; `savepoints` takes and restores savepoints; `tokens` manages access; `billing`
has the application's commands and the audit; `tables` and `billing_tables` print.
"""

from stateside.cli.applications import append, dead_letters, demo, doctor, new, run
from stateside.cli.billing import audit, billing
from stateside.cli.chaos import chaos
from stateside.cli.dev import dev_cluster
from stateside.cli.group import PORT, main
from stateside.cli.journal import archive, drop, journal, merge, readers, trim
from stateside.cli.kafka import create, dev
from stateside.cli.query import get, locate, rollup, scan, sql, sum_, views, watch
from stateside.cli.savepoints import savepoint
from stateside.cli.serve import serve
from stateside.cli.tokens import token

__all__ = ["PORT", "main"]

for command in (
    append,
    audit,
    billing,
    chaos,
    dead_letters,
    demo,
    dev,
    doctor,
    get,
    journal,
    locate,
    new,
    rollup,
    run,
    savepoint,
    scan,
    serve,
    sql,
    sum_,
    token,
    views,
    watch,
):
    main.add_command(command)
for command in (archive, create, drop, merge, readers, trim):
    journal.add_command(command)
dev.add_command(dev_cluster)
