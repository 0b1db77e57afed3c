"""The paths of schemas in a checkpoint that had another name: they lead into it, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stateside.pipeline.view_query import bring_home

NAME = "0_b015999c-e6f4"


def metadata(*paths: str) -> dict[str, Any]:
    return {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPySparkExec"},
        "stateStoreInfo": [{"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": list(paths)}],
        "operatorPropertiesJson": '{"timeMode":"NoTime","é":"/state/0/_stateSchema/default/x"}',
    }


def put(checkpoint: Path, content: str, batch: str = "0") -> Path:
    entry = checkpoint / "state" / "0" / "_metadata" / "v2" / batch
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.write_text(content)
    entry.with_name(f".{batch}.crc").write_bytes(b"crc")
    return entry


def read(entry: Path) -> Any:
    version, _, document = entry.read_text().partition("\n")
    assert version == "v2"
    return json.loads(document)


def test_paths_through_another_leaders_gate_lead_into_this_one(tmp_path: Path) -> None:
    own = tmp_path / "lease/gates/2/views/v/checkpoint"
    entry = put(
        own, "v2\n" + json.dumps(metadata(f"file:/d/lease/gates/1/views/v/state/0/_stateSchema/default/{NAME}"))
    )
    bring_home(own)
    assert read(entry) == metadata(f"file:{own}/state/0/_stateSchema/default/{NAME}")
    assert not (entry.parent / ".0.crc").exists(), "a checksum of the old content would make Spark refuse the new one"


def test_every_start_of_the_query_is_brought_home_and_each_schema_of_it(tmp_path: Path) -> None:
    elsewhere = [f"file:/old/state/0/_stateSchema/default/{n}_x" for n in range(2)]
    entries = [put(tmp_path, "v2\n" + json.dumps(metadata(*elsewhere[:count])), str(7 * count)) for count in (1, 2)]
    bring_home(tmp_path)
    here = [f"file:{tmp_path}/state/0/_stateSchema/default/{n}_x" for n in range(2)]
    assert [read(entry) for entry in entries] == [metadata(*here[:1]), metadata(*here)]


@pytest.mark.parametrize(
    "content",
    [
        "v2\n" + json.dumps(metadata("file:HERE/state/0/_stateSchema/default/0_x")),
        "v2\n" + json.dumps(metadata("somewhere else")),
        "v2\n" + json.dumps({"operatorInfo": {}}),
        "v3\n" + json.dumps(metadata("file:/old/state/0/_stateSchema/default/0_x")),
        "v2\nno json",
        "v2\n[]",
        "",
    ],
)
def test_what_is_right_already_or_not_known_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    entry = put(tmp_path, content.replace("HERE", str(tmp_path)))
    before = entry.stat().st_ino
    bring_home(tmp_path)
    assert entry.stat().st_ino == before and (entry.parent / ".0.crc").exists()


def test_a_checkpoint_that_is_new_or_has_no_such_state_is_no_concern(tmp_path: Path) -> None:
    bring_home(tmp_path / "new")
    (tmp_path / "state" / "0" / "_metadata").mkdir(parents=True)
    bring_home(tmp_path)
