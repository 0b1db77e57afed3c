"""Metrics of real servers: valid, documented, and all that dashboard and alerts ask for.

The servers are of folders that 0.1.0 wrote: bills, and a shop whose journal nodes write.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from stateside.core.layout import Layout
from stateside.core.processes import Child, free_port
from stateside.pipeline.progress import TotalsFile
from stateside.serving.health.metrics import JOB_STATES, FolderUse
from tests.serving.conftest import serving
from tests.setup.test_setup import tool
from tests.waiting import wait_until

TOP = Path(__file__).parents[3]
WRITTEN = TOP / "tests" / "compatibility" / "v0.1.0.tar.xz"
ALERTS = TOP / "deploy" / "prometheus" / "alerts.yml"
OF_PROMETHEUS = {"job", "instance"}  # labels that Prometheus adds to every series
ON_DEMAND = {"stateside_state_rows"}  # only where Spark counts the rows
UNITS = ("_seconds", "_bytes", "_events", "_rows", "_batches", "_amount")
BARE = re.compile(r"_(state|held|trouble|info|batch|finding|generation|gaps|watchers|statements|fds)$")  # no unit
proxy = tool("proxy")


@dataclass(frozen=True)
class Scraped:
    """The servers' addresses by folder, and all families of both by name."""

    urls: Mapping[str, str]
    layouts: Mapping[str, Layout]
    families: Mapping[str, Metric]

    def labels(self, name: str) -> set[str] | None:
        """The labels of a series' name; None if no server has such a series."""
        found = [sample for family in self.families.values() for sample in family.samples if sample.name == name]
        return {label for sample in found for label in sample.labels} if found else None


def families(url: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text)}


def number(url: str, series: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in families(url).values()
        for sample in family.samples
        if sample.name == series and labels.items() <= sample.labels.items()
    ]
    return float(found)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder, urls, found = tmp_path_factory.mktemp("written"), dict[str, str](), dict[str, Metric]()
    with tarfile.open(WRITTEN) as archive:
        archive.extractall(folder, filter="data")
    layouts = {name: Layout(folder / name) for name in ("billing", "shop")}
    with ExitStack() as stack:
        for name, layout in layouts.items():
            layout.keys.unlink()
            for view in layout.views():
                TotalsFile(view).save(2, sink_held=False)  # as a run does at its first heartbeat
            server = contextmanager(serving)(layout, folder / f"{name}.log", "/readyz")
            urls[name] = stack.enter_context(server)
            httpx.get(f"{urls[name]}/v1/views")
            found |= families(urls[name])
        yield Scraped(urls, layouts, found)


@pytest.mark.e2e
def test_every_metric_has_a_text_a_kind_and_a_name_by_convention(scraped: Scraped) -> None:
    for url in scraped.urls.values():
        lines = httpx.get(f"{url}/metrics").text.splitlines()
        for about in ("HELP", "TYPE"):
            names = [line.split()[2] for line in lines if line.startswith(f"# {about}")]
            assert len(names) == len(set(names))
    for name, family in scraped.families.items():
        assert family.documentation and family.type in ("gauge", "counter", "histogram"), name
        assert name.startswith(("stateside_", "process_"))
        assert all(sample.name == f"{name}_total" for sample in family.samples) == (family.type == "counter"), name
        assert family.type == "counter" or name.endswith(UNITS) or BARE.search(name), name


@pytest.mark.e2e
def test_the_documentation_lists_exactly_these_metrics(scraped: Scraped) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ?(.*?) \| (\w+) \|", (TOP / "docs" / "metrics.md").read_text(), re.MULTILINE)
    documented = {
        name.removesuffix("_total"): (set(filter(None, labels.split(", "))), kind) for name, labels, kind in rows
    }
    found = {
        name: ({label for sample in family.samples for label in sample.labels if label != "le"}, family.type)
        for name, family in scraped.families.items()
    }
    assert {**{name: documented[name] for name in ON_DEMAND}, **found} == documented


@pytest.mark.e2e
def test_each_job_is_in_exactly_one_state_and_every_state_has_a_series(scraped: Scraped) -> None:
    states = {
        sample.labels["state"]: sample.value
        for sample in families(scraped.urls["billing"])["stateside_job_state"].samples
    }
    assert set(states) == set(JOB_STATES)
    assert [state for state, value in states.items() if value] == ["stopped"]


@pytest.mark.e2e
def test_an_event_that_no_batch_has_is_lag_of_the_job_and_not_of_the_replica(scraped: Scraped) -> None:
    url = scraped.urls["billing"]
    events, lag = number(url, "stateside_journal_events_total"), number(url, "stateside_job_lag_events")
    sent = {"events": [{"id": "extra", "entity": "c1", "type": "call", "payload": {"quantity": 1}}]}
    assert httpx.post(f"{url}/v1/events", json=sent).status_code == 200
    assert number(url, "stateside_journal_events_total") == events + 1
    assert number(url, "stateside_job_lag_events") == lag + 1
    assert number(url, "stateside_replica_lag_events") == number(url, "stateside_replica_lag_batches") == 0


