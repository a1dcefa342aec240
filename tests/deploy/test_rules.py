"""What has to agree between engine, sidecar, pool, endpoint picker and sizes, in every overlay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sidecar.settings import Settings, SettingsError, load
from sidecar.settings.model import BY_NAME, SETTINGS
from tests.deploy.render import (
    NAMES,
    Object,
    Pod,
    flag,
    of_kind,
    pods,
    quantity_bytes,
    render,
    template,
    transfer,
)
from tests.deploy.rules import RULES, prometheus_rule

EVERY_POD = [pod for name in NAMES for pod in pods(name)]
FRONTED = [pod for pod in EVERY_POD if pod.sidecar]
each_pod = pytest.mark.parametrize("pod", EVERY_POD, ids=lambda pod: f"{pod.overlay}-{pod.name}")
each_fronted = pytest.mark.parametrize("pod", FRONTED, ids=lambda pod: f"{pod.overlay}-{pod.name}")
each_overlay = pytest.mark.parametrize("overlay", NAMES)

# What the OpenTelemetry SDK and our exporters read by themselves, and what only arguments use.
_READ_BY_SDK = "OTEL_"
_FOR_ARGUMENTS = {"NAMESPACE"}
GIB = 2**30


def settings(pod: Pod) -> Settings:
    """What a sidecar is set to; certificates are not at hand, and one flag may be to come."""
    args = [
        arg
        for arg in pod.sidecar_args
        if arg.partition("=")[0] not in ("--cert-path", "--enable-ssrf-protection")
    ]
    assert pod.sidecar
    return load(args, pod.environ(pod.sidecar))


@each_fronted
def test_every_flag_exists_and_none_is_given_twice(pod: Pod) -> None:
    names = [arg.partition("=")[0] for arg in pod.sidecar_args]
    assert [name for name in names if name.removeprefix("--") not in BY_NAME and name not in BY_NAME] == []
    assert len(names) == len(set(names))


@each_fronted
def test_the_arguments_are_accepted(pod: Pod) -> None:
    assert pod.sidecar
    args = [arg for arg in pod.sidecar_args if not arg.startswith("--cert-path")]
    # The one flag that a release may not serve yet: it then says so, and nothing else.
    to_come = [] if BY_NAME["enable-ssrf-protection"].works(True) else ["--enable-ssrf-protection"]
    assert refused(args, pod) == [flag for flag in to_come if flag in args]


def refused(args: list[str], pod: Pod) -> list[str]:
    """The flags that the settings refuse."""
    assert pod.sidecar
    try:
        load(args, pod.environ(pod.sidecar))
    except SettingsError as problems:
        return [problem.partition(":")[0] for problem in problems.problems]
    return []


@each_fronted
def test_every_variable_is_read(pod: Pod) -> None:
    assert pod.sidecar
    read = {setting.facts.env for setting in SETTINGS} | _FOR_ARGUMENTS
    names = {name for name in pod.environ(pod.sidecar) if not name.startswith(_READ_BY_SDK)}
    assert names <= read
    assert names >= {"POD_IP"}


@each_fronted
def test_the_sidecar_s_ports_are_those_of_pool_probes_and_container(pod: Pod) -> None:
    assert pod.sidecar
    chosen = settings(pod)
    ranks = range(chosen.data_parallel_size)
    [pool] = of_kind(pod.overlay, "InferencePool")
    ports = {port["name"]: port["containerPort"] for port in pod.sidecar["ports"]}
    metrics = ports.pop("metrics", 0)

    assert sorted(ports.values()) == [chosen.port + rank for rank in ranks]
    assert [port["number"] for port in pool["spec"]["targetPorts"]] == sorted(ports.values())
    assert metrics == chosen.metrics_port
    for probe, path in (
        ("startupProbe", "/health"),
        ("livenessProbe", "/health"),
        ("readinessProbe", "/ready"),
    ):
        get = pod.sidecar[probe]["httpGet"]
        scheme = "HTTPS" if chosen.secure_serving else "HTTP"
        assert (get["path"], ports[get["port"]], get["scheme"]) == (path, chosen.port, scheme)


@each_fronted
def test_the_engine_listens_where_the_sidecar_looks(pod: Pod) -> None:
    chosen = settings(pod)
    ranks = range(chosen.data_parallel_size)
    ports = {port["containerPort"] for port in pod.engine["ports"]}
    tier = transfer(pod.engine_words)["kv_connector_extra_config"]["secondary_tiers"][0]

    assert int(flag(pod.engine_words, "--port")) == chosen.model_server_port
    assert tier["type"] == "p2p"
    assert ports >= {chosen.model_server_port + rank for rank in ranks}
    assert ports >= {chosen.p2p_connector_port + rank for rank in ranks}
    # vLLM adds a rank's number over all pods; these are the words of the second pod.
    first = chosen.data_parallel_size if chosen.data_parallel_size > 1 else 0
    assert tier["port"] + first == chosen.p2p_connector_port


@each_pod
def test_peers_can_find_this_pod_s_blocks(pod: Pod) -> None:
    extra = transfer(pod.engine_words)["kv_connector_extra_config"]
    assert extra["spec_name"] == "TieringOffloadingSpec"
    assert extra["offload_prompt_only"] is False
    assert extra["secondary_tiers"][0]["host"] == pod.environ(pod.engine)["POD_IP"]
    assert pod.environ(pod.engine)["PYTHONHASHSEED"] == "0"


@each_pod
def test_the_index_gets_events_under_the_port_that_is_routed_to(pod: Pod) -> None:
    words = pod.engine_words
    events = json.loads(flag(words, "--kv-events-config"))
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in picker(pod.overlay)["plugins"]}
    index = plugins["precise-prefix-cache-producer"]
    [pool] = of_kind(pod.overlay, "InferencePool")
    routed = [port["number"] for port in pool["spec"]["targetPorts"]]
    model = words[words.index("serve") + 1]
    first = len(routed) if len(routed) > 1 else 0

    assert events["enable_kv_cache_events"] is True
    assert events["topic"] == f"kv@{pod.environ(pod.engine)['POD_IP']}:{routed[0]}@{model}"
    assert events["topic"].startswith(index["kvEventsConfig"]["topicFilter"])
    listens = int(events["endpoint"].rpartition(":")[2]) + first
    assert listens == index["kvEventsConfig"]["podDiscoveryConfig"]["socketPort"]
    assert {listens + rank for rank in range(len(routed))} <= {
        p["containerPort"] for p in pod.engine["ports"]
    }
    assert int(flag(words, "--block-size")) == index["tokenProcessorConfig"]["blockSize"]
    assert plugins["token-producer"]["modelName"] == model


@each_pod
def test_what_has_no_sidecar_listens_on_the_routed_port_itself(pod: Pod) -> None:
    [pool] = of_kind(pod.overlay, "InferencePool")
    if pod.sidecar is None:
        assert int(flag(pod.engine_words, "--port")) == pool["spec"]["targetPorts"][0]["number"]
    assert pod.labels["llm-d.ai/role"] == ("prefill" if pod.sidecar is None else "decode")


@each_overlay
def test_pool_budget_and_selectors_name_the_pods(overlay: str) -> None:
    [pool] = of_kind(overlay, "InferencePool")
    [budget] = of_kind(overlay, "PodDisruptionBudget")
    for pod in pods(overlay):
        for selector in (pool["spec"]["selector"], budget["spec"]["selector"]):
            assert selector["matchLabels"].items() <= pod.labels.items()
    for workload in of_kind(overlay, "Deployment"):
        selected = workload["spec"]["selector"]["matchLabels"]
        assert selected.items() <= template(workload)["metadata"]["labels"].items()
    selectors = [str(workload["spec"]["selector"]) for workload in of_kind(overlay, "Deployment")]
    assert len(selectors) == len(set(selectors))


@each_pod
def test_the_sizes_add_up(pod: Pod) -> None:
    tier = transfer(pod.engine_words)["kv_connector_extra_config"]["cpu_bytes_to_use"]
    ranks = settings(pod).data_parallel_size if pod.sidecar else 1
    [shm] = [
        quantity_bytes(one["emptyDir"]["sizeLimit"]) for one in pod.spec["volumes"] if one["name"] == "shm"
    ]
    resources = pod.engine["resources"]
    memory = quantity_bytes(resources["limits"]["memory"])

    assert {"name": "shm", "mountPath": "/dev/shm"} in pod.engine["volumeMounts"]
    assert shm >= ranks * (tier + GIB)
    assert memory >= shm + 24 * GIB
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == str(ranks)


@each_fronted
def test_the_sidecar_asks_for_what_was_measured(pod: Pod) -> None:
    assert pod.sidecar
    resources, processes = pod.sidecar["resources"], settings(pod).data_parallel_size
    # README, "Speed": 94 MB after load; tests/bench/NOTES.md: 10 MB for each further process.
    assert quantity_bytes(resources["requests"]["memory"]) >= 94_000_000 + 10_000_000 * (processes - 1)
    assert quantity_bytes(resources["limits"]["memory"]) >= processes * 256 * 2**20
    assert "cpu" not in resources["limits"]


@each_pod
def test_the_drain_fits_into_the_pod_s_last_minutes(pod: Pod) -> None:
    hook = pod.engine["lifecycle"]["preStop"]["exec"]["command"]
    grace_s = settings(pod).shutdown_grace_s if pod.sidecar else 0
    ranks = settings(pod).data_parallel_size if pod.sidecar else 1
    port = int(flag(pod.engine_words, "--port"))

    assert hook[:2] == ["python3", "/drain/drain.py"]
    assert hook[3:] == [f"http://localhost:{port + rank}/metrics" for rank in range(ranks)]
    assert float(hook[2]) + grace_s < pod.spec["terminationGracePeriodSeconds"]
    if pod.sidecar:
        assert pod.sidecar["restartPolicy"] == "Always"


@each_overlay
def test_pods_keep_to_the_restricted_standard(overlay: str) -> None:
    for workload in (*of_kind(overlay, "Deployment"), *of_kind(overlay, "LeaderWorkerSet")):
        spec = template(workload)["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 65532
        for volume in spec["volumes"]:
            assert volume.keys() - {"name"} <= {"configMap", "emptyDir", "secret"}
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert all("hostPort" not in port for port in container["ports"])


@each_overlay
def test_names_that_objects_refer_to_are_there(overlay: str) -> None:
    there = {(made["kind"], made["metadata"]["name"]) for made in render(overlay)}
    for workload in (*of_kind(overlay, "Deployment"), *of_kind(overlay, "LeaderWorkerSet")):
        spec = template(workload)["spec"]
        assert set(_config_maps(spec)) <= {name for kind, name in there if kind == "ConfigMap"}
        account = spec.get("serviceAccountName")
        assert account is None or ("ServiceAccount", account) in there


def _config_maps(spec: Object) -> Iterator[str]:
    for volume in spec["volumes"]:
        if "configMap" in volume:
            yield volume["configMap"]["name"]
    for container in spec["containers"]:
        for variable in container.get("env", []):
            if "configMapKeyRef" in variable.get("valueFrom", {}):
                yield variable["valueFrom"]["configMapKeyRef"]["name"]


def picker(overlay: str) -> Object:
    """The endpoint picker's configuration of an overlay."""
    [data] = [
        made["data"] for made in of_kind(overlay, "ConfigMap") if made["metadata"]["name"] == "epp-config"
    ]
    made: Object = yaml.safe_load(data["epp.yaml"])
    return made


