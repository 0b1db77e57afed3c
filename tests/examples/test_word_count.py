"""The example word count, against Python's own."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.word_count import app
from stateside.core.layout import Layout
from stateside.journal import Event
from stateside.testing import append, rows, run_to

pytestmark = pytest.mark.spark

SAID = [json.loads(line) for line in (Path(__file__).parents[2] / "examples/word_count.jsonl").read_text().splitlines()]


def test_words_are_counted_as_python_counts_them(spark: SparkSession, layout: Layout) -> None:
    append(layout, [Event(e["id"], e["entity"], e["type"], 0, e["payload"]) for e in SAID])
    run_to(app, layout, spark)
    words = Counter(word for e in SAID for word in re.split(r"\W+", e["payload"]["text"].lower()) if word)
    assert {row["word"]: row["times"] for row in rows(layout, "words")} == words