@pytest.mark.e2e
def test_open_streams_and_running_statements_are_counted_until_they_end(scraped: Scraped) -> None:
    url = scraped.urls["billing"]
    with httpx.stream("GET", f"{url}/v1/views/bill/changes?key=c1", timeout=30) as stream:
        parts = stream.iter_bytes()
        next(parts)
        assert number(url, "stateside_watchers") == 1
    wait_until(lambda: number(url, "stateside_watchers") == 0)
    asking = HTTPConnection(urlsplit(url).netloc, timeout=90)
    long = "SELECT count(*) FROM bill a, bill b, bill c, bill d, bill e, bill f"
    asking.request("POST", "/v1/sql", json.dumps({"sql": long}), {"content-type": "application/json"})
    wait_until(lambda: number(url, "stateside_sql_statements") == 1)
    asking.close()
    wait_until(lambda: number(url, "stateside_sql_statements") == 0)


@pytest.mark.e2e
def test_billing_s_amounts_are_those_of_its_periods(scraped: Scraped) -> None:
    url = scraped.urls["billing"]
    periods = httpx.get(f"{url}/v1/periods").json()["periods"]
    for currency in ("EUR", "USD"):
        parts = [each for period in periods for each in period["currencies"] if each["currency"] == currency]
        for name, column in (("open", "open_micros"), ("sealed", "charged_micros")):
            amount = number(url, f"stateside_billing_{name}_amount", currency=currency)
            assert round(amount * 1_000_000) == sum(each[column] for each in parts) > 0


def expressions() -> list[tuple[str, str]]:
    """All queries of dashboard and alerts, with their names; Grafana's variables as Grafana fills them in."""
    panels = json.loads((TOP / "deploy" / "grafana" / "stateside.json").read_text())["panels"]
    shown = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]
    filled = [(title, text.replace("$__rate_interval", "1m").replace("$view", ".*")) for title, text in shown]
    return filled + [(rule["alert"], rule["expr"]) for group in alerts()["groups"] for rule in group["rules"]]


def alerts() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(ALERTS.read_text())
    return found


def unknown_in(expression: str, scraped: Scraped) -> list[str]:
    """The names and labels of a query that no server has; ValueError for text that is no query."""
    wrong, known = list[str](), set[str](OF_PROMETHEUS)

    def selector(node: Any) -> None:
        labels = OF_PROMETHEUS if node.name == "up" else scraped.labels(node.name)
        if labels is None and node.name not in ON_DEMAND:
            wrong.append(node.name)
        known.update(labels or {"view", "operator"})
        wrong.extend(each.name for each in node.matchers.matchers if each.name not in known)

    def look(node: Any) -> bool:
        if isinstance(node, promql_parser.MatrixSelector):
            selector(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            selector(node)
        return True

    def look_at_labels(node: Any) -> bool:
        modifier = getattr(node, "modifier", None)
        grouping = modifier if isinstance(node, promql_parser.AggregateExpr) else getattr(modifier, "matching", None)
        wrong.extend(label for label in getattr(grouping, "labels", None) or () if label not in known)
        return True

    tree = promql_parser.parse(expression)
    promql_parser.walk(tree, look)
    promql_parser.walk(tree, look_at_labels)
    return list(dict.fromkeys(wrong))


@pytest.mark.e2e
def test_dashboard_and_alerts_ask_for_names_and_labels_that_servers_have(scraped: Scraped) -> None:
    asked = expressions()
    assert len(asked) > 40
    assert {name: wrong for name, text in asked if (wrong := unknown_in(text, scraped))} == {}


@pytest.mark.e2e
def test_the_check_of_queries_finds_wrong_names_and_labels(scraped: Scraped) -> None:
    assert unknown_in("rate(stateside_nothing_total[5m]) > 0", scraped) == ["stateside_nothing_total"]
    assert unknown_in('stateside_view_rows{vieww="a"}', scraped) == ["vieww"]
    assert unknown_in("sum by (colour) (stateside_view_rows)", scraped) == ["colour"]
    assert unknown_in("stateside_view_rows + on (colour) stateside_view_batch", scraped) == ["colour"]
    with pytest.raises(ValueError):
        unknown_in("sum by (", scraped)


FIRING: Mapping[str, Mapping[str, str]] = {  # of each alert: series that let it fire, by a minute
    "StatesideFreshnessLost": {'stateside_view_age_seconds{view="a"}': "61+0x60"},
    "StatesideReplicaTrouble": {'stateside_replica_trouble{view="a"}': "1+0x60"},
    "StatesideReplicaLagging": {'stateside_replica_lag_batches{view="a"}': "21+0x60"},
    "StatesideServerDown": {'up{job="stateside"}': "0+0x60"},
    "StatesideJobDown": {'stateside_job_state{view="a",state="down"}': "1+0x60"},
    "StatesideJobRestarting": {'stateside_job_restarts_total{view="a"}': "0+1x60"},
    "StatesideSinkHeld": {'stateside_job_sink_held{view="a"}': "1+0x60"},
    "StatesideLagGrowing": {'stateside_job_lag_events{view="a"}': "10001+10x60"},
    "StatesideLateRows": {'stateside_job_late_rows_total{view="a"}': "0+1x60"},
    "StatesideDeadLettersRising": {"stateside_billing_dead_letters_total": "0+1x60"},
    "StatesideDiskNearlyFull": {
        'stateside_disk_free_bytes{place="folder"}': "9+0x60",
        'stateside_disk_size_bytes{place="folder"}': "100+0x60",
    },
    "StatesideJournalTrouble": {"stateside_journal_trouble": "1+0x60"},
    "StatesideMergeGap": {"stateside_merge_gap_seconds": "61+0x60"},
}
CALM: Mapping[str, str] = {  # a healthy system: nothing fires
    'stateside_view_age_seconds{view="a"}': "59+0x60",
    'stateside_replica_trouble{view="a"}': "0+0x60",
    'stateside_replica_lag_batches{view="a"}': "2+0x60",
    'up{job="stateside"}': "1+0x60",
    'stateside_job_state{view="a",state="down"}': "0+0x60",
    'stateside_job_state{view="a",state="idle"}': "1+0x60",
    'stateside_job_restarts_total{view="a"}': "7+0x60",
    'stateside_job_sink_held{view="a"}': "0+0x60",
    'stateside_job_lag_events{view="a"}': "20000-10x60",
    'stateside_job_late_rows_total{view="a"}': "5+0x60",
    'stateside_job_dead_letters_total{view="a"}': "5+0x60",
    "stateside_billing_dead_letters_total": "5+0x60",
    'stateside_disk_free_bytes{place="folder"}': "50+0x60",
    'stateside_disk_size_bytes{place="folder"}': "100+0x60",
    "stateside_journal_trouble": "0+0x60",
    "stateside_merge_gap_seconds": "0+0x60",
}
PROMTOOL = proxy.promtool(os.environ)
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason=f"There is no promtool: {proxy.ADVICE}")


