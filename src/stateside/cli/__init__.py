"""The command line: thin. It parses, calls, prints.

`group` is the command itself, `applications` has what works in an application's folder, `serving` the server, `asking`
what asks it, `auditing` what proves it, `journal` and `retention` the upkeep of the journal, `kafka` journals there,
`cluster` a Spark cluster to try things, `chaos` what breaks them, `savepoints` what of a job can be begun again,
`tokens` who may ask, `billing` the commands of that application.
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
