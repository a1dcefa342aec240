"""The allowlist follows the InferencePool and its pods, through every fault of the API server."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest
import yaml

from sidecar.allowlist import Allowlist, entry
from sidecar.endpoint import Endpoint
from sidecar.pool import reflector
from sidecar.pool.cluster import Cluster, _refused, credentials
from sidecar.pool.watch import PoolName, PoolWatch
from tests.certificates import Authority, server_tls
from tests.pool.kube import PODS, POOLS, KubeApi, kube, pod, pool

NAME = PoolName("inference.networking.k8s.io", "ns", "pool")
A, B = Endpoint("10.0.0.1", 8000), Endpoint("10.0.0.2", 8000)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("kubernetes")


@pytest.fixture
async def api(authority: Authority, tmp_path: Path) -> AsyncIterator[KubeApi]:
    tls = server_tls(authority.write(tmp_path / "api", "127.0.0.1", "kubernetes.default.svc"))
    async with kube(tls) as running:
        running.put(POOLS, pool())
        running.put(PODS, pod("a", "10.0.0.1"))
        yield running


@pytest.fixture
def account(api: KubeApi, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod's service account, and the variables that tell a pod where the API is."""
    monkeypatch.setattr(reflector, "_FIRST_DELAY_S", 0.02)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    directory = tmp_path / "account"
    directory.mkdir()
    (directory / "token").write_text("first")
    (directory / "namespace").write_text("elsewhere")
    (directory / "ca.crt").write_bytes(authority.pem)
    return directory


@asynccontextmanager
async def watching(account: Path, *, ranks: int = 1, static: str = "") -> AsyncIterator[PoolWatch]:
    always = Allowlist.of([entry(static)] if static else [])
    async with PoolWatch(partial(Cluster, str(account)), NAME, always, ranks) as watch:
        yield watch


async def until(holds: Callable[[], object]) -> None:
    """Wait until it does, for 5 s at most."""
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)


def endpoints(watch: PoolWatch) -> set[str]:
    return {endpoint.netloc for endpoint in watch.allowlist.endpoints}


async def both_open(api: KubeApi) -> None:
    """The watches of pool and pods are open."""
    await until(lambda: {asked.path for asked in api.watching} == {POOLS, PODS})


async def test_host_and_port_of_every_pod_of_the_selector_are_allowed(api: KubeApi, account: Path) -> None:
    api.put(POOLS, pool("other", (9000,)))
    api.put(PODS, pod("of-another-app", "10.0.0.9", app="x"))
    async with watching(account) as watch:
        assert not watch.synced
        assert not watch.allowlist.allows(A)
        await until(lambda: watch.synced)
        assert endpoints(watch) == {"10.0.0.1:8000"}
        assert watch.allowlist.allows(A)
        assert not watch.allowlist.allows(Endpoint("10.0.0.1", 22))
        listed = [asked for asked in api.asked if not asked.watches]
        assert [(one.path, one.query) for one in listed] == [
            (POOLS, {"fieldSelector": "metadata.name=pool", "limit": "500"}),
            (PODS, {"labelSelector": "app=vllm", "limit": "500"}),
        ]


async def test_every_target_port_and_rank_and_both_address_families_are_allowed(
    api: KubeApi, account: Path
) -> None:
    dual = pod("a", "10.0.0.1")
    dual["status"]["podIPs"].append({"ip": "fd00::1"})
    api.put(PODS, dual)
    api.put(POOLS, pool(ports=(8000, 8100)))
    async with watching(account, ranks=2) as watch:
        await until(lambda: watch.synced)
        ports = (8000, 8001, 8100, 8101)
        assert endpoints(watch) == {f"{host}:{port}" for host in ("10.0.0.1", "[fd00::1]") for port in ports}


