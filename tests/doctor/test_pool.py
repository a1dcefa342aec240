"""The command on an InferencePool: its pods are the peers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.certificates import Authority, server_tls
from tests.doctor.bench import HOSTS, PROMPT_TOKENS, doctor
from tests.lab.bench import make_engine
from tests.pool.kube import PODS, POOLS, KubeApi, kube, pod, pool
from tests.pool.test_watch import kubeconfig

FLAGS = ("--inference-pool=ns/pool", f"--prompt-tokens={PROMPT_TOKENS}", "--json")


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeApi]:
    """The API of a cluster, as the command's KUBECONFIG names it."""
    authority = Authority("kubernetes")
    tls = server_tls(authority.write(tmp_path / "api", "127.0.0.1", "kubernetes.default.svc"))
    async with kube(tls) as running:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(running, authority, tmp_path)))
        yield running


async def test_its_pods_are_found_page_by_page_and_pull_from_one_another(api: KubeApi) -> None:
    async with (
        make_engine(HOSTS[0]) as first,
        make_engine(HOSTS[1], port=first.port, p2p_port=first.p2p_port) as second,
    ):
        api.page_objects = 1
        api.put(POOLS, pool(ports=(first.port,)))
        api.put(POOLS, pool("another", ports=(1,)))
        api.put(PODS, pod("b", HOSTS[1]))
        api.put(PODS, pod("a", HOSTS[0]))
        api.put(PODS, pod("ended", HOSTS[2], phase="Succeeded"))
        api.put(PODS, pod("waiting"))
        api.put(PODS, pod("of-another-app", HOSTS[2], app="web"))
        ran = await doctor(*FLAGS, f"--p2p-port={first.p2p_port}")

        assert [peer["url"] for peer in ran.json["peers"]] == [first.url, second.url]
    assert (ran.code, ran.verdicts()) == (0, {"A to B": "moved", "B to A": "moved"})
    assert not any(asked.watches for asked in api.asked)


async def test_what_is_missing_is_one_line(api: KubeApi) -> None:
    absent = await doctor(*FLAGS)
    api.put(POOLS, pool())
    empty = await doctor(*FLAGS)
    api.put(PODS, pod("a", HOSTS[0]))
    lonely = await doctor(*FLAGS)
    api.refusals = [403]
    forbidden = await doctor(*FLAGS)
    api.put(POOLS, {"metadata": {"name": "pool", "namespace": "ns", "resourceVersion": "1"}, "spec": 7})
    unreadable = await doctor(*FLAGS)
    assert {ran.code for ran in (absent, empty, lonely, forbidden, unreadable)} == {2}
    assert absent.err == "sidecar doctor: --inference-pool: ns/pool does not exist\n"
    assert empty.err == "sidecar doctor: --inference-pool: ns/pool has no pod with an address\n"
    assert lonely.err == "sidecar doctor: --inference-pool: 1 peer, and it takes two to pull\n"
    assert forbidden.err == (
        "sidecar doctor: --inference-pool: the Kubernetes API answered 403: refused by the script\n"
    )
    assert unreadable.err.startswith(
        "sidecar doctor: --inference-pool: the Kubernetes API's answer cannot be read: ValidationError: "
    )


async def test_without_access_or_without_the_extra_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    without_access = await doctor(*FLAGS)
    monkeypatch.setitem(sys.modules, "sidecar.pool.cluster", None)
    without_extra = await doctor(*FLAGS)
    assert (without_access.code, without_extra.code) == (2, 2)
    begin = "sidecar doctor: --inference-pool: "
    assert without_access.err.startswith(f"{begin}no access to Kubernetes: KUBECONFIG is ")
    assert without_extra.err.startswith(f"{begin}needs the extra sidecar[kubernetes] (")
    assert without_extra.err.count("\n") == without_access.err.count("\n") == 1
