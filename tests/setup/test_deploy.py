"""The image and the compose file. They are not run here: what they name is checked."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from stateside.cli import main
from stateside.pipeline.app import load
from stateside.pipeline.master import masters_of

TOP = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((TOP / "deploy" / "compose.yaml").read_text())
DOCKERFILE = (TOP / "deploy" / "Dockerfile").read_text()
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "stateside"}


@pytest.mark.parametrize("name", [name for name, service in OURS.items() if "entrypoint" not in service])
def test_every_command_of_ours_has_the_options_that_it_is_given(name: str) -> None:
    *command, last = OURS[name]["command"]
    parsed = CliRunner().invoke(main, [*command, last, "--help"])
    assert parsed.exit_code == 0, parsed.output
    given = {argument for argument in OURS[name]["command"] if argument.startswith("--")}
    assert given <= set(re.findall(r"--[a-z-]+", parsed.output))


def test_services_depend_on_services_that_are_there_and_share_volumes_that_are_declared() -> None:
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", ())) <= COMPOSE["services"].keys()
        assert {volume.split(":")[0] for volume in service.get("volumes", ())} <= COMPOSE["volumes"].keys()


@pytest.mark.parametrize(
    ("name", "places"),
    [("kafka", {"/var/lib/kafka/data"}), ("zookeeper", {"/data", "/datalog"})],  # ZooKeeper's: its image's own
)
def test_what_others_rely_on_is_stored_on_volumes(name: str, places: set[str]) -> None:
    mounted = {volume.split(":")[1] for volume in COMPOSE["services"][name]["volumes"]}
    assert mounted == places


def test_the_broker_stores_on_its_volume_and_not_where_the_image_would() -> None:
    kafka = COMPOSE["services"]["kafka"]
    assert kafka["volumes"] == [f"kafka:{kafka['environment']['KAFKA_LOG_DIRS']}"]


def test_driver_and_workers_name_the_masters_that_there_are() -> None:
    wanted = [(name, 7077) for name in COMPOSE["services"] if name.startswith("master-")]
    command = OURS["driver"]["command"]
    assert masters_of(command[command.index("--master") + 1]) == wanted
    for name in ("worker-1", "worker-2"):
        assert masters_of(OURS[name]["command"][-1]) == wanted
        assert OURS[name]["hostname"] == name


@pytest.mark.spark
def test_the_driver_runs_an_application_that_exists() -> None:
    assert load(OURS["driver"]["command"][1]).views


def test_the_image_has_spark_where_the_services_start_it() -> None:
    home = re.search(r"SPARK_HOME=(\S+)", DOCKERFILE)
    assert home is not None
    package = importlib.util.find_spec("pyspark")
    assert package is not None and package.origin is not None
    assert (Path(package.origin).parent / "bin" / "spark-class").is_file()
    for name in ("master-1", "worker-1"):
        assert OURS[name]["entrypoint"] == [f"{home[1]}/bin/spark-class"]
    assert "FROM python:3.11-" in DOCKERFILE and "/python3.11/" in home[1]
