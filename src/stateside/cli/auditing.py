"""`stateside audit`: recomputes every bill, and says where the books are wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from stateside.cli.asking import client_of
from stateside.cli.bars import bar
from stateside.cli.group import FOLDER


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--url", help="Ask this server for a sample of live answers too, like http://127.0.0.1:8471.")
@click.option("--full", is_flag=True, help="Read the whole journal again, whatever was audited before.")
def audit(folder: Path, as_json: bool, url: str | None, full: bool) -> None:
    """Recompute every bill of the application in DIR from its journal, and compare with all that was made of it.

    It proves that the journal's events are the open bills, invoices, notes, dead letters and duplicates, to the micro,
    and that no document is missing, doubled or wrong. It may run beside the system at any time, and goes on where the
    last audit ended. The exit code is 1 if anything is wrong, with the first differences as sentences.
    """
    from stateside.billing.audit import audit as run_audit
    from stateside.billing.audit import live_rows
    from stateside.layout import Layout

    layout = Layout(folder.absolute())
    with bar("folding the journal") as watch:
        if url is None:
            found = run_audit(layout, live_rows(layout), full=full, watch=watch)
        else:
            with client_of((url,)) as client:
                found = run_audit(
                    layout,
                    live_rows(layout),
                    ask=lambda customer, floor: dict(client.rows("bill", customer, min_position=floor).document),
                    get=lambda path, floor: client.get(path, min_position=str(floor)),
                    full=full,
                    watch=watch,
                )
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else "\n".join(found.lines()))
    sys.exit(0 if found.ok else 1)
