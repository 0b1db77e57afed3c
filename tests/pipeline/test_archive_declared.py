"""An archive that is declared again on an old folder: the state knows nothing of it. Without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stateside.core.errors import ViewInvalid
from stateside.core.layout import Layout
from stateside.pipeline.declaration import keep
from stateside.views.catalogue import Catalogue
from tests.replica import spark_job


def test_a_view_may_get_an_archive_or_another_one_on_an_old_folder(layout: Layout) -> None:
    job = spark_job.Job(layout.view("spending"))
    job.run({("emma", "de"): (1, 5)})
    for archive in ("closed", "closed_too", None):
        keep(replace(spark_job.catalogue(), archive=archive), "plan", job.view, accept_changes=False)
        assert Catalogue.load(job.view.catalogue).archive == archive
    other = replace(spark_job.catalogue(), columns=spark_job.catalogue().columns[:1], archive="closed")
    with pytest.raises(ViewInvalid, match="its column 'total' is gone"):
        keep(other, "plan", job.view, accept_changes=False)
