"""Inspection of jobs, running or dead, by their files alone: what each batch and state costs, and findings.

`batch_reports` reads the progress that the runner keeps beside a checkpoint, `checkpoint_files` the names, sizes and
times of any checkpoint's files, `examination` makes one `Inspection` of them, `rules` has the findings, and
`presentation` the tables and the HTML page. Read only; no key is read.
"""

from typing import TYPE_CHECKING

from stateside.core.extras import lazy

if TYPE_CHECKING:
    from stateside.inspection.examination import Inspection, ViewInspection, inspect
    from stateside.inspection.rules import Finding, findings
else:
    __getattr__ = lazy(
        __name__,
        {
            "stateside.inspection.examination": ["Inspection", "ViewInspection", "inspect"],
            "stateside.inspection.rules": ["Finding", "findings"],
        },
    )

__all__ = ["Finding", "Inspection", "ViewInspection", "findings", "inspect"]
