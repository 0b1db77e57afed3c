"""The wheel in environments of its own: what each extra gives, and what is refused without the others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from stateside.core.processes import free_port
from tests.packaging.environments import TOP, Environment, build_wheel, export, locked, make_environment, only
from tests.sizes import in_full
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.network]

WRITTEN = TOP / "tests" / "compatibility" / "v0.1.0.tar.xz"
OTHER_EXTRAS = in_full("the bare wheel and [server]")
ENDED_S_MAX = 30
PYTEST = ("iniconfig", "packaging", "pluggy", "pygments", "pytest")  # and all that it needs
REFUSED = "Error: This needs the package {}, which is not installed. Install the extra that has it: pip install '{}'.\n"
ASK = """
import os, sys
from stateside import Client
with Client(sys.argv[1], token=os.environ["STATESIDE_TOKEN"]) as client:
    print(sum(row["orders"] for row in client.rows("spending", "emma").rows))
print(sorted({"numpy", "pyarrow", "lmdb", "duckdb", "pandas", "pyspark"} & set(sys.modules)))
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    made: dict[str, Environment] = {}

    def find(extra: str) -> Environment:
        if extra not in made:
            made[extra] = make_environment(tmp_path_factory.mktemp("environment") / (extra or "bare"), wheel, extra)
        return made[extra]

    return find


def test_the_wheel_has_every_file_of_the_source(wheel: Path) -> None:
    source = TOP / "src"
    written = {str(file.relative_to(source)) for file in source.glob("stateside/**/*") if file.is_file()}
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in written if "__pycache__" not in name} - set(packed.namelist()) == set()


@pytest.fixture
def bare(environment: Callable[[str], Environment]) -> Environment:
    return environment("")


@pytest.fixture
def server(environment: Callable[[str], Environment]) -> Environment:
    return environment("server")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    with tarfile.open(WRITTEN) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def token(server: Environment, folder: Path) -> str:
    return server.stateside("token", "create", "wheel", "--role", "operator", "--dir", str(folder)).stdout.strip()