async def test_pods_come_and_go_and_only_running_ones_with_an_address_count(
    api: KubeApi, account: Path
) -> None:
    async with watching(account) as watch:
        await both_open(api)
        api.put(PODS, pod("b"))
        api.put(PODS, pod("c", "10.0.0.3"))
        await until(lambda: endpoints(watch) == {"10.0.0.1:8000", "10.0.0.3:8000"})
        api.put(PODS, pod("b", "10.0.0.2"))
        await until(lambda: watch.allowlist.allows(B))

        ending = pod("a", "10.0.0.1")
        ending["metadata"]["deletionTimestamp"] = "2026-11-30T08:00:00Z"
        api.put(PODS, ending)
        api.put(PODS, pod("c", "10.0.0.3", phase="Failed"))
        await until(lambda: endpoints(watch) == {"10.0.0.2:8000"})

        api.put(PODS, pod("b", "10.0.0.2", app="moved-away"))
        await until(lambda: endpoints(watch) == set())
        api.put(PODS, pod("d", "10.0.0.4"))
        await until(lambda: endpoints(watch) == {"10.0.0.4:8000"})
        api.delete(PODS, "d")
        await until(lambda: endpoints(watch) == set())
        assert watch.synced


async def test_a_changed_pool_changes_ports_and_selector_and_a_deleted_one_allows_nothing(
    api: KubeApi, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(PODS, pod("x", "10.0.0.7", app="x"))
    async with watching(account, static="peer:9000") as watch:
        await both_open(api)
        api.put(POOLS, pool(ports=(9000,)))
        await until(lambda: endpoints(watch) == {"10.0.0.1:9000", "peer:9000"})
        api.put(POOLS, pool(ports=(9000,), app="x"))
        await until(lambda: endpoints(watch) == {"10.0.0.7:9000", "peer:9000"})
        api.delete(POOLS, "pool")
        await until(lambda: endpoints(watch) == {"peer:9000"})
        await until(lambda: [asked.path for asked in api.watching] == [POOLS])
    assert "InferencePool ns/pool does not exist" in caplog.text


async def test_without_the_pool_it_is_not_synced_and_says_so_until_it_comes(
    api: KubeApi, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.delete(POOLS, "pool")
    async with watching(account, static="10.9.0.0/16") as watch:
        await until(lambda: "does not exist" in caplog.text)
        assert not watch.synced
        assert not watch.allowlist.allows(A)
        assert watch.allowlist.allows(Endpoint("10.9.1.1", 1))
        api.put(POOLS, pool())
        await until(lambda: watch.synced)
        assert watch.allowlist.allows(A)
        assert watch.allowlist.allows(Endpoint("10.9.1.1", 1))


async def test_a_pool_that_selects_by_no_label_does_not_select_every_pod(api: KubeApi, account: Path) -> None:
    every = pool()
    every["spec"]["selector"]["matchLabels"] = {}
    async with watching(account) as watch:
        await both_open(api)
        api.put(POOLS, every)
        await until(lambda: endpoints(watch) == set())


async def test_an_object_that_cannot_be_read_counts_as_absent(
    api: KubeApi, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = pod("a", "10.0.0.1")
    broken["status"]["podIP"] = 7
    async with watching(account) as watch:
        await until(lambda: watch.allowlist.allows(A))
        api.put(PODS, broken)
        await until(lambda: endpoints(watch) == set())
        assert "pods/a cannot be read and counts as absent" in caplog.text


async def test_a_large_list_comes_in_pages(api: KubeApi, account: Path) -> None:
    for number in range(2, 8):
        api.put(PODS, pod(f"p{number}", f"10.0.0.{number}"))
    api.page_objects = 3
    async with watching(account) as watch:
        await until(lambda: watch.synced)
        assert endpoints(watch) == {f"10.0.0.{number}:8000" for number in range(1, 8)}
        assert [one.query.get("continue") for one in api.asked if one.path == PODS][:3] == [None, "3", "6"]


async def test_a_watch_goes_on_from_the_bookmark_after_its_end(api: KubeApi, account: Path) -> None:
    async with watching(account) as watch:
        await both_open(api)
        api.bookmark()
        marked = str(api.version)
        await asyncio.sleep(0.05)
        before = len(api.asked)
        api.end_watches()
        await until(lambda: len(api.asked) >= before + 2)
        again = api.asked[before:]
        assert [(one.watches, one.query["resourceVersion"]) for one in again] == [(True, marked)] * 2
        assert {one.query["allowWatchBookmarks"] for one in again} == {"true"}
        api.put(PODS, pod("b", "10.0.0.2"))
        await until(lambda: watch.allowlist.allows(B))


@pytest.mark.parametrize("how", ["by an event", "by a status"])
async def test_a_version_that_is_gone_is_listed_again_and_loses_no_deletion(
    how: str, api: KubeApi, account: Path
) -> None:
    async with watching(account) as watch:
        await both_open(api)
        listed = sum(not one.watches for one in api.asked)
        if how == "by an event":
            api.forget()
            api.expire_watches()
        else:
            await api.stop()
            api.delete(PODS, "a")
            api.put(PODS, pod("b", "10.0.0.2"))
            api.forget()
            await api.start()
            await until(lambda: endpoints(watch) == {"10.0.0.2:8000"})
        await until(lambda: sum(not one.watches for one in api.asked) == listed + 2)
        await both_open(api)
        api.put(PODS, pod("c", "10.0.0.3"))
        await until(lambda: watch.allowlist.allows(Endpoint("10.0.0.3", 8000)))


async def test_what_is_known_stays_while_the_api_is_away_and_is_put_right_afterwards(
    api: KubeApi, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(account) as watch:
        await both_open(api)
        await api.stop()
        await until(lambda: "what is known stays" in caplog.text)
        assert watch.synced
        assert watch.allowlist.allows(A)
        api.delete(PODS, "a")
        api.put(PODS, pod("b", "10.0.0.2"))
        await api.start()
        await until(lambda: endpoints(watch) == {"10.0.0.2:8000"})
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 2  # one for each collection, however often it was tried


async def test_cut_connections_and_refusals_are_tried_again_with_growing_pauses(
    api: KubeApi, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(pause_s: float) -> None:
        pauses.append(pause_s)
        await sleep(pause_s)

    api.refusals = [500, 503, 429, 403]
    monkeypatch.setattr(asyncio, "sleep", noted)
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    async with watching(account) as watch:
        await until(lambda: watch.synced)
        slept = [pause for pause in pauses if pause >= 0.02]
        assert slept[:4] == [0.02, 0.04, 0.08, 0.16]
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await both_open(api)
        api.break_watches()
        await until(lambda: not api.watching)
        await both_open(api)
        api.put(PODS, pod("b", "10.0.0.2"))
        await until(lambda: watch.allowlist.allows(B))


async def test_a_rotated_token_is_read_again(api: KubeApi, account: Path) -> None:
    async with watching(account) as watch:
        await both_open(api)
        (account / "token").write_text("second\n")
        api.tokens = {"second"}
        api.end_watches()
        await until(lambda: api.asked[-1].token == "second")
        await both_open(api)
        api.put(PODS, pod("b", "10.0.0.2"))
        await until(lambda: watch.allowlist.allows(B))
        refused = [one for one in api.asked if one.token == "first" and one.watches]
        assert len(refused) <= 4  # both watches, and at most one more look with the old one each


async def test_a_rotated_authority_of_the_api_is_read_again(
    api: KubeApi, account: Path, tmp_path: Path
) -> None:
    async with watching(account) as watch:
        await both_open(api)
        new = Authority("renewed")
        await api.stop()
        api.tls = server_tls(new.write(tmp_path / "renewed", "127.0.0.1"))
        await api.start()
        await asyncio.sleep(0.1)
        assert not api.watching  # not trusted yet
        (account / "ca.crt").write_bytes(new.pem)
        api.put(PODS, pod("b", "10.0.0.2"))
        await until(lambda: watch.allowlist.allows(B))


async def test_an_api_server_that_is_not_trusted_teaches_nothing(
    api: KubeApi, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (account / "ca.crt").write_bytes(Authority("somebody").pem)
    async with watching(account) as watch:
        await until(lambda: "certificate verify failed" in caplog.text.lower())
        assert not watch.synced
        assert endpoints(watch) == set()
    assert api.asked == []


async def test_a_watch_whose_server_falls_silent_is_given_up(
    api: KubeApi, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "_WATCH_S", (0, 0))
    monkeypatch.setattr(reflector, "_LATE_S", 0.1)
    async with watching(account):
        await until(lambda: sum(one.watches for one in api.asked) >= 6)


@pytest.mark.parametrize("status", [200, 401, 403, 503])
async def test_an_answer_that_is_packed_is_refused_unread(
    api: KubeApi, account: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    api.packed, api.refusals = 1, [status]
    async with watching(account) as watch:
        await until(lambda: watch.synced)
    [warned] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned.endswith("OSError: content-encoding 'gzip, gzip', where identity was asked for")
    assert {asked.accepts for asked in api.asked} == {"identity"}


async def test_a_watch_that_is_packed_is_refused_unread(
    api: KubeApi, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "sidecar.pool")
    async with watching(account) as watch:
        await both_open(api)
        api.packed = 1
        api.end_watches()
        await until(lambda: "where identity was asked for" in caplog.text)
        await both_open(api)
        api.put(PODS, pod("b", "10.0.0.2"))
        await until(lambda: watch.allowlist.allows(B))


async def test_leaving_it_ends_every_task_and_connection(api: KubeApi, account: Path) -> None:
    tasks = len(asyncio.all_tasks())
    async with watching(account):
        await both_open(api)
    await until(lambda: not api.watching)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_leaving_it_in_the_middle_of_a_handshake_closes_that_connection(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came, closed = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)  # of a client's first message, which nobody answers
        came.set()
        await reader.read()
        closed.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.sockets[0].getsockname()[1]))
    async with server, asyncio.timeout(5):
        async with watching(account):
            await came.wait()
        await closed.wait()
    gc.collect()  # what is left behind open warns now, and a warning is an error


def kubeconfig(api: KubeApi, authority: Authority, tmp_path: Path) -> Path:
    """A kubeconfig with relative paths, as kubectl writes none and operators do."""
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "token").write_text("first")
    file = tmp_path / "config.yaml"
    cluster = {"server": f"https://127.0.0.1:{api.port}", "certificate-authority": "ca.pem"}
    file.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": "first"}}],
            }
        )
    )
    return file


async def test_a_kubeconfig_comes_before_the_service_account(
    api: KubeApi, account: Path, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (account / "token").write_text("of nobody")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(api, authority, tmp_path)))
    async with watching(account) as watch:
        await until(lambda: watch.synced)
        assert watch.allowlist.allows(A)


