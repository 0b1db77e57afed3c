"""A word count as anybody writes it: it knows nothing of Stateside. Arguments: files, checkpoint, Spark's settings."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

incoming, checkpoint, *settings = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
spark = builder.config("spark.sql.shuffle.partitions", 3).getOrCreate()
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(incoming)
words = lines.select(F.explode(F.split("value", " ")).alias("word")).groupBy("word").count()
query = words.writeStream.outputMode("update").format("noop").option("checkpointLocation", checkpoint).start()
query.awaitTermination()
