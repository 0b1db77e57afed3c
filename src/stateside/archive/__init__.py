"""The archive: Delta tables of sealed rows, each batch stored exactly once. See `table`."""

from stateside.archive.table import ArchiveTable, OpenedTable, TableSpec

__all__ = ["ArchiveTable", "OpenedTable", "TableSpec"]