def test_no_access_is_one_line_that_begins_with_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(ValueError, match=r"^--inference-pool: no access to Kubernetes: ") as nothing:
        credentials(str(tmp_path / "none"))
    assert str(nothing.value).partition("Kubernetes: ")[2] == (
        f"no service account of a pod in {tmp_path / 'none'}, KUBECONFIG is not set, "
        "and there is no ~/.kube/config"
    )
    broken = tmp_path / "broken.yaml"
    broken.write_text("{[")
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(broken))
    with pytest.raises(
        ValueError, match=r"^--inference-pool: no access to Kubernetes: KUBECONFIG is .*$"
    ) as bad:
        credentials()
    assert "\n" not in str(bad.value)


@pytest.mark.parametrize("status", [401, 403])
async def test_no_leave_is_one_line_that_names_the_flag_and_what_is_missing(
    api: KubeApi, account: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    api.refusals = [status, status]
    async with watching(account) as watch:
        await until(lambda: watch.synced)
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == [
        f"--inference-pool: no leave to list and watch {POOLS}, what is known stays: "
        f"the Kubernetes API answered {status}: refused by the script"
    ]


def test_a_refusal_that_repeats_the_token_is_told_without_it() -> None:
    request = httpx2.Request("GET", "https://api/", headers={"authorization": "Bearer s3cret"})
    refused = _refused(httpx2.Response(403, request=request), b'{"message":"s3cret: forbidden"}')
    assert str(refused) == "the Kubernetes API answered 403: ***: forbidden"


@pytest.mark.parametrize(
    ("text", "namespace", "name"), [("ns/pool", "ns", "pool"), ("pool", "default", "pool")]
)
def test_a_bare_name_is_in_namespace_default(text: str, namespace: str, name: str) -> None:
    assert PoolName.parse("g", text) == PoolName("g", namespace, name)
