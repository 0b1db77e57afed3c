"""Views as SQL text.

@app.view(key=["customer"])
def spending(events):
    return stateside.sql("select customer, sum(amount) as total from events group by customer", events=events)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def sql(text: str, **frames: DataFrame) -> DataFrame:
    """The DataFrame that this SQL text means, over the given frames by their names.

    Names are resolved now; nothing of them is left behind in the session.
    """
    assert frames, "give at least one frame by name: sql(text, events=events)"
    session = next(iter(frames.values())).sparkSession
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    try:
        return session.sql(text)
    finally:
        for name in frames:
            session.catalog.dropTempView(name)
