"""The archive: Delta tables of sealed rows, each batch stored exactly once. See `table`."""

from typing import TYPE_CHECKING

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside.archive.table import ArchiveTable, OpenedTable, TableSpec
    from stateside.archive.table_reader import DataFile, FollowedTable
else:
    __getattr__ = lazy(
        __name__,
        {
            "stateside.archive.table": ["ArchiveTable", "OpenedTable", "TableSpec"],
            "stateside.archive.table_reader": ["DataFile", "FollowedTable"],
        },
    )

__all__ = [
    "ArchiveTable",
    "DataFile",
    "FollowedTable",
    "OpenedTable",
    "TableSpec",
]
