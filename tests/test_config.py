"""The sample configurations load, and say what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sidecar.observers.families import FAMILIES
from sidecar.settings import load

CONFIG = Path(__file__).parent.parent / "config"


def test_the_sample_configuration_loads() -> None:
    settings = load([f"--configuration-file={CONFIG / 'sidecar.yaml'}"], {"POD_IP": "127.0.0.1"})

    assert (settings.kv_connector, settings.p2p_connector_port) == ("offloading", 7777)
    assert (settings.source_guard, settings.prefill_max_retries, settings.prefill_retry_backoff_s) == (
        "on",
        2,
        0.2,
    )


# What each sample of a connector is for, as the settings have it.
CONNECTORS: dict[str, dict[str, object]] = {
    "encoders": {"ec_connector": "ec-nixl", "kv_connector": "nixlv2"},
    "mooncake": {"kv_connector": "mooncake", "mooncake_bootstrap_port": 8998},
    "moriio": {"moriio_write_mode": True, "moriio_dp_size": 16, "moriio_dp_size_local": 8},
    "nixlv2": {"kv_connector": "nixlv2", "enable_p2p_pull": True, "prefill_failure_policy": "local"},
    "offloading": {"kv_connector": "offloading", "p2p_connector_port": 7777, "source_guard": "on"},
    "sglang": {"kv_connector": "sglang"},
    "shared-storage": {"kv_connector": "shared-storage"},
}


@pytest.mark.parametrize("name", sorted(CONNECTORS))
def test_the_sample_of_a_connector_sets_what_it_is_for(name: str) -> None:
    settings = load([f"--configuration-file={CONFIG / 'connectors' / name}.yaml"], {"POD_IP": "127.0.0.1"})

    assert {field: getattr(settings, field) for field in CONNECTORS[name]} == CONNECTORS[name]


def test_every_sample_of_a_connector_is_tested() -> None:
    assert {path.stem for path in (CONFIG / "connectors").iterdir()} == CONNECTORS.keys()


def test_the_collector_s_pipeline_uses_what_is_configured_and_no_more() -> None:
    collector = yaml.safe_load((CONFIG / "collector" / "collector.yaml").read_text())
    traces = collector["service"]["pipelines"]["traces"]

    for part in ("receivers", "processors", "exporters"):
        assert sorted(traces[part]) == sorted(collector[part])
    assert collector["service"]["extensions"] == list(collector["extensions"])
    assert traces["processors"][0] == "memory_limiter"


def test_the_scrape_configuration_loads_the_alerts_on_metrics_that_there_are() -> None:
    scrape = yaml.safe_load((CONFIG / "prometheus" / "scrape.yaml").read_text())
    alerts = [CONFIG / "prometheus" / name for name in scrape["rule_files"]]
    text = "".join(path.read_text() for path in alerts)

    assert [job["job_name"] for job in scrape["scrape_configs"]] == ["sidecar"]
    assert any(family.name in text for family in FAMILIES)
