"""The text that Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from sidecar.counters import Event
from sidecar.observers.board import Board, RowCounters
from sidecar.observers.exposition import Exposition
from sidecar.observers.families import DURATIONS, FAMILIES, GUARD_SOURCES, LEGS, REQUESTS
from sidecar.observers.kinds import Counter, Gauge, Histogram
from sidecar.observers.peers import PeerBoard

# Contract section 10, as it spells them.
BOUNDS = (
    *("0.005", "0.025", "0.05", "0.1", "0.2", "0.4", "0.6", "0.8", "1", "1.25", "1.5", "2", "3", "4", "5"),
    *("6", "8", "10", "15", "20", "30", "45", "60", "120", "180", "240", "300", "360", "480", "600", "900"),
    *("1200", "1800", "2700", "3600", "+Inf"),
)
PEERS = {
    "llm_d_disagg_sidecar_requests": ("counter", {"api_type"}),
    "llm_d_disagg_sidecar_disagg_requests": ("counter", {"disagg_type"}),
    "llm_d_disagg_sidecar_encode_duration_seconds": ("histogram", {"le"}),
    "llm_d_disagg_sidecar_prefill_duration_seconds": ("histogram", {"le"}),
    "llm_d_disagg_sidecar_decode_duration_seconds": ("histogram", {"le"}),
    "llm_d_disagg_sidecar_request_errors": ("counter", {"stage"}),
    "moriio_dns_reresolve": ("counter", set[str]()),
    "moriio_dns_ip_changed": ("counter", set[str]()),
    "moriio_dns_lookup_failures": ("counter", set[str]()),
}


def test_names_kinds_and_labels_are_the_peers() -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(Exposition(Board(1)).text().decode())
    }
    found = {
        name: (families[name].type, {label for sample in families[name].samples for label in sample.labels})
        for name in PEERS
    }
    assert found == PEERS


def test_every_series_is_there_from_the_start_at_zero() -> None:
    lines = [line for line in Exposition(Board(2)).text().decode().splitlines() if line[0] != "#"]
    assert {line.split()[-1] for line in lines} == {"0.0"}
    assert 'llm_d_disagg_sidecar_request_errors_total{stage="encode"} 0.0' in lines
    assert 'llm_d_disagg_sidecar_disagg_requests_total{disagg_type="e/pd"} 0.0' in lines
    assert 'llm_d_disagg_sidecar_requests_total{api_type="vllm_generate"} 0.0' in lines


def test_values_are_summed_over_processes_and_buckets_are_cumulative() -> None:
    board, decode = Board(2), DURATIONS["decode"]
    board.row(0)[REQUESTS.cell("messages")] += 2
    board.row(1)[REQUESTS.cell("messages")] += 1
    for row, bucket, seconds in ((0, 0, 0.001), (1, 8, 1.0), (1, 35, 4000.0)):
        board.row(row)[decode.first + bucket] += 1
        board.row(row)[decode.sum_cell] += seconds
    RowCounters(board.row(1)).add(Event.DNS_IP_CHANGED)
    lines = Exposition(board).text().decode().splitlines()

    name = "llm_d_disagg_sidecar_decode_duration_seconds"
    buckets = [line for line in lines if line.startswith(f"{name}_bucket")]
    assert buckets == [
        f'{name}_bucket{{le="{bound}"}} {1.0 if place < 8 else 2.0 if place < 35 else 3.0}'
        for place, bound in enumerate(BOUNDS)
    ]
    assert [line for line in lines if line.startswith((f"{name}_count", f"{name}_sum"))] == [
        f"{name}_count 3.0",
        f"{name}_sum 4001.001",
    ]
    assert 'llm_d_disagg_sidecar_requests_total{api_type="messages"} 3.0' in lines
    assert "moriio_dns_ip_changed_total 1.0" in lines


def test_kinds_are_told_and_a_series_has_all_of_its_labels() -> None:
    board = Board(1)
    board.row(0)[LEGS.cell("prefill", "cut")] += 2
    board.row(0)[GUARD_SOURCES.cell("bad")] = 7
    text = Exposition(board).text().decode()
    assert 'llm_d_disagg_sidecar_legs_total{role="prefill",status="cut"} 2.0' in text.splitlines()
    assert 'llm_d_disagg_sidecar_guard_sources{state="bad"} 7.0' in text.splitlines()
    kinds = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}
    for family in FAMILIES:
        assert f"# TYPE {family.name} {kinds[type(family)]}\n" in text


def test_bounds_of_bytes_are_spelled_whole() -> None:
    text = Exposition(Board(1)).text().decode()
    assert 'llm_d_disagg_sidecar_request_body_bytes_bucket{le="67108864"} 0.0' in text.splitlines()


def test_sources_are_labels_only_where_there_is_a_table_of_them() -> None:
    board, peers = Board(1), PeerBoard(2)
    for row in (0, 1):
        peers.row(row).cells("10.0.0.9:7777")[0] += 1
    assert "source=" not in Exposition(board).text().decode()
    lines = Exposition(board, peers).text().decode().splitlines()
    assert 'llm_d_disagg_sidecar_source_pulls_total{outcome="moved",source="10.0.0.9:7777"} 2.0' in lines
    assert 'llm_d_disagg_sidecar_source_pulled_bytes_total{source="other"} 0.0' in lines
