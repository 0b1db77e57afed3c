"""The PySpark edge: session, sources, views and their catalogue, runner, sinks.

The package itself imports nothing, so `java` and `jars` work where Spark is not installed yet.
"""
