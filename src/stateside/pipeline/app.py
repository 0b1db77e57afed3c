"""Applications: views declared in PySpark, a function each.

    app = App("shop", fields="country string, amount_micros long")

    @app.view(key=["entity", "country"])
    def spending(events):
        return events.groupBy("entity", "country").agg(F.sum("amount_micros").alias("total"))

Declaring costs nothing: Spark is first imported when the application runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from stateside.errors import StatesideError, ViewInvalid
from stateside.layout import Layout

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)

Function = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True)
class BatchId:
    """Which batch of which query: the name under which a sink remembers what it has written."""

    query: str
    batch: int


class Sink(Protocol):
    """Takes the rows that leave a view's state for good, batch by batch."""

    def write(self, rows: pa.Table, batch: BatchId) -> None:
        """Store the rows, once: called again with a batch that is already stored, it changes nothing.

        Called before Spark commits the batch, so a crash between the two repeats the call with the same rows.
        """


@dataclass(frozen=True, slots=True)
class View:
    """A declared view: the key it is asked by, the function that folds events into it, and where closed rows go."""

    name: str
    key: tuple[str, ...]
    function: Function
    sink: Callable[[Layout], Sink] | None = None


class App:
    """Several views over one journal. `fields` names the payload's fields that the views use, with types (DDL)."""

    def __init__(self, name: str, *, fields: str = "") -> None:
        self.name = name
        self.fields = fields
        self.views: dict[str, View] = {}

    def view(
        self, *, key: Sequence[str], sink: Callable[[Layout], Sink] | None = None
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as a view of its own name.

        `key` has the grouping columns in the order that readers ask by. With a `sink` the view closes its rows when the
        watermark has passed them (append mode): they leave the state and go there.
        """

        def declare(function: Function) -> Function:
            self._add(View(function.__name__, tuple(key), function, sink))
            return function

        return declare

    def _add(self, view: View) -> None:
        if not _NAME.fullmatch(view.name):
            raise ViewInvalid(f"{view.name!r} cannot be the name of a view", next_step="Use a to z, 0 to 9 and _")
        if view.name in self.views:
            raise ViewInvalid(f"The application {self.name!r} has two views of the name {view.name!r}")
        if not view.key:
            raise ViewInvalid(f"The view {view.name!r} has no key", next_step="Name its grouping columns: key=[…]")
        self.views[view.name] = view


def load(target: str) -> App:
    """The application that `module:attribute` names."""
    module, _, attribute = target.partition(":")
    advice = "Name it like shop:app, with the folder of shop.py on PYTHONPATH or current"
    try:
        found = getattr(import_module(module), attribute or "app")
    except StatesideError:
        raise
    except (ModuleNotFoundError, AttributeError, ValueError, TypeError) as error:
        raise ViewInvalid(f"There is no application {target!r}: {error}", next_step=advice) from error
    except Exception as error:
        raise ViewInvalid(
            f"The module of {target!r} fails: {type(error).__name__}: {error}", next_step="Mend it, then run again"
        ) from error
    if not isinstance(found, App):
        raise ViewInvalid(f"{target!r} is a {type(found).__name__}, not an App", next_step=advice)
    return found
