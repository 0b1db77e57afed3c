"""Both clients have the methods of `Calls`, with the same parameters and docstrings."""

from __future__ import annotations

import inspect

import pytest

from stateside.serving.clients import AsyncClient, Client
from stateside.serving.clients.calls import Calls

METHODS = [name for name in vars(Calls) if not name.startswith("_")]
ITEMS = {"scan": "Answer", "watch": "Change"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_documented_as_its_call_and_says_what_it_returns(name: str) -> None:
    call = getattr(Calls, name)
    for method in (getattr(Client, name), getattr(AsyncClient, name)):
        assert (method.__name__, method.__doc__) == (name, call.__doc__)
        assert inspect.signature(method).parameters == inspect.signature(call).parameters
    result = str(inspect.signature(call).return_annotation)[len("Steps[") : -1]
    told = [str(inspect.signature(getattr(kind, name)).return_annotation) for kind in (Client, AsyncClient)]
    item = ITEMS.get(name)
    assert told == ([f"Iterator[{item}]", f"AsyncIterator[{item}]"] if item else [result, result])


def test_both_clients_have_all_methods() -> None:
    for kind in (Client, AsyncClient):
        assert {name for name in vars(kind) if name[0] != "_"} == {*METHODS, "close"}
    assert [name for name in METHODS if not inspect.iscoroutinefunction(getattr(AsyncClient, name))] == [*ITEMS]
