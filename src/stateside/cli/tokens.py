"""`stateside token`: access to a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stateside.cli.group import FOLDER
from stateside.core.errors import RequestInvalid

if TYPE_CHECKING:
    from stateside.serving.access.principal import Role
    from stateside.serving.access.tokens import IssuedToken, Issuer

_DIR = click.option("--dir", "folder", required=True, type=FOLDER, help="The folder that is served.")
_JSON = click.option("--json", "as_json", is_flag=True, help="For machines.")
_ROLES = ("read", "sql", "append", "operator")


@click.group()
def token() -> None:
    """Create, list and revoke a server's access tokens, and rotate the keys that sign them.

    Without tokens a server listens on this machine only, and every local user reaches everything. From the first token
    on each request needs a token in the header `Authorization: Bearer TOKEN`; the stateside commands read it from the
    environment variable STATESIDE_TOKEN. A running server applies all changes at its next request.
    """


@token.command()
@click.argument("name")
@_DIR
@click.option("--role", "roles", multiple=True, type=click.Choice(_ROLES), help="What it opens; several times. [read]")
@click.option("--customer", metavar="ID", help="Reaches this customer's data only: --where customer=ID.")
@click.option("--view", "views", multiple=True, metavar="VIEW", help="Reaches this view; several times. [all]")
@click.option("--where", multiple=True, metavar="COLUMN=VALUE", help="Reaches rows with this value; several times.")
@click.option("--entity", "entities", multiple=True, metavar="NAME", help="May append its events; several times.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="May append such events; several times.")
@click.option(
    "--expires", default="30d", show_default=True, metavar="TIME", help="Valid for so long: 90s, 15m, 24h, 30d."
)
def create(
    name: str,
    folder: Path,
    roles: Sequence[Role],
    customer: str | None,
    views: Sequence[str],
    where: Sequence[str],
    entities: Sequence[str],
    types: Sequence[str],
    expires: str,
) -> None:
    """Create a token for NAME and print it, this once.

    read: rows, changes, bills and documents; sql: statements; append: events; operator: everything. A view without a
    column of --where is refused. Several tokens may have the same name, that of their principal.

    A scoped token (--customer, --where, --view, --entity) with the role append needs --type: it appends only events of
    these types, about its --entity, by default its --customer, with ids like @ENTITY/NAME. Its positions are opaque.
    """
    from stateside.serving.access.tokens import parse_life_s

    scope = _parse_where([*where, *([f"customer={customer}"] if customer is not None else [])])
    if customer is not None and "append" in roles:
        entities = entities or (customer,)
    text, issued = _issuer(folder).create(
        name,
        roles or ("read",),
        views=views or None,
        where=scope,
        entities=entities or None,
        types=types or None,
        life_s=parse_life_s(expires),
    )
    click.echo(f"A token for {_described(issued)}. It is not shown again:", err=True)
    click.echo(text)


@token.command(name="list")
@_DIR
@_JSON
def list_(folder: Path, as_json: bool) -> None:
    """List the valid tokens: name, roles, scope, end, id. The tokens themselves are not stored."""
    from dataclasses import asdict

    tokens = _issuer(folder).tokens()
    if as_json:
        click.echo(json.dumps({"tokens": [asdict(each) for each in tokens]}, indent=2))
        return
    if not tokens:
        click.echo("There are no tokens.", err=True)
    for each in tokens:
        click.echo("\t".join((each.name, ",".join(each.roles), _scope(each), each.expires, each.id)))


@token.command()
@click.argument("name")
@_DIR
@click.option("--id", "id_", metavar="ID", help="Only the one with this id, as the list has it.")
def revoke(name: str, folder: Path, id_: str | None) -> None:
    """Revoke the tokens of NAME. A running server refuses revoked tokens from its next request on."""
    count = _issuer(folder).revoke(name, id_)
    click.echo(f"{count} token{'s' if count > 1 else ''} of {name!r} revoked.", err=True)


@token.command()
@_DIR
def rotate(folder: Path) -> None:
    """Create a new key for signing. Tokens signed by older keys stay valid until those keys are retired."""
    key = _issuer(folder).rotate()
    click.echo(f"The key {key.kid} signs from now on.", err=True)


@token.command()
@_DIR
@_JSON
def keys(folder: Path, as_json: bool) -> None:
    """List the keys by id, oldest first, with their creation time and number of valid tokens."""
    found = _issuer(folder).listed_keys()
    if as_json:
        shown = [{"kid": key.kid, "made": key.made, "tokens": count} for key, count in found]
        click.echo(json.dumps({"keys": shown}, indent=2))
        return
    for key, count in found:
        click.echo(f"{key.kid}\t{key.made}\t{count} tokens" + ("\tsigns" if key is found[-1][0] else ""))


@token.command()
@click.argument("kid")
@_DIR
def retire(kid: str, folder: Path) -> None:
    """Remove the old key KID. The tokens signed with KID become invalid."""
    _issuer(folder).retire(kid)
    click.echo(f"The key {kid} is retired.", err=True)


def _issuer(folder: Path) -> Issuer:
    from stateside.core.layout import Layout
    from stateside.serving.access.tokens import Issuer

    return Issuer(Layout(folder))


def _parse_where(texts: Sequence[str]) -> dict[str, str]:
    """The columns and their values; RequestInvalid for a column without a value, or with two."""
    pairs = [text.partition("=") for text in texts]
    for column, equals, _ in pairs:
        if not column or not equals:
            raise RequestInvalid(f"{column!r} is not COLUMN=VALUE", next_step="Write it like --where country=AT")
    scope = {column: value for column, _, value in pairs}
    if len(scope) != len(pairs):
        raise RequestInvalid("A column is named twice: no row has two values in it", next_step="Name each once")
    return scope


def _described(issued: IssuedToken) -> str:
    return f"{issued.name!r}, role {', '.join(issued.roles)}, {_scope(issued)}, until {issued.expires}"


def _scope(issued: IssuedToken) -> str:
    """The scope in words."""
    where = " ".join(f"{column}={value}" for column, value in issued.where.items())
    views = "" if issued.views is None else f"views {','.join(issued.views)}"
    limits = {name: names for name, names in (issued.appends or {}).items() if names is not None}
    appends = " ".join(f"{name} {','.join(names)}" for name, names in limits.items())
    return " ".join(part for part in (views, where, appends) if part) or "everything"
