"""The line at start says what runs where, and a command that works as it stands."""

import pytest

from sidecar.settings import load, start_line


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            [],
            "sidecar 1.2.3 on https://*:8000, decoder http://localhost:8200, connector nixlv2; "
            "try: curl -k https://localhost:8000/v1/models",
        ),
        (
            ["--secure-serving=false", "--port=80", "--kv-connector=offloading", "--enable-tls=decoder"],
            "sidecar 1.2.3 on http://*:80, decoder https://localhost:8200, connector offloading; "
            "try: curl http://localhost:80/v1/models",
        ),
        (
            ["--host=127.0.0.2", "--enable-p2p-pull", "--model-server-port=8300"],
            "sidecar 1.2.3 on https://127.0.0.2:8000, decoder http://localhost:8300, connector nixlv2 "
            "with p2p pulls; try: curl -k https://127.0.0.2:8000/v1/models",
        ),
        (
            ["--moriio-write-mode", "--moriio-local-pod-ip=10.0.0.1", "--enable-p2p-pull"],
            "sidecar 1.2.3 on https://*:8000, decoder http://localhost:8200, connector nixlv2 in MoRI-IO "
            "write mode with p2p pulls; try: curl -k https://localhost:8000/v1/models",
        ),
        (
            ["--host=[::1]", "--secure-serving=false"],
            "sidecar 1.2.3 on http://[::1]:8000, decoder http://localhost:8200, connector nixlv2; "
            "try: curl 'http://[::1]:8000/v1/models'",
        ),
        (
            ["--host=::"],
            "sidecar 1.2.3 on https://[::]:8000, decoder http://localhost:8200, connector nixlv2; "
            "try: curl -k https://localhost:8000/v1/models",
        ),
        (
            ["--workers=2", "--metrics-port=9090"],
            "sidecar 1.2.3 on https://*:8000, decoder http://localhost:8200, connector nixlv2, 2 workers, "
            "metrics http://*:9090/metrics; try: curl -k https://localhost:8000/v1/models",
        ),
        (
            ["--metrics-port=9090", "--debug-endpoints"],
            "sidecar 1.2.3 on https://*:8000, decoder http://localhost:8200, connector nixlv2, "
            "metrics http://*:9090/metrics, debug page http://*:9090/debug/; "
            "try: curl -k https://localhost:8000/v1/models",
        ),
        (
            ["--data-parallel-size=4", "--host=127.0.0.1"],
            "sidecar 1.2.3 on https://127.0.0.1:8000, decoder http://localhost:8200, connector nixlv2, "
            "4 ranks from these ports on; try: curl -k https://127.0.0.1:8000/v1/models",
        ),
        (
            ["--host=0.0.0.0"],
            "sidecar 1.2.3 on https://0.0.0.0:8000, decoder http://localhost:8200, connector nixlv2; "
            "try: curl -k https://localhost:8000/v1/models",
        ),
    ],
)
def test_the_start_line_names_address_decoder_connector_and_a_command(argv: list[str], line: str) -> None:
    assert start_line(load(argv, {}), "1.2.3") == line
