"""The proxy for the tests through one: found, fetched, or said what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.setup.test_setup import tool

proxy = tool("proxy")


def test_one_that_is_named_is_taken_before_one_that_was_fetched(tmp_path: Path) -> None:
    fetched = tmp_path / "usr" / "sbin" / "nginx"
    fetched.parent.mkdir(parents=True)
    fetched.write_text("")
    assert proxy.nginx({"STATESIDE_NGINX": "/their/own"}, tmp_path) == "/their/own"
    assert proxy.nginx({"PATH": "/nowhere"}, tmp_path) is not None


def test_where_none_can_be_fetched_it_says_what_to_do_and_looks_again_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(proxy, "nginx", lambda environ: None)
    stamp = tmp_path / "stamp"
    assert proxy.main(stamp) == 0, "everything else is tested all the same"
    assert "apt install nginx" in capsys.readouterr().out
    assert not stamp.exists()
