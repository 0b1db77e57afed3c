"""An order saga: queries that react to each other through the journal, until every order is confirmed or undone.

    order-placed ─► payment-requested ─► payment-confirmed ─► order-confirmed
                                    └──► payment-refused ───► stock-released      (the compensation)

stateside append --dir orders-data orders.jsonl
stateside run examples.orders:app --dir orders-data
stateside serve --dir orders-data
stateside get orders/o-1

Each arrow is a reaction: it reads events of one kind and emits events of another kind, each exactly once, whatever
crashes. Nobody waits for anybody; the journal is all that they share.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import stateside
from stateside import sinks, sources

LIMIT_MICROS = 100_000_000  # the bank pays up to 100.00

STATES = {
    "order-placed": "1 placed",
    "payment-requested": "2 payment requested",
    "payment-confirmed": "3 payment confirmed",
    "payment-refused": "3 payment refused",
    "order-confirmed": "4 confirmed",
    "stock-released": "4 cancelled",
}

app = stateside.App("orders", fields="amount_micros long")


def emit(events: DataFrame, type: Column) -> DataFrame:
    """The events that answer these: of another type, about the same order, at the same time, with the same amount."""
    return events.select("entity", type.alias("type"), "time", "amount_micros")


@app.reaction(source=sources.journal(types=["order-placed"]), sink=sinks.journal())
def shop(orders: DataFrame) -> DataFrame:
    """Asks the bank for the money of every order."""
    return emit(orders, F.lit("payment-requested"))


@app.reaction(source=sources.journal(types=["payment-requested"]), sink=sinks.journal())
def bank(requests: DataFrame) -> DataFrame:
    """Pays what is within the limit."""
    paid = F.col("amount_micros") <= LIMIT_MICROS
    return emit(requests, F.when(paid, "payment-confirmed").otherwise("payment-refused"))


@app.reaction(source=sources.journal(types=["payment-confirmed", "payment-refused"]), sink=sinks.journal())
def settle(payments: DataFrame) -> DataFrame:
    """Confirms a paid order; gives the goods of any other back to the stock."""
    paid = F.col("type") == "payment-confirmed"
    return emit(payments, F.when(paid, "order-confirmed").otherwise("stock-released"))


@app.view(key=["order"])
def orders(events: DataFrame) -> DataFrame:
    """Where each order stands."""
    state = F.create_map(*(F.lit(text) for pair in STATES.items() for text in pair))[F.col("type")]
    steps = events.select(F.col("entity").alias("order"), state.alias("state"), "amount_micros")
    return steps.groupBy("order").agg(
        F.max("state").alias("state"), F.count("*").alias("steps"), F.max("amount_micros").alias("amount_micros")
    )