@each_overlay
def test_the_endpoint_picker_names_sources_and_only_plugins_that_it_has(overlay: str) -> None:
    made = picker(overlay)
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in made["plugins"]}
    used = [used["pluginRef"] for profile in made["schedulingProfiles"] for used in profile["plugins"]]
    source = plugins["p2p-source-producer"]

    assert set(used) <= plugins.keys()
    assert source["prefixMatchInfoProducerName"] in plugins
    assert (
        source["minCachedTokenDelta"]
        % plugins["precise-prefix-cache-producer"]["tokenProcessorConfig"]["blockSize"]
        == 0
    )
    profiles = {profile["name"] for profile in made["schedulingProfiles"]}
    prefills = any(pod.sidecar is None for pod in pods(overlay))
    assert profiles == ({"prefill", "decode"} if prefills else {"default"})
    assert source.get("prefillProfileName") == ("prefill" if prefills else None)


@each_overlay
def test_the_endpoint_picker_s_tokens_come_from_engines_behind_a_service(overlay: str) -> None:
    [service] = [made for made in of_kind(overlay, "Service") if made["metadata"]["name"] == "vllm-render"]
    [port] = service["spec"]["ports"]
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in picker(overlay)["plugins"]}
    assert plugins["token-producer"]["vllm"]["url"] == f"http://vllm-render:{port['port']}"
    for pod in pods(overlay):
        assert service["spec"]["selector"].items() <= pod.labels.items()
        ports = {one["name"]: one["containerPort"] for one in pod.engine["ports"]}
        assert ports[port["targetPort"]] == int(flag(pod.engine_words, "--port"))


