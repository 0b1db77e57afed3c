"""What docs/journal-in-spark.md shows is run, as it stands there."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "journal-in-spark.md").read_text()
BLOCKS = re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.spark
def test_the_pages_example_holds(spark: SparkSession, tmp_path: Path) -> None:
    ((name, code),) = BLOCKS
    there = code.replace('"journal")', f'"{tmp_path}/journal")')  # Spark's workers do not follow this process
    exec(compile(there, f"docs/journal-in-spark.md, {name}", "exec"), {"spark": spark})
    assert PAGE.count("```python") == 1
