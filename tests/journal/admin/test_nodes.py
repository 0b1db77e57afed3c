"""Upkeep of a journal that nodes write: the commands on the merged stream, trimming, retention."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from stateside.cli import main
from stateside.core.errors import EventRefused, EventsGone, EventsNeeded, JournalCorrupt, RequestInvalid, SettingInvalid
from stateside.core.layout import Layout
from stateside.core.positions import Position
from stateside.journal import Event, JournalWriter
from stateside.journal.admin import Dropped, JournalFiles, Reader, drop_all, register, trim, verify
from stateside.journal.backends.files.segment import segment_offsets
from stateside.journal.backends.nodes import MergedJournal, Merger, NodeWriter, partition
from stateside.journal.backends.nodes.log import node_logs
from stateside.journal.queries import Queries, QueryViews
from stateside.journal.queries.format import pack_block, unpack_block

ENTITIES = ["emma", "ben", "zoe", "ada"]


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["journal", *arguments], input=given)


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def events(rounds: range, name: str = "a") -> list[Event]:
    tags = ("even",), ("odd",)
    return [
        Event(f"{name}-{entity}-{n}", entity, "call", n, {"n": n}, tags[n % 2]) for n in rounds for entity in ENTITIES
    ]


def fill(journal: Path, rounds: int = 10, name: str = "a", first: int = 0) -> None:
    """Appends of one entity each, in many small segments."""
    with NodeWriter(journal, name, segment_bytes_max=2_500) as node:
        for event in events(range(first, first + rounds), name):
            node.append_to(event.entity, [event])
        node.release(node.slots)


def merge(journal: Path, partitions: int = 2) -> MergedJournal:
    with Merger(journal, partitions) as merger:
        merger.merge()
        assert merger.gaps() == []
        assert merger.duplicates == 0
    return MergedJournal(journal)


def ids(stream: MergedJournal) -> list[str]:
    return sorted(
        event.id for name in stream.partitions() for event in stream.log(name).events(stream.log(name).begin())
    )


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    journal = Layout(tmp_path).journal
    fill(journal)
    merge(journal)
    return journal


class TestTheCommands:
    def test_people_write_with_many_nodes_and_merge_without_any_python(self, tmp_path: Path) -> None:
        folder, line = str(tmp_path), '{"id": "%s", "entity": "%s", "type": "call", "tags": ["night"]}\n'
        told = [
            lines(run("append", "--dir", folder, "--node", node, "--json", given=line % (f"{entity}-1", entity)))
            for node, entity in (("hamburg", "emma"), ("bremen", "ben"))
        ]
        assert [found[0]["receipt"] for found in told] == ["hamburg.1:1", "bremen.1:1"]
        assert lines(run("merge", "--dir", folder, "--once", "--partitions", "2", "--json"))[0]["merged"] == 2
        assert "0 events merged, up to" in run("merge", "--dir", folder, "--once").stdout
        assert run("ids", "--dir", folder).stdout.split() == ["ben", "emma"]
        assert run("tags", "--dir", folder).stdout == "           2  night\n"
        assert run("append", "--dir", folder, given=line % ("x", "x")).stdout == "shared.1:1\n"
        for node in (["--node", "bremen"], []):
            elsewhere = run("append", "--dir", folder, *node, given=line % ("x", "emma"))
            assert (elsewhere.exit_code, "written by the node hamburg" in elsewhere.stderr) == (1, True)

    @pytest.mark.parametrize("views", [False, True], ids=["without views", "with views"])
    def test_they_work_on_the_merged_stream(self, tmp_path: Path, journal: Path, views: bool) -> None:
        folder = str(tmp_path)
        if views:
            assert run("views", "--dir", folder).exit_code == 0
            fill(journal, 11, "b")  # the last round of which comes behind the views
            merge(journal)
        rounds = 21 if views else 10
        assert run("ids", "--dir", folder).stdout.split() == sorted(ENTITIES)
        assert sum(int(str(found["events"])) for found in lines(run("tags", "--dir", folder, "--json"))) == 4 * rounds
        of_emma = lines(run("read", "--dir", folder, "--entity", "emma", "--json"))
        assert [found["sequence"] for found in of_emma] == list(range(1, rounds + 1))
        rest = lines(run("read", "--dir", folder, "--json", "--from", str(of_emma[4]["position"])))
        assert {found["id"] for found in rest if found["entity"] == "emma"} >= {"a-emma-5", "a-emma-9"}
        everything = lines(run("read", "--dir", folder, "--json"))
        assert len(everything) == 4 * rounds
        exported = run("export", "--dir", folder, "--out", str(tmp_path / "all.parquet"), "--json")
        assert lines(exported) == [{"events": 4 * rounds, "position": str(MergedJournal(journal).end())}]
        table = pq.read_table(tmp_path / "all.parquet")
        assert sorted(set(table.column("partition").to_pylist())) == ["0", "1"]

    def test_reading_up_to_a_position_leaves_no_partition_out(self, tmp_path: Path, journal: Path) -> None:
        end = MergedJournal(journal).end()
        stop = Position.of({"0": end["0"] - 3, "1": end["1"] - 2})
        found = lines(run("read", "--dir", str(tmp_path), "--to", str(stop), "--json"))
        assert len(found) == stop.events()
        refused = run("read", "--dir", str(tmp_path), "--to", str(stop), "--follow")
        assert (refused.exit_code, "is not followed up to a position" in refused.stderr) == (1, True)

    def test_stat_tells_each_log_and_the_gaps(self, tmp_path: Path, journal: Path) -> None:
        (journal / "nodes" / "a").rename(tmp_path / "away")
        with NodeWriter(journal / "other", "x"):  # the folder nodes/ itself stays there
            pass
        (journal / "other" / "nodes" / "x").rename(journal / "nodes" / "x")
        shutil.rmtree(tmp_path / "away" / "1" / "index")
        (tmp_path / "away").rename(journal / "nodes" / "a")
        found = json.loads(run("stat", "--dir", str(tmp_path), "--json").stdout)
        assert (found["events"], found["unmerged"], found["gaps"], found["partitions"]) == (40, 0, 0, 2)
        assert {log["log"]: log["merged"] for log in found["logs"]} == {"a.1": 40, "x.1": 0}
        assert "  log a.1, begin 0, end 40, merged 40" in run("stat", "--dir", str(tmp_path)).stdout

    def test_stat_shows_who_waits_for_what(self, tmp_path: Path) -> None:
        journal = Layout(tmp_path).journal
        fill(journal, 1, "b")
        fill(journal, 1, "a")
        away = (journal / "nodes" / "b").rename(tmp_path / "away")
        with Merger(journal) as merger:
            merger.merge()
        found = json.loads(run("stat", "--dir", str(tmp_path), "--json").stdout)
        assert (found["gaps"], found["unmerged"]) == (4, 4)
        assert found["longest_gaps"][0]["missing_sequence"] == 1
        assert "entity emma, missing sequence 1" in run("stat", "--dir", str(tmp_path)).stdout.replace("_", " ")
        away.rename(journal / "nodes" / "b")
        told = run("merge", "--dir", str(tmp_path), "--once").stdout
        assert told == "8 events merged, up to 0:8\n"

    @pytest.mark.parametrize("command", ["stat", "read", "ids", "tags", "verify", "views"])
    def test_logs_that_were_never_merged_are_told_with_what_to_do(self, tmp_path: Path, command: str) -> None:
        NodeWriter(Layout(tmp_path).journal, "a").close()
        result = run(command, "--dir", str(tmp_path))
        assert (result.exit_code, "Start `stateside journal merge`" in result.stderr) == (1, True)

    def test_a_journal_of_one_log_has_nothing_to_merge_or_trim(self, tmp_path: Path) -> None:
        JournalWriter(Layout(tmp_path).journal).close()
        for command in ("merge", "trim"):
            result = run(command, "--dir", str(tmp_path))
            assert (result.exit_code, "to merge" in result.stderr or "merged stream" in result.stderr) == (1, True)
        with pytest.raises(SettingInvalid, match="one log, which its writers share"):
            NodeWriter(Layout(tmp_path).journal, "a")

    @pytest.mark.e2e
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_merger_in_the_foreground_goes_on_until_a_signal_and_ends_well(
        self, tmp_path: Path, number: signal.Signals
    ) -> None:
        journal = Layout(tmp_path).journal
        fill(journal, 1)
        command = [sys.executable, "-m", "stateside", "journal", "merge", "--dir", str(tmp_path), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            try:
                assert json.loads(child.stdout.readline()) == {"merged": 4, "position": "0:4", "gaps": 0}
                fill(journal, 1, "b")
                assert json.loads(child.stdout.readline())["position"] in ("0:5", "0:6", "0:7", "0:8")
                child.send_signal(number)
                _, errors = child.communicate(timeout=60)
                assert (child.returncode, errors) == (0, "")
            finally:
                child.kill()


class TestTrimming:
    @pytest.mark.parametrize("before_us", [None, 10**15])
    def test_a_log_that_its_owner_has_not_begun_yet_has_nothing_to_go(
        self, journal: Path, before_us: int | None
    ) -> None:
        (journal / "nodes" / "z" / "1").mkdir(parents=True)
        dropped = trim(journal, before_us)
        assert dropped["z.1"] == Dropped(0, 0, 0)
        assert dropped["a.1"].begin >= 0

    def test_what_is_merged_goes_from_the_logs_and_everything_goes_on(self, journal: Path) -> None:
        before = ids(MergedJournal(journal))
        segments = len(segment_offsets(journal / "nodes" / "a" / "1"))
        (dropped,) = trim(journal).values()
        assert dropped.segments == segments - 1 > 3
        assert ids(MergedJournal(journal)) == before
        for forget in (False, True):
            for name in ("index", "places") if forget else ():
                shutil.rmtree(journal / "nodes" / "a" / "1" / name)
            with NodeWriter(journal, "b") as other:
                assert other.last_sequence("emma") == 10 + forget
                other.release(other.slots)
            with NodeWriter(journal, "a") as node:
                new = Event(f"new-{forget}", "emma", "call", 0, {})
                assert node.append_to("emma", [new]).first_sequence == 11 + forget
                node.release(node.slots)
        assert len(ids(merge(journal))) == 42
        shutil.rmtree(journal / "merged" / "index")
        merge(journal)

    @pytest.mark.parametrize("index", ["written before", "not written", "deleted"])
    def test_a_repeated_append_is_known_whatever_becomes_of_the_index_of_ids(self, journal: Path, index: str) -> None:
        with NodeWriter(journal, "a") as node:
            receipt = node.append_to("emma", [events(range(1))[0]])
            assert node._known._ids is not None
            if index == "written before":
                node._known._ids.flush()
        trim(journal)
        if index == "deleted":
            shutil.rmtree(journal / "nodes" / "a" / "1" / "places")
        with NodeWriter(journal, "a") as node:
            assert node.append_to("emma", [events(range(1))[0]]) == receipt
            found = node.receipt_of("ben", "a-ben-3")
            assert found is not None and found.first_sequence == 4
            with pytest.raises(EventRefused, match="is that of an event of another entity"):
                node.append_to("emma", [Event("a-ben-0", "emma", "call", 0, {})])

    def test_a_receipt_of_a_trimmed_log_is_covered_and_its_place_is_the_end(self, journal: Path) -> None:
        stream, receipt = MergedJournal(journal), Position.of({"a.1": 3})
        exact = stream.position_of(receipt)
        trim(journal)
        assert exact is not None
        assert stream.position_of(receipt) == stream.end()
        assert stream.end().covers(exact)
        newest = Position.of({"a.1": 40})
        assert (stream.position_of(newest) or Position.start()).events() < 40

    def test_what_is_not_merged_stays(self, journal: Path) -> None:
        fill(journal, 5, "b")
        assert trim(journal)["b.1"].segments == 0
        assert len(ids(merge(journal))) == 60

    def test_a_stream_that_is_lost_after_a_trim_is_told_and_not_begun_with_a_hole(self, journal: Path) -> None:
        trim(journal)
        shutil.rmtree(journal / "merged")
        with Merger(journal) as merger, pytest.raises(EventsGone, match="Bring their segments back"):
            merger.merge()
        assert ids(MergedJournal(journal)) == []

    def test_a_reader_that_registered_with_a_log_is_waited_for_and_others_are_trimmed(self, journal: Path) -> None:
        fill(journal, 10, "b")
        merge(journal)
        register(JournalFiles(node_logs(journal)["a.1"].directory), "exporter", Position.of({"0": 7}))
        with pytest.raises(EventsNeeded, match="exporter has read up to 0:7"):
            trim(journal)
        assert node_logs(journal)["a.1"].begin() == Position.start()
        assert node_logs(journal)["b.1"].begin()["0"] > 10

    def test_nodes_go_on_while_their_logs_are_trimmed(self, journal: Path) -> None:
        with NodeWriter(journal, "a", segment_bytes_max=2_500) as node, Merger(journal, 2) as merger:
            dropped = 0
            for number in range(30):
                node.append_to("emma", [Event(f"x{number}", "emma", "call", 0, {})])
                merger.merge()
                dropped += trim(journal)["a.1"].segments
        assert dropped > 6
        assert len(ids(MergedJournal(journal))) == 70

    def test_an_index_that_is_behind_a_trimmed_log_takes_the_rest_from_its_base(self, journal: Path) -> None:
        with NodeWriter(journal, "b") as other:
            fill(journal, 10, first=10)
            merge(journal)
            trim(journal)
            assert other.append_to("emma", [Event("new", "emma", "call", 0, {})]).first_sequence == 21

    def test_the_command_says_what_went(self, tmp_path: Path, journal: Path) -> None:
        assert run("trim", "--dir", str(tmp_path), "--keep-days", "1").stdout.startswith("0 segments")
        told = lines(run("trim", "--dir", str(tmp_path), "--json"))[0]
        assert told["segments"] > 3
        assert run("read", "--dir", str(tmp_path), "--json").stdout.count("\n") == 40

    def test_before_there_is_a_stream_nothing_goes(self, tmp_path: Path) -> None:
        NodeWriter(tmp_path, "a").close()
        with pytest.raises(RequestInvalid, match="no merged stream"):
            trim(tmp_path)


class TestRetentionOfTheStream:
    @pytest.fixture
    def long(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A stream of many segments."""
        monkeypatch.setattr(partition, "SEGMENT_BYTES_MAX", 3_000)
        journal = Layout(tmp_path).journal
        with NodeWriter(journal, "a") as node, Merger(journal, 2) as merger:
            for number in range(12):
                node.append(events(range(number, number + 1)))
                merger.merge()
        assert all(len(segment_offsets(part.directory)) > 3 for part in JournalFiles(journal).partitions().values())
        return journal

    def test_segments_of_all_partitions_go_and_readers_and_mergers_go_on(self, long: Path, tmp_path: Path) -> None:
        stream, place = MergedJournal(long), JournalFiles.of(long)
        kept = stream.end()
        done = drop_all(place, kept, [], tmp_path / "archive")
        assert set(done) == {"0", "1"}
        assert all(dropped.segments > 2 for dropped in done.values())
        assert stream.begin() == Position.of({name: dropped.begin for name, dropped in done.items()})
        tables = [pq.read_table(path) for dropped in done.values() for path in dropped.archived]
        archived = {
            (name, offset)
            for table in tables
            for name, offset in zip(*(table.column(c).to_pylist() for c in ("partition", "offset")), strict=True)
        }
        assert archived == {(name, offset) for name, begin in stream.begin().parts for offset in range(begin)}
        assert all(extra is None for table in tables for extra in table.column("extra").to_pylist())
        shutil.rmtree(long / "merged" / "index")
        with NodeWriter(long, "a") as node, Merger(long, 2) as merger:
            receipt = node.append_to("emma", [Event("new", "emma", "call", 0, {})])
            assert (receipt.first_sequence, merger.merge()) == (13, 1)
        assert stream.covers(receipt.position)
        assert stream.covers(Position.of({"a.1": 4})), "its event is gone, and was there"
        with QueryViews(stream, long / "views") as views:
            assert views.follow() == stream.end()
            found = [one.event.sequence for one in Queries(stream, views).entity("emma").current(stream.begin())]
            assert found[-1] == 13
            assert found == list(range(found[0] or 0, 14))
        with pytest.raises(EventsGone):
            list(stream.batches("0", 0, 1))

    def test_what_a_reader_needs_in_any_partition_stays_in_all(self, long: Path) -> None:
        stream = MergedJournal(long)
        reader = Reader("slow", Position.of({"0": stream.end()["0"]}))
        with pytest.raises(EventsNeeded, match=r"slow has read up to .*, and the events before 1:"):
            drop_all(JournalFiles.of(long), stream.end(), [reader])
        assert stream.begin() == Position.start()

    def test_a_partition_that_lies_in_another_one_s_place_is_told(self, long: Path) -> None:
        stream = MergedJournal(long)
        (long / "merged" / "0").rename(long / "merged" / "x")
        (long / "merged" / "1").rename(long / "merged" / "0")
        (long / "merged" / "x").rename(long / "merged" / "1")
        with pytest.raises(JournalCorrupt, match="is not partition 0 of this stream"):
            list(stream.batches("0", 0, 1))