def test_ssrf_protection_names_the_pool_and_may_read_it_and_its_pods() -> None:
    [pod] = pods("ssrf")
    [role], [binding] = of_kind("ssrf", "Role"), of_kind("ssrf", "RoleBinding")
    [pool] = of_kind("ssrf", "InferencePool")

    assert "--enable-ssrf-protection" in pod.sidecar_args
    assert flag(pod.sidecar_args, "--inference-pool") == f"models/{pool['metadata']['name']}"
    assert pod.spec["automountServiceAccountToken"] is True
    rights = {(rule["apiGroups"][0], rule["resources"][0]): set(rule["verbs"]) for rule in role["rules"]}
    assert rights == {
        ("inference.networking.k8s.io", "inferencepools"): {"list", "watch"},
        ("", "pods"): {"list", "watch"},
    }
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": pod.spec["serviceAccountName"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


@pytest.mark.parametrize("overlay", sorted(set(NAMES) - {"ssrf", "everything", "wide-ep-everything"}))
def test_without_ssrf_protection_no_pod_has_a_token(overlay: str) -> None:
    assert all(pod.spec["automountServiceAccountToken"] is False for pod in pods(overlay))


def test_metrics_are_scraped_with_alerts_and_a_dashboard() -> None:
    [pod] = pods("metrics")
    [monitor] = of_kind("metrics", "PodMonitor")
    dashboards = [made for made in of_kind("metrics", "ConfigMap") if "dashboard.json" in made["data"]]

    assert pod.sidecar
    ports = {port["name"] for port in pod.sidecar["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod.labels.items()
    assert RULES.read_text() == prometheus_rule()
    assert [made["metadata"]["labels"]["grafana_dashboard"] for made in dashboards] == ["1"]
    assert json.loads(dashboards[0]["data"]["dashboard.json"])["title"] == "Routing sidecar"


def test_spans_go_to_the_collector_s_service() -> None:
    [pod] = pods("tracing")
    [service] = [made for made in of_kind("tracing", "Service") if made["metadata"]["name"] != "vllm-render"]
    [collector] = [
        made for made in of_kind("tracing", "Deployment") if made["metadata"]["name"] == "otel-collector"
    ]
    [config] = [data["collector.yaml"] for data in pod.data.values() if "collector.yaml" in data]

    assert pod.sidecar
    url = f"http://{service['metadata']['name']}:4317"
    assert pod.environ(pod.sidecar)["OTEL_EXPORTER_OTLP_ENDPOINT"] == url
    assert flag(pod.engine_words, "--otlp-traces-endpoint") == url
    assert service["spec"]["selector"].items() <= template(collector)["metadata"]["labels"].items()
    receivers = yaml.safe_load(config)["receivers"]["otlp"]["protocols"]
    assert [one["endpoint"] for one in receivers.values()] == ["0.0.0.0:4317", "0.0.0.0:4318"]


def test_tls_is_served_from_the_secret() -> None:
    [pod] = pods("tls")
    assert pod.sidecar
    [mount] = pod.sidecar["volumeMounts"]
    [volume] = [one for one in pod.spec["volumes"] if one["name"] == mount["name"]]

    assert flag(pod.sidecar_args, "--cert-path") == mount["mountPath"]
    assert volume["secret"] == {"secretName": "sidecar-tls"}
    assert settings(pod).secure_serving


def test_ranks_of_two_pods_have_their_ports_at_the_same_places() -> None:
    [pod] = pods("wide-ep")
    words = pod.engine_words  # of the second of two pods
    assert flag(words, "--data-parallel-size") == "16"
    assert flag(words, "--data-parallel-start-rank") == "8"
    assert transfer(words)["kv_connector_extra_config"]["secondary_tiers"][0]["port"] + 8 == 7777


def test_the_compose_file_is_the_demo_s_two_pods() -> None:
    made = yaml.safe_load(Path("deploy/compose/docker-compose.yaml").read_text())["services"]
    assert sorted(made) == ["engine-a", "engine-b", "sidecar-a", "sidecar-b"]
    for pod in "ab":
        engine, sidecar = made[f"engine-{pod}"], made[f"sidecar-{pod}"]
        chosen = load(sidecar["command"], sidecar["environment"])
        assert engine["command"][:2] == ["lab", "engine"]
        assert int(flag(engine["command"], "--port")) == chosen.model_server_port
        assert int(flag(engine["command"], "--p2p-port")) == chosen.p2p_connector_port
        assert (
            flag(engine["command"], "--p2p-host")
            == chosen.pod_ip
            == engine["networks"]["pods"]["ipv4_address"]
        )
        assert engine["ports"][0].endswith(f":{chosen.port}")
        assert sidecar["network_mode"] == f"service:engine-{pod}"
