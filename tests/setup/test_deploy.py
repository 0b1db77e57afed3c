"""The files in deploy/: valid by the schemas of compose and Kubernetes, and consistent with the command line."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from stateside.cli import main
from stateside.cli.group import PORT
from stateside.core.processes import EXIT_FINAL
from stateside.pipeline.app import load
from stateside.pipeline.master import masters_of

TOP = Path(__file__).parents[2]
DEPLOY = TOP / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
KUBERNETES = "1.37"  # the schemas' version
COMPOSED: dict[str, dict[str, Any]] = {
    name: yaml.safe_load((DEPLOY / name).read_text()) for name in ("compose.yaml", "compose.cluster.yaml")
}
PARTS = [
    pytest.param(document, name, id=f"{file}-{name}")
    for file, document in COMPOSED.items()
    for name, service in document["services"].items()
    if service["image"] == "stateside"
]
HEALTH_ROUTES = {"/healthz", "/readyz"}


def parsed(arguments: Iterable[str]) -> click.Context:
    """The context of the command that the command line itself makes of these arguments; click's error if it cannot."""
    context = main.make_context("stateside", list(arguments))
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    return context


def command_of(service: dict[str, Any]) -> list[str] | None:
    """The arguments of `stateside` in a service; None for a service that is a part of Spark."""
    if "entrypoint" not in service:
        return list(service["command"])
    if service["entrypoint"][2] != "sh":
        return None
    (script,) = service["command"]
    words = shlex.split(script, posix=True)
    return words[words.index("stateside") + 1 : words.index("&&")]


def test_a_wrong_option_or_value_does_not_parse() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(["serve", "--dir", "x", "--adress", "0.0.0.0"])
    with pytest.raises(click.BadParameter):
        parsed(["run", "shop:app", "--dir", "x", "--standby-scope", "moon"])


class TestCompose:
    @pytest.mark.parametrize("file", COMPOSED)
    def test_the_file_is_valid_by_the_compose_specification(self, file: str) -> None:
        schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
        found = Draft202012Validator(schema).iter_errors(COMPOSED[file])
        assert [f"{error.json_path}: {error.message}" for error in found] == []

    @pytest.mark.parametrize(("document", "name"), PARTS)
    def test_every_command_parses(self, document: dict[str, Any], name: str) -> None:
        command = command_of(document["services"][name])
        if command is not None:
            assert parsed(command).command.name == command[1 if command[0] in ("billing", "journal") else 0]

    @pytest.mark.parametrize(("document", "name"), PARTS)
    def test_every_path_that_a_part_writes_to_is_on_a_volume(self, document: dict[str, Any], name: str) -> None:
        service = document["services"][name]
        volumes = dict(volume.split(":") for volume in service["volumes"])
        assert volumes.keys() <= document["volumes"].keys()
        options = ("--dir", "--replicas", "--work-dir")
        words = command_of(service) or service["command"]
        places = [after for word, after in pairwise(words) if word in options]
        assert all(place.startswith(tuple(volumes.values())) for place in places), places
        assert service["read_only"] and service["tmpfs"] == ["/tmp:exec,mode=1777"]

    @pytest.mark.parametrize(("document", "name"), PARTS)
    def test_only_servers_have_ports_and_a_health_check_by_their_own_route(
        self, document: dict[str, Any], name: str
    ) -> None:
        service = document["services"][name]
        if service["command"][0] != "serve":
            assert service["healthcheck"] == {"disable": True} and "ports" not in service
            return
        context = parsed(service["command"])
        (published,) = service["ports"]
        assert re.fullmatch(rf"127\.0\.0\.1:\d+:{context.params['port']}", published)
        assert context.params["address"] == "0.0.0.0"
        assert asked(service["healthcheck"]["test"][-1]) == (context.params["port"], "/readyz")

    @pytest.mark.parametrize("document", COMPOSED.values(), ids=COMPOSED)
    def test_services_share_neither_a_published_port_nor_a_replica_nor_a_name(self, document: dict[str, Any]) -> None:
        services = [each for each in document["services"].values() if (each.get("command") or [""])[0] == "serve"]
        for taken in (
            [port.split(":")[1] for each in services for port in each["ports"]],
            [volume for each in services for volume in each["volumes"] if volume.endswith(":/replicas")],
            [parsed(each["command"]).params["name"] for each in services],
        ):
            assert len(taken) == len(set(taken)) == len(services)

    @pytest.mark.parametrize("document", COMPOSED.values(), ids=COMPOSED)
    def test_services_depend_on_services_that_are_there(self, document: dict[str, Any]) -> None:
        for service in document["services"].values():
            assert set(service.get("depends_on", ())) <= document["services"].keys()

    def test_a_leader_and_a_standby_have_names_of_their_own(self) -> None:
        drivers = [COMPOSED["compose.yaml"]["services"][name]["command"] for name in ("driver", "standby")]
        found = [parsed(command).params for command in drivers]
        assert [each["identity"] for each in found] == ["driver", "standby"]
        assert all(each["standby"] and each["standby_scope"] == "machine" for each in found)

    @pytest.mark.spark
    def test_the_drivers_run_applications_that_exist(self) -> None:
        for document in COMPOSED.values():
            assert load(document["services"]["driver"]["command"][1]).views


