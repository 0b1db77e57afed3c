"""The command `stateside` itself: error output, and the common parts of all commands."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from stateside.core.errors import InputError, SetupError, StatesideError, TokenInvalid, ViewBroken
from stateside.core.extras import explained
from stateside.core.processes import EXIT_FINAL, wanted_umask

PORT = 8471
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
TOKEN_VARIABLE = "STATESIDE_TOKEN"  # not an option: the process list shows options to every user
_TOKEN = f"Set the environment variable {TOKEN_VARIABLE} to a token of that server; `stateside token create` makes one"


COMMANDS = {  # the module of each command, loaded when the command is called
    "advise": "applications",
    "append": "applications",
    "apply": "applications",
    "audit": "billing",
    "billing": "billing",
    "chaos": "chaos",
    "check": "applications",
    "dead-letters": "applications",
    "demo": "applications",
    "dev": "dev",
    "doctor": "applications",
    "drop-generation": "applications",
    "get": "query",
    "inspect": "inspection",
    "journal": "journal",
    "locate": "query",
    "new": "applications",
    "rescale": "applications",
    "rollback": "applications",
    "rollup": "query",
    "run": "applications",
    "savepoint": "savepoints",
    "scan": "query",
    "serve": "serve",
    "sql": "query",
    "sum": "query",
    "token": "tokens",
    "views": "query",
    "watch": "query",
}


class _Group(click.Group):
    """Shows an error as one sentence, without a stack trace (unless --verbose), and Ctrl-C as `Stopped.`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"stateside.cli.{COMMANDS[cmd_name]}")
        return next(each for each in vars(module).values() if isinstance(each, click.Command) and each.name == cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with explained():
                return super().invoke(ctx)
        except TokenInvalid as error:
            raise _failure(ctx, TokenInvalid(error.what, where=error.where, next_step=_TOKEN).sentence()) from error
        except StatesideError as error:
            final = ctx.invoked_subcommand in ("run", "apply") and isinstance(
                error, InputError | SetupError | ViewBroken
            )
            raise _failure(ctx, str(error), final=final) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # click ends quietly on a closed pipe
                raise
            raise _failure(ctx, _sentence(error)) from error
        except KeyboardInterrupt:
            click.echo("Stopped.", err=True)
            sys.exit(130)


class _FinalFailure(click.ClickException):
    """A failure that would recur; supervisors recognise it by its exit code."""

    exit_code = EXIT_FINAL


def _failure(ctx: click.Context, sentence: str, *, final: bool = False) -> click.ClickException:
    """The error for click to show in one line; with --verbose also prints the traceback of the present exception."""
    if ctx.params.get("verbose"):
        traceback.print_exc()
    return _FinalFailure(sentence) if final else click.ClickException(sentence)


def _sentence(error: OSError) -> str:
    """An operating system error for people: the file and the reason."""
    reason = error.strerror or str(error)
    next_step = _NEXT_STEPS.get(error.errno or 0, "")
    return (f"{error.filename}: {reason}." if error.filename else f"{reason}.") + next_step


_RIGHTS = " Give this process's user the right to read and write there, or name another place."
_NEXT_STEPS = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: " Mount it so that it can be written to, or name another place.",
    errno.ENOSPC: " Make room there, then try again.",
}


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stateside")
@click.option("--verbose", is_flag=True, help="Log more, and show where an error came from.")
def main(verbose: bool) -> None:
    """The stream processor as a database, on Spark.

    Try `stateside demo` first: the whole system, for a minute, on this machine.
    """
    os.umask(wanted_umask(os.environ))  # inherited by servers, workers and Spark's JVM
    handler = logging.StreamHandler(sys.stderr)
    if not verbose:  # the runner reports errors in a sentence; py4j logs Java's stack traces through the root logger
        handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler])
