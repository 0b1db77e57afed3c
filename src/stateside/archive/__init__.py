"""The archive: Delta tables that sealed rows go to, each batch exactly once. See `table`."""

from stateside.archive.table import ArchiveTable, OpenedTable, TableSpec

__all__ = ["ArchiveTable", "OpenedTable", "TableSpec"]