class TestVerify:
    def test_a_journal_that_nodes_moved_entities_between_is_right(self, tmp_path: Path, journal: Path) -> None:
        fill(journal, 5, "b")
        fill(journal, 5, first=10)
        assert run("views", "--dir", str(tmp_path)).exit_code == 0
        fill(journal, 1, "b", first=5)
        merge(journal)
        verdict = verify(JournalFiles.of(journal))
        assert verdict.ok, verdict.lines()
        assert verdict.compared == ["views", "nodes' logs"]
        assert (verdict.entities, verdict.events) == (4, 2 * 84)
        trim(journal)
        drop_all(JournalFiles.of(journal), MergedJournal(journal).end(), [])
        verdict = verify(JournalFiles.of(journal))
        assert verdict.ok, verdict.lines()

    def test_an_event_that_the_stream_lacks_or_has_from_elsewhere_is_found(self, tmp_path: Path, journal: Path) -> None:
        """The last frames of the stream are cut off, with the mark: then it says itself that it is done with less."""
        (tmp_path / "copy").mkdir()
        shutil.copytree(journal / "merged" / "0", tmp_path / "copy" / "0")
        fill(journal, 5, "b")
        merge(journal)
        shutil.rmtree(journal / "merged" / "0")
        shutil.copytree(tmp_path / "copy" / "0", journal / "merged" / "0")
        verdict = verify(JournalFiles.of(journal))
        assert not verdict.ok
        assert "merge" in verdict.findings.counts

    @pytest.mark.parametrize("where", ["merged/0", "merged/1", "nodes/a/1"])
    def test_damage_anywhere_is_told_with_its_place(self, tmp_path: Path, journal: Path, where: str) -> None:
        path = sorted((journal / where).glob("*.segment"))[0]
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        result = run("verify", "--dir", str(tmp_path))
        assert (result.exit_code, str(path) in result.stdout) == (1, True)
        assert ("The log a.1" if "nodes" in where else f"Partition {where[-1]} of the stream") in result.stdout

    def test_views_that_know_something_else_are_found_in_each_partition(self, tmp_path: Path, journal: Path) -> None:
        stream = MergedJournal(journal)
        with QueryViews(stream, journal / "views") as views:
            views.follow()
        generation = next((journal / "views").glob("*/data.mdb")).parent
        for number, name in enumerate(["0", "1"]):
            with lmdb.open(str(generation), max_dbs=5, map_size=1 << 24) as environment:
                blocks = environment.open_db(b"blocks")
                with environment.begin(write=True) as transaction:
                    cursor = transaction.cursor(blocks)
                    for key, value in cursor:
                        block = unpack_block(key, value)
                        if block.partition == number and len(block.offsets) > 2:
                            offsets = block.offsets.copy()
                            offsets[1] = offsets[0]
                            transaction.put(key, pack_block(key, block.before, number, offsets.tolist()), db=blocks)
                            break
            verdict = verify(JournalFiles.of(journal))
            told = [finding.what for finding in verdict.findings.shown if finding.kind == "views"]
            assert any(what.startswith(f"Partition {name} of the stream") for what in told), verdict.lines()
