"""Newcomers: customers' first assignments, taken into the book many at once.

No rule can refuse a well-formed first assignment, so that none has to be looked at by itself; a million customers that
are loaded into a journal are there in seconds. Whatever is not surely one is left to `folding`, which knows all rules.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateside.billing.book.accounts import NONE, Accounts
from stateside.billing.book.texts import Bools, Hashes, Texts, text_hashes
from stateside.billing.model import ASSIGN
from stateside.journal.payload import payload_columns

_PAYLOAD = pa.schema([("plan", pa.string()), ("effective_us", pa.int64()), ("holder", pa.string())])


def split_newcomers(references: pa.Table, known: tuple[Accounts, ...]) -> tuple[pa.Table, pa.Table]:
    """First the newcomers among reference events, with their payload as columns; then all others as they are."""
    references = references.combine_chunks()
    assigned = references.filter(pc.equal(references["type"], ASSIGN)).combine_chunks()
    if not assigned.num_rows:
        return _table(assigned, _PAYLOAD.empty_table()), references
    fields = payload_columns(assigned["payload"].chunk(0), _PAYLOAD)
    sure = pc.and_(pc.greater(pc.binary_length(fields["plan"]), 0), pc.greater_equal(fields["effective_us"], 0))
    sure = pa.array(np.asarray(pc.fill_null(sure, False)) & _new(Texts.of(assigned["entity"]), known))
    newcomers = _table(assigned, fields).filter(sure)
    others = pc.invert(pc.is_in(references["offset"], newcomers["offset"].combine_chunks()))
    return newcomers, references.filter(others)


def newcomers_accounts(newcomers: pa.Table, plans: dict[str, int]) -> Accounts:
    """Their accounts, of one assignment each; `plans` has each plan's number."""
    names = pa.concat_arrays([pa.array([], pa.large_string()), *newcomers["entity"].cast(pa.large_string()).chunks])
    holders = newcomers["holder"].cast(pa.large_string())
    known = pa.array(plans, pa.string())
    numbers = pc.index_in(newcomers["plan"], known).cast(pa.int64())
    return Accounts.of_one_each(
        names,
        np.asarray(newcomers["effective_us"]),
        np.asarray(newcomers["offset"]),
        np.array([*plans.values(), NONE])[np.asarray(numbers)],
        pa.concat_arrays([pa.array([], pa.large_string()), *holders.chunks]),
    )


def _table(assigned: pa.Table, fields: pa.Table) -> pa.Table:
    columns = {name: fields[name] for name in _PAYLOAD.names}
    return pa.table({"offset": assigned["offset"], "entity": assigned["entity"], **columns})


def _new(names: Texts, known: tuple[Accounts, ...]) -> Bools:
    """Whether a customer is unknown and has one assignment here; not if a hash comes twice, whosever it is."""
    hashes = text_hashes(names)
    new = _once(hashes)
    for accounts in known:
        new &= accounts.find(names, hashes) == NONE
    return new


def _once(hashes: Hashes) -> Bools:
    order = np.argsort(hashes)
    twice = np.diff(hashes[order]) == 0
    once = np.ones(len(hashes), np.bool_)
    once[order[1:][twice]] = once[order[:-1][twice]] = False
    return once
