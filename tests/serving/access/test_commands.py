"""`stateside token`: create, list, revoke, rotate, keys, retire."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stateside.cli import main


@pytest.fixture
def token(tmp_path: Path):  # type: ignore[no-untyped-def]
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["token", *arguments, "--dir", str(tmp_path)])

    return run


def test_a_token_is_printed_alone_and_listed_with_roles_and_scope(token) -> None:  # type: ignore[no-untyped-def]
    scope = ("--role", "read", "--role", "sql", "--view", "bill", "--where", "country=AT", "--expires", "2h")
    made = token("create", "ours", *scope, "--customer", "emma")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.strip() not in made.stderr and len(made.stdout.split(".")) == 3
    (listed,) = json.loads(token("list", "--json").stdout)["tokens"]
    assert (listed["name"], listed["roles"], listed["views"]) == ("ours", ["read", "sql"], ["bill"])
    assert listed["where"] == {"country": "AT", "customer": "emma"}
    shown = token("list").stdout
    assert shown.startswith("ours\tread,sql\tviews bill country=AT customer=emma\t")
    assert shown.strip().endswith(listed["id"])


def test_a_token_reads_unless_it_is_told_to_do_more(token) -> None:  # type: ignore[no-untyped-def]
    token("create", "ours")
    assert token("list").stdout.startswith("ours\tread\teverything\t")


def test_tokens_are_revoked_by_name_or_one_by_its_id(token) -> None:  # type: ignore[no-untyped-def]
    for _ in range(3):
        token("create", "ours")
    first, *_ = json.loads(token("list", "--json").stdout)["tokens"]
    assert token("revoke", "ours", "--id", first["id"]).stderr == "1 token of 'ours' revoked.\n"
    assert token("revoke", "ours").stderr == "2 tokens of 'ours' revoked.\n"
    again = token("revoke", "ours")
    assert (again.exit_code, again.stderr.startswith("Error: There is no token 'ours'")) == (1, True)
    assert token("list").stderr == "There are no tokens.\n"


def test_keys_are_rotated_listed_without_their_secrets_and_retired(token, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    token("create", "ours")
    assert "signs from now on" in token("rotate").stderr
    old, new = json.loads(token("keys", "--json").stdout)["keys"]
    assert (old["tokens"], new["tokens"]) == (1, 0)
    shown = token("keys").stdout
    assert shown.splitlines()[1].endswith("0 tokens\tsigns")
    for key in json.loads((tmp_path / "keys.json").read_text())["keys"]:
        assert key["secret"] not in shown + token("keys", "--json").stdout
    assert token("retire", new["kid"]).exit_code == 1, "it signs"
    assert token("retire", old["kid"]).exit_code == 0
    assert token("list").stdout == ""


@pytest.mark.parametrize(
    "wrong",
    [
        ("--where", "country"),
        ("--where", "=AT"),
        ("--where", "a=1", "--where", "a=2"),
        ("--where", "customer=ben", "--customer", "emma"),
        ("--expires", "soon"),
        ("--expires", "500d"),
        ("--role", "operator", "--customer", "emma"),
        ("--role", "root"),
    ],
)
def test_a_token_that_cannot_be_is_refused_and_nothing_is_made(token, tmp_path: Path, wrong: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    assert token("create", "x", *wrong).exit_code in (1, 2)
    assert not (tmp_path / "keys.json").exists()
