from __future__ import annotations

from pathlib import Path

import pytest

from stateside.core.layout import Layout

from .asking import Asker, shop


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Asker:
    """Asks a shop with one view, which nobody changes."""
    layout = Layout(tmp_path_factory.mktemp("shop"))
    shop(layout)
    return Asker(layout)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "shop")
