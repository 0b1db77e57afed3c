"""`stateside serve CHECKPOINT` at the door: whatever is named wrongly is one sentence with what to do, and no trace."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from stateside.cli import main
from stateside.core.errors import Misdirected
from stateside.core.processes import Child, free_port
from stateside.serving.clients import Client
from tests.poisoned import poisoned
from tests.serving.conftest import wait_until_it_answers
from tests.written import WORDS, Written, WrittenOperator, words

pytestmark = pytest.mark.e2e


WAIT_S_MAX = 90.0


def test_a_server_imports_nothing_from_the_current_folder_nor_does_its_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    """The workers are started by multiprocessing, the statements' process by them."""
    monkeypatch.chdir(poisoned(tmp_path / "here"))
    port = free_port()
    command = [Path(sys.executable).with_name("stateside"), "serve", checkpoint, "--port", port]
    child = Child([str(each) for each in command], tmp_path / "log")
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/v1/views/words/rows/a", child)
        with Client(f"http://127.0.0.1:{port}") as client:
            assert client.sql("SELECT count(*) AS n FROM words").rows == [{"n": 1}]
    finally:
        child.stop()
    assert "current folder" not in child.tail(200)


def serve(*arguments: str | Path, prefix: tuple[str, ...] | None) -> tuple[int, str]:
    """The exit code, and what is said; in a process of its own behind this prefix, or else in this one."""
    given = ["serve", *map(str, arguments), "--port", "0"]
    if prefix is None:
        called = CliRunner().invoke(main, given)
        return called.exit_code, called.stderr
    command = [*prefix, sys.executable, "-m", "stateside", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


def refused(*arguments: str | Path, prefix: tuple[str, ...] | None = None) -> str:
    """The one sentence that is said, and nothing was made."""
    code, errors = serve(*arguments, prefix=prefix)
    assert code == 1, errors
    assert "Traceback" not in errors
    (line,) = errors.splitlines()
    assert line.startswith("Error: ")
    assert line.endswith(".")
    return line


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where replicas go by default."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    return tmp_path / "state-home"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    Written(tmp_path / "jobs" / "words", WORDS).batch(words(a=1))
    return tmp_path / "jobs" / "words"


def wait_for_listener(port: int, child: Child) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert child.returncode() is None, child.tail()
        assert time.monotonic() < deadline, child.tail()
        time.sleep(0.05)


class TestRefused:
    def test_nothing_at_all(self) -> None:
        assert "Name a query's CHECKPOINT, or an application's --dir." in refused()

    def test_a_path_that_does_not_exist(self, tmp_path: Path) -> None:
        told = refused(tmp_path / "typo")
        assert f"There is no such folder ({tmp_path / 'typo'})." in told
        assert "--wait" in told

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert "This is a file" in refused(tmp_path / "file")

    def test_a_folder_of_other_things(self, tmp_path: Path) -> None:
        (tmp_path / "photos" / "2026").mkdir(parents=True)
        assert "Name the query's checkpointLocation." in refused(tmp_path / "photos")

    def test_an_applications_folder(self, tmp_path: Path) -> None:
        (tmp_path / "shop" / "views" / "bill").mkdir(parents=True)
        (tmp_path / "shop" / "views" / "bill" / "catalogue.json").write_text("{}")
        assert f"This is an application's folder ({tmp_path / 'shop'}). Serve it with --dir" in refused(
            tmp_path / "shop"
        )

    def test_a_checkpoints_parent(self, checkpoint: Path) -> None:
        assert f"Below it there are: {checkpoint}." in refused(checkpoint.parent)

    def test_a_part_of_a_checkpoint(self, checkpoint: Path) -> None:
        assert f"Name the whole one: {checkpoint}." in refused(checkpoint / "offsets")

    def test_a_query_without_state(self, tmp_path: Path) -> None:
        Written(tmp_path / "copy").batch()
        assert "keeps no state" in refused(tmp_path / "copy")

    @pytest.mark.parametrize(
        ("name", "value"),
        [("providerClass", "com.example.Store"), ("compression.codec", "lzf"), ("encodingFormat", "protobuf")],
    )
    def test_a_store_a_codec_or_an_encoding_that_is_not_known(self, tmp_path: Path, name: str, value: str) -> None:
        conf = {f"spark.sql.streaming.stateStore.{name}": value}
        Written(tmp_path / "words", WORDS, conf=conf).batch(words(a=1))
        assert value in refused(tmp_path / "words")

    @pytest.mark.parametrize("name", ["offsets/0", "commits/0"])
    def test_a_version_that_is_not_known(self, checkpoint: Path, name: str) -> None:
        (checkpoint / name).write_text("v9\n{}")
        told = refused(checkpoint)
        assert "format 'v9' is not known" in told
        assert name in told

    def test_an_operator_that_is_not_known(self, tmp_path: Path) -> None:
        Written(tmp_path / "words", WrittenOperator([], [("n", "long")], "madeUpIn2030")).batch()
        assert "operator 0 is a madeUpIn2030, which is not known" in refused(tmp_path / "words")

    def test_an_unreadable_folder(self, checkpoint: Path) -> None:
        """Also for root, who may read everything unless that right is given up first."""
        prefix: tuple[str, ...] = ()
        if os.geteuid() == 0:
            if shutil.which("setpriv") is None:
                pytest.skip("there is no setpriv to give up root's rights with")
            prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
        checkpoint.chmod(0)
        try:
            told = refused(checkpoint, prefix=prefix)
        finally:
            checkpoint.chmod(0o755)
        assert "The checkpoint cannot be read: Permission denied" in told
        assert str(checkpoint) in told

    def test_a_folder_for_replicas_in_the_checkpoint(self, checkpoint: Path) -> None:
        assert "never written to" in refused(checkpoint, "--dir", checkpoint / "replicas")

    def test_a_folder_for_replicas_that_is_in_use(self, checkpoint: Path) -> None:
        assert "in use for something else" in refused(checkpoint, "--dir", checkpoint.parent)

    def test_an_address_of_an_unknown_kind(self) -> None:
        assert "s3://" in refused("dbfs://bucket/words")

    @pytest.mark.parametrize(
        ("declared", "told"),
        [
            ("serve = [", "no TOML"),
            ("[views.wrods]", "There is no view 'wrods'"),
            ("[views.words]\nkey = ['wrod']", "exactly these, in any order: ['word']"),
        ],
    )
    def test_a_declaration_that_is_wrong(self, checkpoint: Path, tmp_path: Path, declared: str, told: str) -> None:
        (tmp_path / "views.toml").write_text(declared)
        sentence = refused(checkpoint, "--declare", tmp_path / "views.toml")
        assert told in sentence
        assert "views.toml" in sentence

    def test_a_declaration_that_is_not_there(self, checkpoint: Path, tmp_path: Path) -> None:
        assert "nowhere.toml: No such file" in refused(checkpoint, "--declare", tmp_path / "nowhere.toml")

    @pytest.mark.parametrize("flag", [["--wait"], ["--declare", "x.toml"]])
    def test_what_is_for_checkpoints_on_an_applications_folder(self, tmp_path: Path, flag: list[str]) -> None:
        assert f"{flag[0]} is for a CHECKPOINT" in refused("--dir", tmp_path, *flag)

    @pytest.mark.parametrize("share", ["5/4", "0/2", "half"])
    def test_a_share_that_is_none(self, checkpoint: Path, share: str) -> None:
        assert f"'{share}' is no share" in refused(checkpoint, "--share", share)

    def test_no_refusal_leaves_anything_behind(self, checkpoint: Path, state_home: Path, tmp_path: Path) -> None:
        (tmp_path / "views.toml").write_text("[views.wrods]")
        refused(checkpoint, "--declare", tmp_path / "views.toml")
        refused(checkpoint.parent, prefix=())
        refused(checkpoint, "--share", "5/4")
        assert not state_home.exists()


class TestServed:
    def test_it_says_what_it_serves_and_where_the_replicas_are(self, checkpoint: Path, state_home: Path) -> None:
        told = self.told(["serve", str(checkpoint)], "view words", checkpoint.parent)
        (folder,) = (state_home / "stateside").iterdir()
        assert f"Serving {checkpoint} at http://127.0.0.1:" in told
        assert f"replicas in {folder}" in told
        assert "  view words: by word (string): count (long)" in told

    def test_the_folder_alone_says_which_checkpoint_it_serves(self, checkpoint: Path, tmp_path: Path) -> None:
        folder = str(tmp_path / "replicas")
        self.told(["serve", str(checkpoint), "--dir", folder], "view words", tmp_path)
        told = self.told(["serve", "--dir", folder], "view words", tmp_path)
        assert f"Serving {checkpoint} at" in told

    def test_what_is_not_served_is_told_with_the_reason(self, tmp_path: Path) -> None:
        made_up = WrittenOperator([], [("n", "long")], "madeUpIn2030")
        Written(tmp_path / "words", WORDS, made_up).batch(words(a=1))
        told = self.told(["serve", str(tmp_path / "words")], "not served", tmp_path)
        assert "  not served: words-1: The stateful operator 1 is a madeUpIn2030" in told

    def test_the_shares_of_two_servers_have_every_word_once(self, tmp_path: Path) -> None:
        counts = {f"word{number}": number for number in range(20)}
        Written(tmp_path / "words", WORDS).batch(words(**counts))
        found = [word for share in ("1/2", "2/2") for word in self.words(tmp_path, share, list(counts))]
        assert sorted(found) == sorted(counts)
        assert all(1 < len(self.words(tmp_path, share, list(counts))) < 19 for share in ("1/2", "2/2"))

    def words(self, folder: Path, share: str, asked: list[str]) -> list[str]:
        """Those of the words that the server of a share has."""
        port, replicas = free_port(), folder / f"replicas-{share[0]}"
        command = [sys.executable, "-m", "stateside", "serve", str(folder / "words"), "--share", share]
        child = Child([*command, "--dir", str(replicas), "--port", str(port)], folder / "server.log")
        try:
            wait_for_listener(port, child)
            with Client(f"http://127.0.0.1:{port}", direct=True) as client:
                return [word for word in asked if self.has(client, word)]
        finally:
            child.stop()

    def has(self, client: Client, word: str) -> bool:
        """Whether the server has the word; it never says that there is no row of another share's."""
        try:
            return bool(client.rows("words", word, wait_ms=20_000).rows)
        except Misdirected:
            return False

    def test_no_application_runs_in_such_a_folder(self, checkpoint: Path, tmp_path: Path) -> None:
        folder = str(tmp_path / "replicas")
        self.told(["serve", str(checkpoint), "--dir", folder], "view words", tmp_path)
        command = [sys.executable, "-m", "stateside", "run", "stateside.billing.pipeline:app", "--dir", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert "serves a checkpoint that is not this application's" in done.stderr
        assert done.returncode == 3

    def told(self, arguments: list[str], until: str, logs: Path) -> str:
        """What a server says up to this text; it is stopped then."""
        command = [sys.executable, "-m", "stateside", *arguments, "--port", str(free_port())]
        child = Child(command, logs / "server.log")
        try:
            deadline = time.monotonic() + WAIT_S_MAX
            while until not in child.tail():
                assert child.returncode() is None, child.tail()
                assert time.monotonic() < deadline, child.tail()
                time.sleep(0.05)
            return child.tail()
        finally:
            child.stop()
