"""The sidecar starts with the arguments of every overlay and relays a request to the engine behind it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority, server_tls
from tests.commands import command
from tests.deploy.render import NAMES, NAMESPACE, POD_IP, Pod, of_kind, pods
from tests.engines import ScriptedEngine, complete, scripted
from tests.pool.kube import PODS, POOLS, KubeApi, kube
from tests.pool.test_watch import kubeconfig
from tests.serving import BODY, CHAT, PREFILLER
from tests.test_answers import closed_port

FRONTED = [pod for name in NAMES for pod in pods(name) if pod.sidecar]
PROTECTED = [pod for pod in FRONTED if "--enable-ssrf-protection" in pod.sidecar_args]
OPEN = [pod for pod in FRONTED if pod not in PROTECTED]


def arguments(pod: Pod, tmp_path: Path, metrics_port: int) -> Iterator[str]:
    """Those of the manifest; ports that may be taken here and the certificate are replaced."""
    for arg in pod.sidecar_args:
        match arg.partition("=")[0]:
            case "--port" | "--model-server-port" | "--secure-serving":
                continue
            case "--metrics-port":
                yield f"--metrics-port={metrics_port}"
            case "--cert-path":
                Authority().write(tmp_path, POD_IP)
                yield f"--cert-path={tmp_path}"
            case _:
                yield arg


@asynccontextmanager
async def started(
    pod: Pod, tmp_path: Path, kubernetes: str = ""
) -> AsyncIterator[tuple[str, int, ScriptedEngine]]:
    """A pod's sidecar before an engine: its URL, the metrics port, the engine."""
    assert pod.sidecar
    metrics_port = closed_port()
    args = list(arguments(pod, tmp_path, metrics_port))
    plain = "--secure-serving=false" in pod.sidecar_args
    ranks = 8 if "--data-parallel-size=8" in args else 1
    # Without a collector there is nothing to export to; the exporters' own tests have one.
    environ = {**pod.environ(pod.sidecar), "OTEL_TRACES_EXPORTER": "none", "KUBECONFIG": kubernetes}
    async with (
        scripted(complete) as engine,
        command(tmp_path, engine.port, *args, plain=plain, ports=ranks, environ=environ) as running,
    ):
        yield f"{'http' if plain else 'https'}://127.0.0.1:{running.port}", metrics_port, engine


@pytest.mark.parametrize("pod", OPEN, ids=lambda pod: pod.overlay)
async def test_the_arguments_start_the_sidecar(pod: Pod, tmp_path: Path) -> None:
    async with (
        started(pod, tmp_path) as (url, metrics_port, engine),
        httpx.AsyncClient(verify=False, timeout=40) as client,
    ):
        assert (await client.post(url + CHAT, content=BODY)).status_code == 200
        # With metrics on, the engine's counters are read beside.
        assert [got.method for got in engine.requests].count("POST") == 1
        if "--metrics-port=9090" in pod.sidecar_args:
            told = await client.get(f"http://127.0.0.1:{metrics_port}/metrics")
            assert 'requests_total{api_type="chat_completions"} 1' in told.text


def cluster(api: KubeApi, pod: Pod) -> None:
    """Put the overlay's own pool there, and a pod as the overlay labels it."""
    [pool] = of_kind(pod.overlay, "InferencePool")
    api.put(POOLS, copy.deepcopy(pool))
    metadata = {"name": f"{pod.name}-0", "namespace": NAMESPACE, "labels": dict(pod.labels)}
    api.put(PODS, {"metadata": metadata, "status": {"phase": "Running", "podIP": "127.0.0.9"}})


@pytest.mark.parametrize("pod", PROTECTED, ids=lambda pod: pod.overlay)
async def test_protected_pods_learn_the_pool_with_the_rights_that_they_have(pod: Pod, tmp_path: Path) -> None:
    authority = Authority()
    async with kube(server_tls(authority.write(tmp_path / "api", "127.0.0.1"))) as api:
        cluster(api, pod)
        kubernetes = str(kubeconfig(api, authority, tmp_path))
        async with (
            started(pod, tmp_path, kubernetes) as (url, _, engine),
            httpx.AsyncClient(verify=False, timeout=40) as client,
            asyncio.timeout(40),
        ):
            while (await client.get(f"{url}/ready")).status_code != 200:
                await asyncio.sleep(0.05)
            assert (await client.post(url + CHAT, content=BODY)).status_code == 200
            elsewhere = {PREFILLER: "127.0.0.9:22"}
            assert (await client.post(url + CHAT, content=BODY, headers=elsewhere)).status_code == 403
            assert [got.method for got in engine.requests].count("POST") == 1
        [role] = of_kind(pod.overlay, "Role")
        granted = {(rule["resources"][0], verb) for rule in role["rules"] for verb in rule["verbs"]}
        assert {
            (one.path.rpartition("/")[2], "watch" if one.watches else "list") for one in api.asked
        } == granted
