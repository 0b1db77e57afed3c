"""The thin PySpark edge: session, the journal as a source, views and their catalogue, the runner, sinks.

This package imports nothing by itself, so that `java` and `jars` can be used where Spark is not installed yet.
"""