def test_every_alert_has_a_case_a_severity_and_a_next_step() -> None:
    rules = [rule for group in alerts()["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == set(FIRING)
    assert all(rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["next_step"] for rule in rules)


@needs_promtool
def test_each_alert_fires_when_it_should_and_none_in_a_healthy_system(tmp_path: Path) -> None:
    def case(series: Mapping[str, str], *firing: str) -> dict[str, Any]:
        expected = {name: [{"labels": "{}", "value": 1}] if name in firing else [] for name in firing or FIRING}
        checks = [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                "eval_time": "50m",
                "exp_samples": samples,
            }
            for name, samples in expected.items()
        ]
        given = [{"series": name, "values": values} for name, values in series.items()]
        return {"interval": "1m", "input_series": given, "promql_expr_test": checks}

    cases = [case(series, name) for name, series in FIRING.items()] + [case(CALM)]
    tests = tmp_path / "tests.yml"
    tests.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases}))
    for command in (["check", "rules", str(ALERTS)], ["test", "rules", str(tests)]):
        done = subprocess.run([str(PROMTOOL), *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.e2e
@needs_promtool
def test_a_real_prometheus_takes_the_metrics_and_every_query(scraped: Scraped, tmp_path: Path) -> None:
    targets = [url.removeprefix("http://") for url in scraped.urls.values()]
    job = {"job_name": "stateside", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "scrape_configs": [job]}))
    port = free_port()
    options = [f"--config.file={configuration}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    program = [str(Path(str(PROMTOOL)).with_name("prometheus")), *options, f"--web.listen-address=127.0.0.1:{port}"]
    child = Child(program, tmp_path / "prometheus.log")

    def asked(query: str) -> list[Any]:
        answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", (query, answer)
        found: list[Any] = answer["data"]["result"]
        return found

    def scrapes() -> bool:
        try:
            return len(asked("up == 1")) == len(targets)
        except (httpx.TransportError, ValueError):
            assert child.returncode() is None, child.tail()
            return False

    try:
        wait_until(scrapes)
        for _, expression in expressions():
            asked(expression)
        assert asked("count by (__name__) (stateside_billing_sealed_amount)")
    finally:
        child.stop()


def test_the_age_of_snapshots_is_that_of_the_partition_that_a_restart_reads_longest(tmp_path: Path) -> None:
    def put(name: str, time_s: int) -> None:
        path = tmp_path / "state" / "0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
        os.utime(path, (time_s, time_s))

    for name, time_s in (("0/1.changelog", 100), ("0/5_ab.zip", 500), ("0/9.zip", 900), ("0/SSTs/1.sst", 50)):
        put(name, time_s)
    put("_metadata/metadata", 10)
    assert FolderUse.of(tmp_path) == FolderUse(25, 900)
    for name, time_s in (("1/left-keyToNumValues/7.delta", 700), ("1/left-keyToNumValues/8.delta", 800)):
        put(name, time_s)
    assert FolderUse.of(tmp_path) == FolderUse(35, 700)
    assert FolderUse.of(tmp_path / "nothing") == FolderUse(0, None)
