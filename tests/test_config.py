"""The sample configurations load, and say what their comments say."""

from __future__ import annotations

from pathlib import Path

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
