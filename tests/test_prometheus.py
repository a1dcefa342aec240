"""A real Prometheus scrapes a running sidecar; promtool judges its text, the alerts and their unit tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.observers.families import FAMILIES
from tests.commands import command
from tests.engines import Answer, Got, scripted
from tests.prometheus import program, prometheus, promtool
from tests.queries import (
    ALERTS,
    TARGET_LABELS,
    Query,
    alert_queries,
    alert_rules,
    panel_queries,
    variable_queries,
)
from tests.serving import BODY, SOURCE, post
from tests.test_answers import closed_port
from tests.test_metrics_port import ask, get
from tests.test_verify import Engine

RULE_TESTS = sorted((ALERTS.parent / "tests").glob("*.yaml"))
FLAGS = ("--kv-connector=offloading", "--pull-verification-interval=50ms", "--metrics-peers")
P = "llm_d_disagg_sidecar_"


@asynccontextmanager
async def used(tmp_path: Path) -> AsyncIterator[int]:
    """The metrics port of a sidecar that has had two streams, a pull and a source out of reach."""

    async def script(got: Got, answer: Answer) -> None:
        if b'"stream"' in got.body:
            await answer.events(*(b"data: %d\n\n" % number for number in range(4)), gap_s=0.01)
        else:
            await engine.script(got, answer)

    engine, metrics, p2p = Engine(), closed_port(), closed_port()
    source = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.2", p2p)
    flags = (*FLAGS, f"--metrics-port={metrics}", f"--p2p-connector-port={p2p}")
    async with (
        source,
        scripted(script) as decoder,
        command(tmp_path, decoder.port, *flags, environ={"POD_IP": "127.0.0.1"}) as sidecar,
    ):
        for body in (b'{"stream":true}', b'{"stream":true}'):
            assert (await ask(sidecar.port, post(body=body))).status == 200
        for host in ("127.0.0.2", "127.0.0.3"):
            assert (await ask(sidecar.port, post(headers=[(SOURCE, f"{host}:8000")]))).status == 200
        yield metrics


async def text_of(metrics: int) -> str:
    """What it exposes."""
    return (await ask(metrics, get("/metrics"))).body.decode()


async def test_promtool_finds_nothing_wrong_with_the_text(tmp_path: Path) -> None:
    program("promtool")
    async with used(tmp_path) as metrics:
        text = await text_of(metrics)
    # promtool takes the d of the peer's prefix for days; without that there is nothing to say.
    code, said = await promtool("check", "metrics", text=text.encode())
    complaints = {line.partition(" ")[2] for line in said.splitlines()}
    assert (code, complaints) == (3, {"metric names should not contain abbreviated units"})
    spelled = text.replace("llm_d_", "llmd_").encode()
    assert await promtool("check", "metrics", text=spelled) == (0, "")


async def test_every_query_of_the_dashboard_has_an_answer_in_a_real_prometheus(tmp_path: Path) -> None:
    program("prometheus")
    async with used(tmp_path) as metrics, prometheus(tmp_path, metrics) as server:
        await server.sees("up", 1)
        await server.sees(f'{P}pulls_total{{outcome="moved"}}', 1)
        for query, wanted in {
            f"sum({P}requests_total)": 4,
            f'{P}legs_total{{role="decode",status="2xx"}}': 4,
            f"{P}pulled_bytes_total": 4096,
            f"{P}pulled_tokens_total": 64,
            f'{P}pulls_skipped_total{{reason="source_unreachable"}}': 1,
            f'{P}source_pulled_bytes_total{{source!="other"}}': 4096,
            f"{P}time_to_first_token_seconds_count": 2,
            f"{P}stream_write_interval_mean_seconds_count": 2,
            f"{P}request_body_bytes_sum": 2 * len(b'{"stream":true}') + 2 * len(BODY),
            f"{P}answer_body_bytes_count": 4,
            f"{P}requests_in_flight": 0,
            f"{P}workers": 1,
            "count_over_time(up[1h]) > bool 3": 1,
        }.items():
            await server.sees(query, wanted)
        interval_s = await server.number(f"{P}stream_write_interval_mean_seconds_sum")
        assert interval_s is not None
        assert interval_s >= 2 * 0.009
        silent = [query.where for query in panel_queries() if not await server.ask(query.filled())]
        assert silent == []
        for alert in alert_queries():
            assert await server.ask(alert.text) == [], alert.where


async def test_all_that_config_asks_for_is_exposed(tmp_path: Path) -> None:
    async with used(tmp_path) as metrics:
        families = list(text_string_to_metric_families(await text_of(metrics)))
    exposed: dict[str, dict[str, set[str]]] = {}
    for family in families:
        for sample in family.samples:
            labels = exposed.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    for query in (*panel_queries(), *variable_queries(), *alert_queries()):
        assert missing(query, exposed) == [], query.where


def missing(query: Query, exposed: dict[str, dict[str, set[str]]]) -> list[str]:
    """What a query names and no series has."""
    absent, known = list[str](), set(TARGET_LABELS)
    for name, matchers in query.selectors():
        if name not in exposed:
            absent.append(name)
            continue
        known |= exposed[name].keys()
        for label, values in matchers.items():
            if label not in TARGET_LABELS:
                had = exposed[name].get(label, set())
                absent += [f"{name} {label}={value}" for value in values if value not in had]
    return absent + sorted(query.labels() - known)


@pytest.mark.parametrize(
    "text",
    ["rate(llm_d_gone_total[1m])", 'llm_d_x{state="odd"}', "sum by (gone) (llm_d_x)", 'llm_d_x{other="a"}'],
)
def test_a_query_for_what_is_not_exposed_is_found(text: str) -> None:
    exposed = {"llm_d_x": {"state": {"good"}}}
    assert missing(Query("panel", text), exposed)
    assert missing(Query("panel", 'sum by (state, job) (llm_d_x{state="good",job=~"$job"})'), exposed) == []


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    asked = {name for query in panel_queries() for name, _ in query.selectors()}
    plain = {name.removesuffix("_bucket") for name in asked}
    assert {family.name for family in FAMILIES} - plain == set()


async def test_the_alert_rules_are_sound() -> None:
    code, said = await promtool("check", "rules", "--lint-fatal", str(ALERTS))
    assert (code, f"{len(alert_rules())} rules found" in said) == (0, True), said


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
async def test_each_alert_fires_when_it_should_and_only_then(path: Path) -> None:
    code, said = await promtool("test", "rules", str(path))
    assert code == 0, said


def test_each_alert_has_a_file_of_unit_tests_in_which_it_fires() -> None:
    texts = "".join(path.read_text() for path in RULE_TESTS)
    assert len(RULE_TESTS) == len(alert_rules())
    for rule in alert_rules():
        fires = f"alertname: {rule['alert']}\n        exp_alerts:\n          - exp_labels"
        quiet = f"alertname: {rule['alert']}\n        exp_alerts: []"
        assert fires in texts, rule["alert"]
        assert quiet in texts, rule["alert"]
