from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.sizes import in_full, not_in_fast

TOP = Path(__file__).resolve().parents[2]
HOSTS = ("pypi\\.org", "pythonhosted\\.org", "maven\\.org", "maven\\.apache\\.org/maven2")
MACHINE_PATH = re.compile(r"""(?<![\w.}~*<>-])/(root|work|tmp|home/\w+)/\w""")
REGISTRY_HOST = re.compile("|".join(HOSTS))
NOWHERE = "http://127.0.0.1:9/simple"


def tool(name: str) -> ModuleType:
    """A script of tools/, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, TOP / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup, lock = tool("setup"), tool("lock")


def fresh_copy(folder: Path) -> Path:
    """What `make setup` needs of the repository, and no .venv."""
    for name in ("Makefile", "pyproject.toml", "uv.lock"):
        shutil.copy2(TOP / name, folder / name)
    shutil.copytree(TOP / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run_setup(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/setup.py"]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )


class TestLocks:
    def test_the_locks_name_no_host(self) -> None:
        for file in ("uv.lock", "tools/bootstrap.lock"):
            assert not re.search(r"https?://", (TOP / file).read_text()), file

    def test_every_file_in_the_lock_has_a_hash(self) -> None:
        packages = tomllib.loads((TOP / "uv.lock").read_text())["package"]
        for package in (each for each in packages if each["name"] != "stateside"):
            files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
            assert files and all(file["hash"].startswith("sha256:") for file in files), package["name"]

    def test_the_bootstrap_lock_pins_uv_alone_and_by_hash(self) -> None:
        text = (TOP / "tools" / "bootstrap.lock").read_text()
        assert re.findall(r"^[\w-]+==\S+", text, re.MULTILINE) == re.findall(r"^uv==\S+", text, re.MULTILINE)
        assert text.count("--hash=sha256:") > 10

    def test_locking_takes_the_hosts_out_and_leaves_files_and_hashes(self) -> None:
        full = (
            '{ registry = "https://h.example/simple" }\n{ url = "https://h.example/a/b/x-1.0.whl", hash = "sha256:ab" }'
        )
        assert lock.without_hosts(full) == '{ registry = "pypi" }\n{ filename = "x-1.0.whl", hash = "sha256:ab" }'

    def test_locking_twice_changes_nothing(self) -> None:
        text = (TOP / "uv.lock").read_text()
        assert lock.without_hosts(text) == text


class TestTrackedFiles:
    @not_in_fast("every tracked file is read")
    def test_no_tracked_file_names_a_registry_or_a_folder_of_somebodys_machine(self) -> None:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            pytest.skip("not a git checkout")
        files = [TOP / name for name in listed.stdout.split("\0") if name and (TOP / name).is_file()]
        assert [hit for file in files for hit in machine_words(file)] == []

    def test_ci_runs_make_test_and_nothing_else(self) -> None:
        script = TOP / ".ci" / "run"
        assert os.access(script, os.X_OK)
        assert [line for line in script.read_text().splitlines() if line.startswith("exec")] == ['exec make test "$@"']


def machine_words(file: Path) -> list[str]:
    lines = file.read_text(errors="replace").splitlines()
    found = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if REGISTRY_HOST.search(line) or MACHINE_PATH.search(line)
    ]
    return [f"{file.relative_to(TOP)}:{number}: {line.strip()}" for number, line in found]


class TestMakefile:
    def test_make_alone_lists_every_target(self) -> None:
        listed = subprocess.run(["make", "-C", TOP, "--no-print-directory"], capture_output=True, text=True, check=True)
        targets = re.findall(r"^  make (\S+)", listed.stdout, re.MULTILINE)
        phony = re.search(r"^\.PHONY: (.+)$", (TOP / "Makefile").read_text(), re.MULTILINE)
        assert phony and sorted(targets) == sorted(phony.group(1).split())

    def test_a_second_setup_has_nothing_to_do_until_a_lock_changes(self, tmp_path: Path) -> None:
        folder = fresh_copy(tmp_path)
        (folder / ".venv").mkdir()
        (folder / ".venv" / ".tools").touch()
        question = ["make", "-q", "-C", str(folder), "setup"]
        assert subprocess.run(question, check=False).returncode == 0
        later = (folder / ".venv" / ".tools").stat().st_mtime + 10
        os.utime(folder / "uv.lock", (later, later))
        assert subprocess.run(question, check=False).returncode == 1

    def test_the_demo_needs_no_test_tools_and_keeps_them_where_they_are(self, tmp_path: Path) -> None:
        folder = fresh_copy(tmp_path)
        planned = ["make", "-n", "-C", str(folder), "demo"]
        fresh = subprocess.run(planned, capture_output=True, text=True, check=True).stdout
        assert "tools/setup.py" in fresh and "--tools" not in fresh
        (folder / ".venv").mkdir()
        (folder / ".venv" / ".tools").touch()
        assert "tools/setup.py --tools" in subprocess.run(planned, capture_output=True, text=True, check=True).stdout

    def test_without_the_tools_nothing_of_the_tests_is_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """uv adds the group `dev` unless told not to."""
        exported: dict[str, tuple[str, ...]] = {}
        monkeypatch.setattr(setup.Uv, "export", lambda self, name, *options: exported.update({name: options}))
        monkeypatch.setattr(setup.Uv, "run", lambda self, *given: None)
        setup.install_packages(())
        uv = [str(TOP / ".venv/bin/uv"), "export", "--frozen", "--offline", "--no-emit-project", "--no-hashes"]
        command = [*uv, *exported["requirements"]]
        listed = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True)
        names = {line.partition("==")[0] for line in listed.stdout.splitlines()}
        assert {"pyspark", "duckdb"} <= names and not {"pytest", "mypy", "mkdocs"} & names

    def test_without_a_new_python_make_says_what_to_install(self, tmp_path: Path) -> None:
        folder = fresh_copy(tmp_path)
        command = ["make", "-C", str(folder), "setup", "PYTHON="]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "No Python 3.11 or newer is on the PATH: install one" in done.stderr


class TestSetup:
    def test_an_old_python_is_refused_with_what_to_install(self) -> None:
        assert setup.python_problem((3, 11)) is None
        assert setup.python_problem((3, 10)) == (
            "This is Python 3.10: install Python 3.11 or newer, then run `make setup PYTHON=python3.11`."
        )

    def test_a_full_disk_is_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        assert setup.disk_problem(tmp_path, 3 * 2**30) is None
        problem = setup.disk_problem(tmp_path / "not" / "there", 2**30)
        assert problem == f"{tmp_path} has 1.0 GiB free and 3 are needed: free some, then run `make setup` again."

    @pytest.mark.parametrize(
        ("output", "sentence"),
        [
            ("cause: failed to copy: No space left on device (os error 28)", "The disk is full"),
            ("cause: Hash mismatch for `lz4==4.4.5`", "not the one that was locked"),
            ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "not the one that was locked"),
            ("was not created successfully because ensurepip is not available", "apt install python3-venv"),
            ("error: Failed to fetch: `x`\n cause: client error (Connect)\n cause: dns error", "cannot be reached"),
            ("Failed to establish a new connection\nERROR: No matching distribution found", "cannot be reached"),
            ("that satisfies uv==0.13.7 (from versions: none)\nNo matching distribution found", "cannot be reached"),
            ("error: Failed to build `lz4==4.4.5`\n building extension\n gcc: not found", "install a C compiler"),
            ("ERROR: No matching distribution found for uv==0.13.7", "no ready-made wheel"),
            ("something new", "Mend what the lines above name"),
        ],
    )
    def test_a_failed_tool_leads_to_one_sentence_of_advice(self, output: str, sentence: str) -> None:
        assert sentence in setup.advice(output)

    def test_a_mirror_that_only_pip_was_told_of_is_used_by_uv_too(self) -> None:
        config = ":env:.cert='ca.pem'\nglobal.index-url='https://mirror.example/simple'\nglobal.timeout='9'\n"
        expected = {"UV_DEFAULT_INDEX": "https://mirror.example/simple", "SSL_CERT_FILE": "ca.pem"}
        assert setup.registry(config, {}) == expected

    def test_what_uv_was_told_itself_stands(self) -> None:
        config = "global.index-url='https://mirror.example/simple'\n"
        assert setup.registry(config, {"UV_INDEX_URL": "https://other.example/simple"}) == {}

    @pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("1.8.0_412", 8), ("21", 21)])
    def test_java_is_asked_for_its_version(self, tmp_path: Path, version: str, number: int) -> None:
        assert setup.java_version(fake_java(tmp_path, version)) == number

    def test_a_machine_with_java_is_not_given_another(self, tmp_path: Path) -> None:
        assert setup.java_extra({"PATH": str(fake_java(tmp_path, "17.0.15").parent)}) == ()

    def test_a_machine_with_no_java_or_an_old_one_is_given_one(self, tmp_path: Path) -> None:
        old = fake_java(tmp_path, "11.0.2")
        assert setup.java_extra({"PATH": ""}) == ("--extra", "java")
        assert setup.java_extra({"PATH": str(old.parent)}) == ("--extra", "java")
        assert setup.java_extra({"PATH": "", "JAVA_HOME": str(tmp_path / "gone")}) == ("--extra", "java")


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.e2e
class TestWholeSetup:
    def test_without_a_network_it_ends_with_one_sentence_of_advice_and_exit_code_1(self, tmp_path: Path) -> None:
        done = run_setup(fresh_copy(tmp_path), PIP_INDEX_URL=NOWHERE, PIP_RETRIES="0", PIP_FIND_LINKS="")
        assert done.returncode == 1
        assert "No matching distribution found for uv" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("setup: The package registry cannot be reached")
        assert "Traceback" not in done.stderr

    @pytest.mark.network
    @in_full("the lock of the packages is tampered with below")
    def test_a_tampered_bootstrap_lock_installs_nothing(self, tmp_path: Path) -> None:
        folder = fresh_copy(tmp_path)
        tamper(folder / "tools" / "bootstrap.lock", "uv==")
        done = run_setup(folder)
        assert done.returncode == 1
        assert "not the one that was locked" in done.stderr.splitlines()[-1]
        assert not (folder / ".venv" / "bin" / "uv").exists()

    @pytest.mark.network
    def test_a_tampered_lock_installs_nothing_of_it(self, tmp_path: Path) -> None:
        folder = fresh_copy(tmp_path)
        tamper(folder / "uv.lock", 'name = "setuptools"')
        done = run_setup(folder, UV_CACHE_DIR=str(tmp_path / "cache"))
        assert done.returncode == 1
        assert "not the one that was locked" in done.stderr.splitlines()[-1]

    @pytest.mark.network
    @in_full("a tampered lock is refused in the same way")
    def test_a_lock_that_is_older_than_pyproject_is_refused(self, tmp_path: Path) -> None:
        folder = fresh_copy(tmp_path)
        project = folder / "pyproject.toml"
        project.write_text(project.read_text().replace('    "click>=', '    "sampleproject",\n    "click>='))
        done = run_setup(folder)
        assert done.returncode == 1
        assert "run `make lock`" in done.stderr.splitlines()[-1]


def tamper(file: Path, after: str) -> None:
    """Change the hashes that follow a text: they no longer match any file."""
    head, found, tail = file.read_text().partition(f"{after}")
    assert found
    here, end, rest = tail.partition("\n\n")
    file.write_text(head + found + re.sub(r"sha256:\w{8}", "sha256:00000000", here) + end + rest)
