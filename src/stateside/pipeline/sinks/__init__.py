"""Sinks: where a query's rows go, each batch once.

`sink` is the contract, `guarantee` what holds when a batch comes a second time; each other module is one kind of sink,
with its protocol numbered in its docstring.
"""