@pytest.fixture
def url(server: Environment, written: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server of [server], which serves the shop that version 0.1.0 wrote; its token is set."""
    monkeypatch.setenv("STATESIDE_TOKEN", token(server, written / "shop"))
    with serving(server, written / "shop") as address:
        wait_until(lambda: server.stateside("get", "spending/emma", "--url", address).returncode == 0)
        yield address


@contextmanager
def serving(environment: Environment, folder: Path) -> Iterator[str]:
    """The address of a `stateside serve` of this environment, ended at the end."""
    port = free_port()
    command = [str(environment.command), "serve", "--dir", str(folder), "--port", str(port)]
    with (folder.parent / "serve.log").open("w") as log:
        process = subprocess.Popen(command, env=environment.environ(), stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(ENDED_S_MAX)


def test_the_wheel_alone_brings_the_client_and_no_more(bare: Environment) -> None:
    assert bare.installed() == {"stateside", *locked("")}
    assert len(bare.installed()) < 20
    assert bare.stateside("--version").stdout == f"stateside, version {version('stateside')}\n"
    shown = bare.stateside("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "serve" in shown.stdout


def test_other_bytes_than_those_of_the_lock_are_not_installed(bare: Environment) -> None:
    exported = re.sub(r"sha256:[0-9a-f]{4}", "sha256:0000", only(export("--only-group", "dev"), ["pluggy"]))
    with pytest.raises(AssertionError, match="Hash mismatch for `pluggy"):
        bare.install_locked(exported)
    assert "pluggy" not in bare.installed()


def test_the_wheel_alone_asks_a_server(bare: Environment, url: str) -> None:
    asked = bare.stateside("get", "spending/emma", "--json", "--url", url)
    assert asked.returncode == 0, asked.stderr
    assert {row["customer"] for row in json.loads(asked.stdout)["rows"]} == {"emma"}
    assert "emma" in bare.stateside("scan", "spending", "--url", url).stdout
    assert "60" in bare.stateside("rollup", "spending", "country", "de", "--url", url).stdout
    assert "spending" in bare.stateside("views", "--url", url).stdout
    assert "30" in bare.stateside("sql", "SELECT 30 AS n", "--url", url).stdout
    done = bare.run(bare.python, "-c", ASK, url)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[0]) > 0
    assert done.stdout.splitlines()[1] == "[]"


@pytest.mark.parametrize(
    ("command", "extra"),
    [("serve --dir data", "server"), ("append --dir data", "server"), ("run shop:app --dir data", "spark")],
)
def test_the_wheel_alone_refuses_the_rest_with_the_pip_command(
    bare: Environment, tmp_path: Path, command: str, extra: str
) -> None:
    done = bare.stateside(*command.split(), folder=tmp_path)
    assert done.returncode in (1, 3)
    assert done.stderr.endswith(f"pip install 'stateside[{extra}]'.\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_server_works_without_spark(server: Environment, url: str, written: Path) -> None:
    assert not server.installed() & {"pyspark", "confluent-kafka", "fpdf2", "pandas"}
    told = server.stateside("journal", "verify", "--dir", str(written / "shop"), "--json")
    assert json.loads(told.stdout)["findings"] == []
    refused = server.stateside("run", "shop:app", "--dir", str(written / "other"))
    assert refused.stderr.endswith(REFUSED.format("pyspark", "stateside[spark]")), refused.stderr
    refused = server.stateside("append", "--dir", str(written / "other"), "--kafka", "kafka://127.0.0.1:9/topic")
    assert refused.stderr.endswith(REFUSED.format("confluent-kafka", "stateside[kafka]")), refused.stderr


def test_a_server_without_billing_serves_bills_and_refuses_the_pdf(
    server: Environment, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATESIDE_TOKEN", token(server, written / "billing"))
    with serving(server, written / "billing") as address:
        document = f"{address}/v1/invoices/I-000000001"
        wait_until(lambda: _http(document)[0] == 200, lambda: str(_http(document)))
        status, problem = _http(f"{document}.pdf")
    assert status == 503, problem
    assert json.loads(problem)["next_step"].endswith("pip install 'stateside[billing]'")


def _http(url: str) -> tuple[int, str]:
    try:
        answer = httpx.get(url, headers={"Authorization": f"Bearer {os.environ['STATESIDE_TOKEN']}"})
    except httpx.HTTPError as error:
        return 0, str(error)
    return answer.status_code, answer.text


@OTHER_EXTRAS
def test_with_kafka_a_broker_is_asked(environment: Callable[[str], Environment], tmp_path: Path) -> None:
    kafka = environment("kafka")
    assert "pyspark" not in kafka.installed()
    done = kafka.stateside("append", "--dir", str(tmp_path), "--kafka", "kafka://127.0.0.1:9/topic")
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr and "not installed" not in done.stderr, done.stderr


@OTHER_EXTRAS
def test_with_billing_an_invoice_is_a_pdf(
    environment: Callable[[str], Environment], written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing = environment("billing")
    assert "pyspark" not in billing.installed()
    monkeypatch.setenv("STATESIDE_TOKEN", token(billing, written / "billing"))
    with serving(billing, written / "billing") as address:
        document = f"{address}/v1/invoices/I-000000001.pdf"
        wait_until(lambda: _http(document)[0] == 200, lambda: str(_http(document)))
        assert _http(document)[1].startswith("%PDF")


@OTHER_EXTRAS
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_new_project_passes_its_own_tests_once_installed(
    environment: Callable[[str], Environment], wheel: Path, tmp_path: Path
) -> None:
    spark = environment("spark")
    made = spark.stateside("new", "shop", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert tomllib.loads((tmp_path / "shop" / "pyproject.toml").read_text())["project"]["optional-dependencies"] == {
        "test": ["pytest>=8"]
    }
    spark.install_locked(only(export("--only-group", "dev"), PYTEST))
    spark.install("--no-index", f"stateside[spark] @ file://{wheel}", "-e", f"{tmp_path / 'shop'}[test]")
    tested = spark.run(spark.python, "-m", "pytest", "-q", folder=tmp_path / "shop")
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


@OTHER_EXTRAS
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_with_all_the_demo_runs(environment: Callable[[str], Environment], tmp_path: Path) -> None:
    done = environment("all").stateside("demo", "--seconds", "5", "--customers", "20", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Everything adds up." in done.stdout
