"""`make docs` builds the site without a warning: no broken link or heading, and nothing from the internet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_its_pages_load_nothing_from_the_internet(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(\w+:)?//[^\"]*", page.read_text())
        loaded += re.findall(r"<link[^>]*\shref=\"(?:\w+:)?//[^\"]*", page.read_text())
        assert not loaded, page


def test_its_reference_has_the_commands_the_routes_the_errors_and_the_public_names(site: Path) -> None:
    for page, names in {
        "cli": ("stateside serve", "stateside billing plan publish", "--take-over"),
        "http": ("GET /v1/views/{view}/rows/{key}", "POST /v1/events", "GET /v1/customers/{customer}/bill", "wait_ms"),
        "errors": ("not-fresh-enough", "HTTP 503", "Send several requests."),
        "api": ("stateside.App", "run_to", "position: Position | None"),
    }.items():
        text = re.sub(r"<[^>]+>", "", (site / "reference" / f"{page}.html").read_text()).replace("&gt;", ">")
        assert [name for name in names if name not in text] == []
