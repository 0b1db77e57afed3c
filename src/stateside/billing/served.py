"""What billing brings to the server of its folder: answers, tables and pages. Without bills they show nothing."""

from __future__ import annotations

from typing import Final

from stateside.serving.extension import Extension

EXTENSION: Final = Extension(
    routes=("stateside.billing.answers.api:routes",),
    tables=("stateside.billing.answers.gate:sql_tables",),
    pages=("stateside.billing.pages",),
)
