"""Word count, the smallest application: how often each word was said, live.

stateside append --dir words-data examples/word_count.jsonl
stateside run examples.word_count:app --dir words-data
stateside serve --dir words-data
stateside get words/stream
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import stateside

app = stateside.App("words", fields="text string")


@app.view(key=["word"])
def words(events: DataFrame) -> DataFrame:
    """Each word with the number of times it was said."""
    said = events.select(F.explode(F.split(F.lower("text"), r"\W+")).alias("word")).where("word <> ''")
    return said.groupBy("word").agg(F.count("*").alias("times"))