class TestCluster:
    SERVICES = COMPOSED["compose.cluster.yaml"]["services"]

    def test_driver_and_workers_name_the_masters_that_there_are(self) -> None:
        wanted = [(name, 7077) for name in self.SERVICES if name.startswith("master-")]
        assert masters_of(parsed(self.SERVICES["driver"]["command"]).params["master"]) == wanted
        for name in ("worker-1", "worker-2"):
            assert masters_of(self.SERVICES[name]["command"][-1]) == wanted
            assert self.SERVICES[name]["hostname"] == name

    def test_every_part_of_spark_reads_its_settings_from_the_secret(self) -> None:
        for name in ("master-1", "master-2", "worker-1", "worker-2", "driver"):
            (mounted,) = self.SERVICES[name]["secrets"]
            folder = self.SERVICES[name]["environment"]["SPARK_CONF_DIR"]
            assert mounted == {"source": "spark-defaults", "target": f"{folder}/spark-defaults.conf"}

    def test_what_others_rely_on_is_stored_on_volumes(self) -> None:
        stores = {"zookeeper": {"/data", "/datalog"}}  # of its image
        stores["kafka"] = {self.SERVICES["kafka"]["environment"]["KAFKA_LOG_DIRS"]}
        for name, places in stores.items():
            assert {volume.split(":")[1] for volume in self.SERVICES[name]["volumes"]} == places

    def test_the_image_has_spark_where_the_services_start_it(self) -> None:
        package = importlib.util.find_spec("pyspark")
        assert package is not None and package.origin is not None
        assert (Path(package.origin).parent / "bin" / "spark-class").is_file()
        home = "/opt/stateside/.venv/lib/python3.11/site-packages/pyspark"
        assert "debian:bookworm" in DOCKERFILE, "whose Python is 3.11"
        for name in ("master-1", "worker-1"):
            assert self.SERVICES[name]["entrypoint"] == ["/usr/bin/tini", "--", f"{home}/bin/spark-class"]

    def test_a_new_secret_is_written_once_where_git_ignores_it(self, tmp_path: Path) -> None:
        for name in ("spark-secret.sh", "spark-defaults.conf"):
            shutil.copy2(DEPLOY / name, tmp_path)
        made = []
        for _ in range(2):
            done = subprocess.run([tmp_path / "spark-secret.sh"], capture_output=True, text=True, check=True)
            made.append((tmp_path / "secret" / "spark-defaults.conf").read_text())
        assert made[0] == made[1]
        found = re.search(r"^spark\.authenticate\.secret +([0-9a-f]{64})$", made[0], re.MULTILINE)
        assert found and found[1] not in done.stdout + done.stderr
        assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o700
        assert "deploy/secret/" in (TOP / ".gitignore").read_text().splitlines()


def asked(script: str) -> tuple[int, str]:
    """Port and route of a health check."""
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", script)
    assert found
    compile(script, "health check", "exec")
    return int(found[1]), found[2]


class TestImage:
    def test_its_health_check_asks_the_servers_own_route_at_its_default_port(self) -> None:
        found = re.search(r'CMD \["python3", "-c", "(.+)"\]', DOCKERFILE)
        assert found and asked(found[1]) == (PORT, "/healthz")
        assert f"EXPOSE {PORT}" in DOCKERFILE

    def test_it_runs_as_another_user_than_root_with_an_init(self) -> None:
        assert "\nUSER 10001:10001\n" in DOCKERFILE
        assert 'ENTRYPOINT ["/usr/bin/tini", "--", "stateside"]' in DOCKERFILE
        assert "--uid 10001" in (DEPLOY / "image.sh").read_text()

    def test_everything_that_it_copies_is_sent_to_the_builder(self) -> None:
        sent = [line[1:] for line in (TOP / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        copied = [
            place
            for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
            for place in line.split()[:-1]
        ]
        assert set(copied) == set(sent)
        assert all((TOP / place).exists() for place in sent)


UNITS = sorted(DEPLOY.glob("systemd/*.service"))
COMMON = DEPLOY / "systemd" / "stateside-.service.d"


class TestSystemd:
    @pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
    def test_a_permanent_failure_is_not_started_again(self, unit: Path) -> None:
        text = unit.read_text()
        assert re.search(r"^Restart=(always|on-failure)$", text, re.MULTILINE)
        assert f"\nRestartPreventExitStatus={EXIT_FINAL}\n" in text

    @pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
    def test_its_command_parses(self, unit: Path) -> None:
        found = re.search(r"^ExecStart=\S+/stateside (.+)$", unit.read_text(), re.MULTILINE)
        assert found
        given = {"${TARGET}": "shop:app"}
        words = [given.get(word, word) for word in found[1].split() if not word.startswith("$") or word in given]
        assert parsed(words).params["folder"] == Path("%S/stateside/%i")

    @pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
    def test_systemd_has_nothing_to_say_against_it(self, unit: Path, machine: Path) -> None:
        shown = unit.name.replace("@", "@shop")
        verified = analyzed(machine, "verify", shown)
        assert (verified.returncode, verified.stderr) == (0, "")
        rated = analyzed(machine, "security", "--offline=true", "--threshold=20", shown)  # 100 is the worst
        assert rated.returncode == 0, rated.stdout

    def test_systemd_objects_to_a_setting_that_does_not_exist(self, machine: Path) -> None:
        broken = UNITS[0].read_text().replace("RestartPreventExitStatus", "RestartPreventsExitStatus")
        (machine / "etc/systemd/system/broken@.service").write_text(broken)
        assert "RestartPreventsExitStatus" in analyzed(machine, "verify", "broken@shop.service").stderr


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The root of a machine with our units, the units of this one, and the programs that ours name."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze (Debian: apt install systemd)")
    shutil.copytree(DEPLOY / "systemd", tmp_path / "etc/systemd/system")
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    for program in ("opt/stateside/.venv/bin/stateside", "bin/kill"):
        (tmp_path / program).parent.mkdir(parents=True)
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    return tmp_path


def analyzed(root: Path, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", verb, f"--root={root}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def rendered(folder: str) -> list[dict[str, Any]]:
    """The objects of a kustomization, as `kubectl` renders them."""
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl to render with")
    done = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / "kubernetes" / folder], capture_output=True, text=True, check=True, timeout=60
    )
    return list(yaml.safe_load_all(done.stdout))


