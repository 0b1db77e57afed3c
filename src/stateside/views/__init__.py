"""Views: catalogue, aggregates, rollups, computed columns, savepoints, and inference from a foreign checkpoint."""

from typing import TYPE_CHECKING

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside.views.catalogue import Catalogue, Computed
    from stateside.views.functions import KnownFunctions, extend_functions
else:
    __getattr__ = lazy(
        __name__,
        {
            "stateside.views.catalogue": ["Catalogue", "Computed"],
            "stateside.views.functions": ["KnownFunctions", "extend_functions"],
        },
    )

__all__ = [
    "Catalogue",
    "Computed",
    "KnownFunctions",
    "extend_functions",
]
