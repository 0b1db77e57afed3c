"""`stateside token`: who may ask a server what."""

from __future__ import annotations

import json
from pathlib import Path

import click

from stateside.cli.group import FOLDER

_DIR = click.option("--dir", "folder", required=True, type=FOLDER, help="The folder that is served.")


@click.group()
def token() -> None:
    """Make, list and remove the tokens that a server lets in.

    Without any a server listens on this machine alone, and everybody on it reaches everything. With the first one each
    request needs a token, in the header `Authorization: Bearer TOKEN`; our own commands take it from the environment
    variable STATESIDE_TOKEN. A running server takes changes up at
    once. Tokens travel as they are: beyond this machine put a proxy with TLS in front.
    """


@token.command()
@click.argument("name")
@_DIR
@click.option("--customer", metavar="ID", help="Reaches this customer's bills and invoices only.")
def add(name: str, folder: Path, customer: str | None) -> None:
    """Make a token called NAME and print it: an operator's, or with --customer that customer's.

    It is shown this once. The folder keeps its SHA-256 only, in tokens.json, which others than its owner cannot read.
    """
    from stateside.layout import Layout
    from stateside.serving.access.tokens import TokenFile

    text = TokenFile(Layout(folder).tokens).add(name, customer)
    reach = "everything" if customer is None else f"the bills and invoices of {customer} only"
    click.echo(f"The token {name!r} reaches {reach}. It is not shown again:", err=True)
    click.echo(text)


@token.command(name="list")
@_DIR
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_(folder: Path, as_json: bool) -> None:
    """List the tokens by name, with whom they belong to and when they were made."""
    from stateside.layout import Layout
    from stateside.serving.access.tokens import TokenFile

    tokens = TokenFile(Layout(folder).tokens).tokens()
    if as_json:
        shown = [{"name": each.name, "customer": each.customer, "made": each.made} for each in tokens]
        click.echo(json.dumps({"tokens": shown}, indent=2))
        return
    if not tokens:
        click.echo("There are no tokens.", err=True)
    for each in tokens:
        whose = "operator" if each.customer is None else f"customer {each.customer}"
        click.echo(f"{each.name}\t{whose}\t{each.made}")


@token.command()
@click.argument("name")
@_DIR
def remove(name: str, folder: Path) -> None:
    """Let the token called NAME be valid no longer. A running server refuses it from its next request on."""
    from stateside.layout import Layout
    from stateside.serving.access.tokens import TokenFile

    TokenFile(Layout(folder).tokens).remove(name)
    click.echo(f"The token {name!r} is removed.", err=True)