def written() -> Iterator[dict[str, Any]]:
    """The objects of the base as they are in its files, which need no rendering."""
    base = DEPLOY / "kubernetes" / "base"
    for name in yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((base / name).read_text())


def pods(objects: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each["spec"]["template"] for each in objects if "template" in each.get("spec", {})
    }


class TestKubernetes:
    def test_every_object_of_the_base_is_valid_by_kubernetes_own_schemas(self) -> None:
        for each in written():
            kubernetes_validate.validate(each, KUBERNETES, strict=True)

    @pytest.mark.parametrize("folder", ["base", "shards"])
    def test_what_kubectl_renders_is_valid_too(self, folder: str) -> None:
        for each in rendered(folder):
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
            assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == "stateside"

    def test_a_misspelt_field_is_not_valid(self) -> None:
        (claim, *_) = [each for each in written() if each["kind"] == "PersistentVolumeClaim"]
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**claim, "spec": {"accessMode": ["ReadWriteMany"]}}, KUBERNETES, strict=True)

    def test_every_command_parses_and_writes_to_volumes_alone(self) -> None:
        for name, pod in pods(written()).items():
            (container,) = pod["spec"]["containers"]
            context = parsed(container["args"])
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert context.params["folder"].parent == Path("/data") and {"/data", "/tmp"} <= mounts
            declared = {volume["name"] for volume in pod["spec"]["volumes"]} | {"replicas"}
            assert {mount["name"] for mount in container["volumeMounts"]} <= declared
            assert (name == "servers") == ("/replicas" in mounts)

    def test_no_pod_is_more_than_it_needs_to_be(self) -> None:
        for pod in pods(written()).values():
            (container,) = pod["spec"]["containers"]
            assert pod["spec"]["automountServiceAccountToken"] is False
            assert pod["spec"]["securityContext"] == {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "fsGroup": 10001,
                "fsGroupChangePolicy": "OnRootMismatch",  # `Always` would open keys.json to the group
                "seccompProfile": {"type": "RuntimeDefault"},
            }
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"].keys() == {"requests", "limits"}

    def test_probes_ask_the_servers_own_routes_by_tls(self) -> None:
        (server,) = pods(written())["servers"]["spec"]["containers"]
        assert parsed(server["args"]).params["port"] == server["ports"][0]["containerPort"]
        probes = {name: server[name]["httpGet"] for name in server if name.endswith("Probe")}
        assert probes.keys() == {"startupProbe", "livenessProbe", "readinessProbe"}
        assert {probe["path"] for probe in probes.values()} == HEALTH_ROUTES
        assert {(probe["port"], probe["scheme"]) for probe in probes.values()} == {("https", "HTTPS")}

    def test_every_selector_selects_pods(self) -> None:
        labels = [pod["metadata"]["labels"].items() for pod in pods(written()).values()]
        for each in written():
            selector = each.get("spec", {}).get("selector") or each.get("spec", {}).get("podSelector") or {}
            wanted = selector.get("matchLabels", selector).items()
            assert any(wanted <= found for found in labels), each["metadata"]["name"]

    def test_each_shard_has_a_server_and_a_service(self) -> None:
        objects = rendered("shards")
        (servers,) = [each for each in objects if each["kind"] == "StatefulSet"]
        count, start = servers["spec"]["replicas"], servers["spec"]["ordinals"]["start"]
        (container,) = servers["spec"]["template"]["spec"]["containers"]
        for index in range(start, start + count):
            arguments = [word.replace("$(SHARD)", str(index)) for word in container["args"]]
            assert parsed(arguments).params["share"] == f"{index}/{count}"
            (service,) = [each for each in objects if each["metadata"]["name"] == f"shard-{index}"]
            assert service["spec"]["selector"]["apps.kubernetes.io/pod-index"] == str(index)
