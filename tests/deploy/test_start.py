"""The sidecar starts with the arguments of every overlay and relays a request to the engine behind it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.commands import command
from tests.deploy.render import NAMES, Pod, pods
from tests.engines import complete, scripted
from tests.server.test_tls import new_pair, write_pair
from tests.serving import BODY, CHAT
from tests.test_answers import closed_port

FRONTED = [pod for name in NAMES for pod in pods(name) if pod.sidecar]

# Given anew: the manifests' ports may be taken here, a certificate is made here, and there is no cluster.
_OURS = ("--port", "--model-server-port", "--metrics-port", "--cert-path", "--secure-serving")
_CLUSTER = ("--enable-ssrf-protection", "--inference-pool")


@pytest.mark.parametrize("pod", FRONTED, ids=lambda pod: pod.overlay)
async def test_the_arguments_start_the_sidecar(pod: Pod, tmp_path: Path) -> None:
    assert pod.sidecar
    names = {arg.partition("=")[0] for arg in pod.sidecar_args}
    args = [arg for arg in pod.sidecar_args if arg.partition("=")[0] not in (*_OURS, *_CLUSTER)]
    metrics = closed_port()
    if "--metrics-port" in names:
        args.append(f"--metrics-port={metrics}")
    if "--cert-path" in names:
        write_pair(tmp_path, new_pair())
        args.append(f"--cert-path={tmp_path}")
    ranks = 8 if "--data-parallel-size=8" in args else 1
    plain = "--cert-path" not in names
    # Without a collector there is nothing to export to; the exporter's own tests have one.
    environ = {**pod.environ(pod.sidecar), "OTEL_TRACES_EXPORTER": "none"}

    async with (
        scripted(complete) as engine,
        command(tmp_path, engine.port, *args, plain=plain, ports=ranks, environ=environ) as running,
        httpx.AsyncClient(verify=False, timeout=40) as client,
    ):
        scheme = "http" if plain else "https"
        answer = await client.post(f"{scheme}://127.0.0.1:{running.port}{CHAT}", content=BODY)
        # With metrics on, the engine's counters are read beside.
        asked = [got for got in engine.requests if got.method == "POST"]
        assert (answer.status_code, len(asked)) == (200, 1)
        if "--metrics-port" in names:
            told = await client.get(f"http://127.0.0.1:{metrics}/metrics")
            assert 'requests_total{api_type="chat_completions"} 1' in told.text
