"""Core: the error tree, positions, clock, storage, layout of a folder and child processes; imports no other package."""

from typing import TYPE_CHECKING

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside.core.clock import Clock, SystemClock
    from stateside.core.json_file import JsonFile
    from stateside.core.layout import Layout, ViewLayout
    from stateside.core.positions import Position
    from stateside.core.progress import Watch, nobody
    from stateside.core.storage import Storage, try_lock, write_atomically
else:
    __getattr__ = lazy(
        __name__,
        {
            "stateside.core.clock": ["Clock", "SystemClock"],
            "stateside.core.json_file": ["JsonFile"],
            "stateside.core.layout": ["Layout", "ViewLayout"],
            "stateside.core.positions": ["Position"],
            "stateside.core.progress": ["Watch", "nobody"],
            "stateside.core.storage": ["Storage", "try_lock", "write_atomically"],
        },
    )

__all__ = [
    "Clock",
    "JsonFile",
    "Layout",
    "Position",
    "Storage",
    "SystemClock",
    "ViewLayout",
    "Watch",
    "nobody",
    "try_lock",
    "write_atomically",
]
