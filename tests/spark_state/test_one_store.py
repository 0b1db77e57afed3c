"""One of several stores of an operator: found in its own folder, by its own ids, and nothing else is moved."""

import json
from collections.abc import Callable

import pytest

from stateside.core.errors import CheckpointInvalid
from stateside.core.storage import Storage
from stateside.spark_state.batch_log import Checkpoint
from stateside.spark_state.changelog import changelog_name
from stateside.views.catalogue import Catalogue
from stateside.views.state_catalogue import checkpoint_of

Put = Callable[[str, bytes | str], Storage]

IDS = {"1": [["a", "b", "c", "d"], ["e", "f", "g", "h"]], "0": [["x"], ["y"]]}


def view(store: str | None) -> Catalogue:
    return Catalogue("", "left", 1, (), (), kind="join", store=store)


def test_a_file_of_a_partition_is_found_in_the_stores_folder(put: Put) -> None:
    put("state/1/10/right-keyWithIndexToValue/3_d.changelog", b"right")
    put("state/0/10/3_x.changelog", b"other operator")
    storage = put("state/1/_metadata/metadata", b"metadata")
    seen = checkpoint_of(view("right-keyWithIndexToValue"), storage).storage
    assert seen.read("state/1/10/3_d.changelog") == b"right"
    assert seen.names("state/1/10") == ["3_d.changelog"]
    assert seen.read("state/0/10/3_x.changelog") == b"other operator"
    assert seen.read("state/1/_metadata/metadata") == b"metadata"
    assert seen.path("state/1/10/gone").endswith("/state/1/10/right-keyWithIndexToValue/gone")


@pytest.mark.parametrize(("store", "state_id"), [("left-keyWithIndexToValue", "f"), ("right-keyWithIndexToValue", "h")])
def test_a_commit_names_the_files_of_that_store_alone(put: Put, store: str, state_id: str) -> None:
    storage = put("commits/2", "v2\n" + json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": IDS}))
    commit = checkpoint_of(view(store), storage).commit(2)
    assert changelog_name(commit, 1, 1) == f"state/1/1/3_{state_id}.changelog"
    assert commit.state_id(0, 1) == "y"


def test_a_commit_without_ids_stays_as_it_is(put: Put) -> None:
    storage = put("commits/2", 'v1\n{"nextBatchWatermarkMs":0}')
    assert checkpoint_of(view("left-keyWithIndexToValue"), storage).commit(2).state_ids == {}


def test_a_commit_that_names_fewer_stores_is_damaged(put: Put) -> None:
    content = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": {"1": [["a"]]}})
    storage = put("commits/2", f"v2\n{content}")
    with pytest.raises(CheckpointInvalid, match="commits/2"):
        checkpoint_of(view("left-keyWithIndexToValue"), storage).commit(2)


def test_an_operator_with_one_store_is_read_as_it_lies(put: Put) -> None:
    assert type(checkpoint_of(view(None), put("metadata", b""))) is Checkpoint
