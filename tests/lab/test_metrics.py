"""Series and their text."""

from __future__ import annotations

import pytest

from sidecar.lab import EngineConfig
from sidecar.lab.metrics import Family, Metrics
from sidecar.lab.series import engine_metrics

LABELS = {"engine": "0", "model_name": "tiny"}


def lines(metrics: Metrics) -> list[str]:
    return [line for line in metrics.text().splitlines() if "_created" not in line]


def test_a_counter_is_written_as_vllm_writes_it() -> None:
    metrics = Metrics([Family("vllm:x_total", "counter", "Help.", initial=((),))], LABELS)
    metrics.add("vllm:x_total", 160)
    assert lines(metrics) == [
        "# HELP vllm:x_total Help.",
        "# TYPE vllm:x_total counter",
        'vllm:x_total{engine="0",model_name="tiny"} 160.0',
    ]


def test_a_counter_has_a_created_gauge() -> None:
    metrics = Metrics([Family("vllm:x_total", "counter", "Help.", initial=((),))], LABELS)
    assert "# TYPE vllm:x_created gauge" in metrics.text()


def test_labels_are_sorted_with_the_common_ones_among_them() -> None:
    metrics = Metrics([Family("x_total", "counter", "Help.")], LABELS)
    metrics.add("x_total", finished_reason="stop")
    assert lines(metrics)[-1] == 'x_total{engine="0",finished_reason="stop",model_name="tiny"} 1.0'


def test_a_labelled_series_appears_when_it_is_first_used() -> None:
    metrics = Metrics([Family("x_total", "counter", "Help.")], LABELS)
    assert lines(metrics) == ["# HELP x_total Help.", "# TYPE x_total counter"]
    metrics.add("x_total", 0, tier="1:p2p")
    assert len(lines(metrics)) == 3


def test_a_histogram_is_cumulative_and_its_bounds_belong_to_the_bucket_below() -> None:
    metrics = Metrics([Family("x_seconds", "histogram", "Help.", (0.5, 1.0), ((),), common=())], LABELS)
    for value in (0.5, 0.75, 3):
        metrics.observe("x_seconds", value)
    assert lines(metrics)[2:] == [
        'x_seconds_bucket{le="0.5"} 1.0',
        'x_seconds_bucket{le="1.0"} 2.0',
        'x_seconds_bucket{le="+Inf"} 3.0',
        "x_seconds_count 3.0",
        "x_seconds_sum 4.25",
    ]
    assert metrics.count("x_seconds") == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [(655360, "655360.0"), (1310720, "1.31072e+06"), (1.796e9, "1.796e+09"), (0.001, "0.001"), (0, "0.0")],
)
def test_numbers_are_written_as_prometheus_client_writes_them(value: float, text: str) -> None:
    metrics = Metrics([Family("x", "gauge", "Help.", common=())], {})
    metrics.put("x", value)
    assert lines(metrics)[-1] == f"x {text}"


def test_label_values_are_escaped() -> None:
    metrics = Metrics([Family("x", "gauge", "Help.", common=("model_name",))], {"model_name": 'a"b\\c\nd'})
    metrics.put("x", 1)
    assert lines(metrics)[-1] == r'x{model_name="a\"b\\c\nd"} 1.0'


def test_a_level_counts_who_is_inside_even_when_they_leave_by_an_error() -> None:
    metrics = Metrics([Family("x", "gauge", "Help.")], LABELS)

    def fail_inside() -> None:
        with metrics.level("x"):
            assert metrics.value("x") == 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    assert metrics.value("x") == 0


def test_what_has_no_family_is_not_kept() -> None:
    metrics = engine_metrics(EngineConfig(kv_connector="none"))
    metrics.add("vllm:kv_offload_load_bytes_total", 5)
    assert "vllm:kv_offload" not in metrics.text()


def test_the_series_of_a_connector_are_there_only_with_it() -> None:
    assert "vllm:nixl_bytes_transferred_bucket" in engine_metrics(EngineConfig(kv_connector="nixl")).text()
    assert "vllm:nixl" not in engine_metrics(EngineConfig(kv_connector="offloading")).text()


def test_series_that_vllm_has_from_the_start_are_there_and_offloading_ones_are_not() -> None:
    text = engine_metrics(EngineConfig()).text()
    assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 0.0' in text
    assert 'vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="tiny",stage="in_progress"} 0.0' in text
    assert "# TYPE vllm:kv_offload_tiering_read_bytes_total counter" in text
    assert "vllm:kv_offload_tiering_read_bytes_total{" not in text


def test_the_block_size_is_told_without_a_model_name() -> None:
    text = engine_metrics(EngineConfig(block_size=32)).text()
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert 'block_size="32"' in line
    assert 'engine="0"' in line
    assert "model_name" not in line
