"""Settings come from flags, variables, YAML and defaults in that order, or every reason why not is said."""

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sidecar.connectors import CONNECTORS
from sidecar.settings import Settings, SettingsError, load
from sidecar.settings.model import BY_FIELD, BY_NAME, SETTINGS
from tests.settings.spellings import VARIABLES


def refuse(line: str) -> None:
    raise AssertionError(f"unexpected warning: {line}")


def loaded(*argv: str, **environ: str) -> Settings:
    return load(argv, environ, warn=refuse)


def warnings_of(*argv: str) -> list[str]:
    """What the user of these, which start, is told."""
    warnings: list[str] = []
    load(argv, {}, warn=warnings.append)
    return warnings


def problems_of(*argv: str, **environ: str) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        load(argv, environ, warn=refuse)
    assert all("\n" not in problem for problem in refused.value.problems)
    return refused.value.problems


def test_the_defaults_are_those_of_the_contract() -> None:
    assert loaded().model_dump() == {
        "port": 8000,
        "host": "",
        "secure_serving": True,
        "cert_path": None,
        "tls_min_version": "VersionTLS12",
        "tls_cipher_suites": (),
        "workers": 1,
        "max_request_bytes": 67108864,
        "shutdown_grace_s": 600.0,
        "model_server_port": 8200,
        "data_parallel_size": 1,
        "enable_tls": frozenset(),
        "tls_insecure_skip_verify": frozenset(),
        "connect_timeout_s": 5.0,
        "max_idle_conns_per_host": 1024,
        "pod_ip": None,
        "kv_connector": "nixlv2",
        "ec_connector": None,
        "p2p_connector_port": 7777,
        "enable_p2p_pull": False,
        "enable_prefiller_sampling": False,
        "enable_speculative_prefill": False,
        "prefill_max_retries": 0,
        "prefill_retry_backoff_s": 0.2,
        "prefill_failure_policy": "fail",
        "client_kv_transfer_params": "validate",
        "mooncake_bootstrap_port": 8998,
        "sglang_bootstrap_port": 8998,
        "decode_chunk_size": 0,
        "source_guard": "on",
        "source_guard_timeout_s": 0.05,
        "source_guard_good_ttl_s": 10.0,
        "source_guard_bad_ttl_s": 2.0,
        "source_guard_table_size": 1024,
        "pull_rescue_after_s": 10.0,
        "pull_verification": "auto",
        "pull_verification_interval_s": 1.0,
        "pull_verification_sources": "on",
        "pull_verification_source_interval_s": 10.0,
        "silent_zero_threshold": 5,
        "silent_zero_suspend": True,
        "silent_zero_retry_s": 30.0,
        "enable_bidirectional_kv_xfer": False,
        "bidirectional_kv_ttl_s": 300.0,
        "bidirectional_kv_entries": 4096,
        "bidirectional_kv_bytes": 33554432,
        "tracing": False,
        "metrics_port": 0,
        "metrics_cert_dir": None,
        "metrics_peers": False,
        "debug_endpoints": False,
        "debug_ring": 512,
        "log_level": "info",
        "log_format": "json",
        "enable_ssrf_protection": False,
        "inference_pool": None,
        "pool_group": "inference.networking.k8s.io",
        "allowed_endpoints": (),
        "upstream_ca_file": None,
        "upstream_client_cert_dir": None,
        "upstream_server_name": (),
        "client_ca_file": None,
        "max_concurrent_requests": 0,
        "header_timeout_s": 60.0,
        "body_timeout_s": 60.0,
        "max_header_bytes": 65536,
        "client_idle_timeout_s": 305.0,
        "max_response_header_bytes": 65536,
        "configuration": None,
        "configuration_file": None,
        "zap_log_level": None,
        "zap_encoder": None,
        "zap_devel": False,
        "zap_stacktrace_level": "error",
        "zap_time_encoding": "rfc3339",
        "v": None,
        "moriio_write_mode": False,
        "moriio_parallel_dispatch": False,
        "moriio_parallel_decode_wait_timeout_s": 30.0,
        "moriio_local_pod_ip": None,
        "moriio_decode_notify_port": 61005,
        "moriio_decode_handshake_port": 6301,
        "moriio_prefill_notify_port": 61005,
        "moriio_prefill_handshake_port": 6301,
        "moriio_tp_size": 1,
        "moriio_dp_size": 1,
        "moriio_dp_size_local": 0,
        "moriio_remote_hosts": (),
        "moriio_decode_hosts": (),
        "moriio_dns_resolve_ttl_s": 30,
        "moriio_dns_resolve_timeout_s": 5,
    }


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.field)
def test_every_default_reads_back_from_how_it_is_shown(setting: object) -> None:
    known = BY_FIELD[getattr(setting, "field", "")]
    assert (
        known.kind.show(known.default) == ""
        or known.kind.read(known.kind.show(known.default)) == known.default
    )


LEVELS = {
    "flag": ("--p2p-connector-port=7001", 7001),
    "variable": ("7002", 7002),
    "yaml": ("--configuration=p2p-connector-port: 7003", 7003),
}


@pytest.mark.parametrize(
    "names", [c for n in (1, 2, 3) for c in itertools.combinations(LEVELS, n)], ids="+".join
)
def test_a_flag_wins_over_its_variable_over_yaml_over_the_default(names: tuple[str, ...]) -> None:
    argv = ["--kv-connector=offloading", *(LEVELS[name][0] for name in names if name != "variable")]
    environ = {"P2P_CONNECTOR_PORT": LEVELS["variable"][0]} if "variable" in names else {}
    assert load(argv, environ, warn=refuse).p2p_connector_port == LEVELS[names[0]][1]


def test_a_flag_replaces_a_yaml_list_whole() -> None:
    settings = loaded("--configuration=enable-tls: [encoder, decoder]", "--enable-tls=prefiller")
    assert settings.enable_tls == frozenset({"prefiller"})


def test_a_deprecated_flag_wins_over_yaml_by_the_new_name() -> None:
    warnings: list[str] = []
    argv = ["--configuration=model-server-port: 8300", "--vllm-port=8301"]
    assert load(argv, {}, warn=warnings.append).model_server_port == 8301
    assert warnings == ["--vllm-port is deprecated, use --model-server-port"]


def test_warnings_go_to_stderr_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert load(["--secure-proxy=false"], {}).secure_serving is False
    assert capsys.readouterr() == ("", "sidecar: --secure-proxy is deprecated, use --secure-serving\n")


def test_the_table_of_variables_has_every_variable() -> None:
    assert VARIABLES.keys() == {setting.facts.env for setting in SETTINGS if setting.facts.env}


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_documented_variable_is_read(variable: str) -> None:
    field, text, value = VARIABLES[variable]
    assert getattr(loaded(**{variable: text}), field) == value


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_that_is_empty_is_not_set(variable: str) -> None:
    assert loaded(**{variable: "", variable.lower(): "1"}) == loaded()
    assert loaded(**{variable: "  "}) == loaded()


def test_no_other_variable_is_read() -> None:
    environ = {setting.field.upper(): "1" for setting in SETTINGS} | {s.field: "1" for s in SETTINGS}
    documented = {setting.facts.env for setting in SETTINGS}
    assert load([], {name: text for name, text in environ.items() if name not in documented}) == loaded()


def test_pod_ip_is_the_pods_address_for_mori_io_too() -> None:
    settings = loaded(POD_IP="10.0.0.7")
    assert (settings.pod_ip, settings.moriio_local_pod_ip) == ("10.0.0.7", "10.0.0.7")
    assert loaded("--pod-ip=[FD00::7]", POD_IP="10.0.0.7").pod_ip == "fd00::7"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        loaded().port = 1


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--port=0"], "--port: '0' is not a port (1 to 65535)"),
        (["--port=65536"], "--port: '65536' is not a port (1 to 65535)"),
        (["--port=8_000"], "--port: '8_000' is not a port (1 to 65535)"),
        (["--port="], "--port: '' is not a port (1 to 65535)"),
        (["--port=80\n81"], "--port: '80\\n81' is not a port (1 to 65535)"),
        (["--port=" + "9" * 5000], f"--port: '{'9' * 5000}' is not a port (1 to 65535)"),
        (["--metrics-port=-1"], "--metrics-port: '-1' is not a port (1 to 65535) or 0"),
        (["--data-parallel-size=0"], "--data-parallel-size: '0' is not a whole number of at least 1"),
        (["--prefill-max-retries=-1"], "--prefill-max-retries: '-1' is not a whole number of at least 0"),
        (["--prefill-max-retries=1.5"], "--prefill-max-retries: '1.5' is not a whole number of at least 0"),
        (
            ["--max-request-bytes=64Mi"],
            "--max-request-bytes: '64Mi' is not a whole number of bytes of at least 1",
        ),
        (["--prefill-retry-backoff=-1s"], "--prefill-retry-backoff: '-1s' is negative"),
        (["--connect-timeout=0"], "--connect-timeout: '0' is not longer than 0"),
        (
            ["--source-guard-timeout=50"],
            "--source-guard-timeout: '50' has no unit (one of ns, us, ms, s, m, h)",
        ),
        (["--shutdown-grace=soon"], "--shutdown-grace: 'soon' is not a duration such as 200ms, 10s or 1m30s"),
        (["--tracing=yes"], "--tracing: 'yes' is not a boolean (true or false)"),
        (["--source-guard=maybe"], "--source-guard: 'maybe' is not one of on, off"),
        (
            ["--kv-connector=foo"],
            "--kv-connector: 'foo' is not one of nixlv2, offloading, mooncake, sglang, shared-storage",
        ),
        (["--ec-connector=foo"], "--ec-connector: 'foo' is not one of ec-example, ec-nixl"),
        (["--enable-tls=decoder,proxy"], "--enable-tls: 'proxy' is not one of prefiller, decoder, encoder"),
        (
            ["--tls-insecure-skip-verify=all"],
            "--tls-insecure-skip-verify: 'all' is not one of prefiller, decoder, encoder",
        ),
        (
            ["--tls-min-version=VersionTLS10"],
            "--tls-min-version: 'VersionTLS10' is not one of VersionTLS12, VersionTLS13",
        ),
        (
            ["--tls-cipher-suites=tls_ecdhe_rsa_with_aes_128_gcm_sha256"],
            "--tls-cipher-suites: 'tls_ecdhe_rsa_with_aes_128_gcm_sha256' is not a secure suite of Go's "
            "crypto/tls, did you mean TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256?",
        ),
        (["--tls-cipher-suites=RC4"], "--tls-cipher-suites: 'RC4' is not a secure suite of Go's crypto/tls"),
        (
            ["--client-kv-transfer-params=drop"],
            "--client-kv-transfer-params: 'drop' is not one of validate, strip, reject, pass",
        ),
        (["--inference-pool=a/b/c"], "--inference-pool: 'a/b/c' is not of the form namespace/name or name"),
        (["--inference-pool=/b"], "--inference-pool: '/b' is not of the form namespace/name or name"),
        (["--pool-group="], "--pool-group: '' is not one word"),
        (["--pod-ip=pod-a"], "--pod-ip: 'pod-a' is not an IP address"),
        (["--host=a b"], "--host: 'a b' is not a host name or an IP address"),
        (["--host=a..b"], "--host: 'a..b' is not a host name or an IP address"),
        (
            ["--moriio-remote-hosts=a,.b"],
            "--moriio-remote-hosts: '.b' is not a host name or an IP address",
        ),
        (
            ["--moriio-local-pod-ip=" + "a" * 64],
            f"--moriio-local-pod-ip: '{'a' * 64}' is not a host name or an IP address",
        ),
        (
            ["--upstream-server-name=decoder=a..b"],
            "--upstream-server-name: 'a..b' is not a host name or an IP address",
        ),
        (["--host=http://a"], "--host: 'http://a' is not a host name or an IP address"),
        (["--log-level=trace"], "--log-level: 'trace' is not one of debug, info, warning, error"),
        (["--log-format=console"], "--log-format: 'console' is not one of json, text"),
        (
            ["--zap-log-level=0"],
            "--zap-log-level: '0' is not debug, info, error, panic or a whole number above 0",
        ),
        (["--zap-encoder=text"], "--zap-encoder: 'text' is not one of json, console"),
        (["-v=-1"], "--v: '-1' is not a whole number of at least 0"),
        (["--v=-1"], "--v: '-1' is not a whole number of at least 0"),
        (["--configuration=port: x"], "--port (in --configuration): 'x' is not a port (1 to 65535)"),
        (["--configuration=port: [1, 2]"], "--port (in --configuration): takes one value, not a list"),
        (
            ["--configuration=moriio-decode-hosts: [a b]"],
            "--moriio-decode-hosts (in --configuration): 'a b' is not a host name or an IP address",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_flag_and_reason(argv: list[str], problem: str) -> None:
    assert problems_of(*argv) == [problem]


TEXTUAL = (
    *(
        "host",
        "cert-path",
        "metrics-cert-dir",
        "upstream-ca-file",
        "upstream-client-cert-dir",
        "client-ca-file",
    ),
    *("upstream-server-name", "moriio-local-pod-ip", "moriio-remote-hosts", "moriio-decode-hosts"),
    *("inference-pool", "pool-group", "pod-ip", "allowed-endpoints"),
)


@pytest.mark.parametrize("flag", [*TEXTUAL, "port", "kv-connector", "tracing"])
@pytest.mark.parametrize(
    ("escape", "reason"),
    [("\\0", "has a NUL in it"), ("\\uDCFF", "is not UTF-8"), ("\\uD800", "is not UTF-8")],
)
def test_what_the_system_cannot_be_given_is_refused_by_flag(flag: str, escape: str, reason: str) -> None:
    text = f"a{escape}b".encode().decode("unicode_escape")
    where = f"--{flag} (in --configuration): {text!r} {reason}"
    assert problems_of(f'--configuration={flag}: "a{escape}b"') == [where]
    if "\0" not in text:  # no argument has one
        assert problems_of(f"--{flag}={text}")[0] == f"--{flag}: {text!r} {reason}"


@pytest.mark.parametrize("flag", ["configuration", "configuration-file"])
def test_a_configuration_that_is_not_utf_8_is_refused_once(flag: str) -> None:
    assert problems_of(f"--{flag}=\udcff") == [f"--{flag}: '\\udcff' is not UTF-8"]


@pytest.mark.parametrize("variable", ["POD_IP", "INFERENCE_POOL", "P2P_CONNECTOR_PORT"])
def test_a_variable_that_is_not_utf_8_is_refused_by_its_name(variable: str) -> None:
    problems = problems_of(**{variable: "\udcff"})
    assert problems[0].startswith(f"{variable} (--")
    assert problems[0].endswith("): '\\udcff' is not UTF-8")


@pytest.mark.parametrize("spelled", ["!!bool abc", "!!bool ''", "!!bool enabled"])
@pytest.mark.parametrize("flag", ["tracing", "enable-p2p-pull", "secure-proxy"])
def test_a_boolean_that_is_only_called_one_is_refused(flag: str, spelled: str) -> None:
    word = spelled.partition(" ")[2].strip("'")
    problems: list[str] = []
    try:
        load([f"--configuration={flag}: {spelled}"], {}, warn=lambda _line: None)
    except SettingsError as refused:
        problems = refused.problems
    assert problems == [f"--{flag} (in --configuration): {word!r} is not a boolean (true or false)"]


def test_a_wrong_deprecated_flag_is_named_as_it_was_given() -> None:
    with pytest.raises(SettingsError) as refused:
        load(["--vllm-port=x"], {}, warn=lambda _line: None)
    assert refused.value.problems == ["--vllm-port: 'x' is not a port (1 to 65535)"]


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("P2P_CONNECTOR_PORT", "x", " (--p2p-connector-port): 'x' is not a port (1 to 65535)"),
        (
            "ENABLE_PREFILLER_SAMPLING",
            "yes",
            " (--enable-prefiller-sampling): 'yes' is not a boolean (true or false)",
        ),
        ("INFERENCE_POOL", "a/", " (--inference-pool): 'a/' is not of the form namespace/name or name"),
        ("POD_IP", "pod-a", " (--pod-ip): 'pod-a' is not an IP address"),
        ("SGLANG_BOOTSTRAP_PORT", "0", ": '0' is not a port (1 to 65535)"),
        ("MORIIO_DNS_RESOLVE_TTL_SECONDS", "30s", ": '30s' is not a whole number of seconds of at least 1"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name_and_the_flags(
    variable: str, text: str, problem: str
) -> None:
    assert problems_of(**{variable: text}) == [f"{variable}{problem}"]


def test_a_flag_makes_a_wrong_variable_harmless() -> None:
    argv = ("--kv-connector=offloading", "--p2p-connector-port=7001")
    assert loaded(*argv, P2P_CONNECTOR_PORT="x").p2p_connector_port == 7001


def test_all_problems_are_listed_not_only_the_first() -> None:
    assert problems_of("--prot=1", "--port=0", "--configuration={xyzzy: 1}", POD_IP="x") == [
        "--prot: unknown flag, did you mean --port?",
        "--configuration: unknown key 'xyzzy'",
        "--port: '0' is not a port (1 to 65535)",
        "POD_IP (--pod-ip): 'x' is not an IP address",
    ]


def test_problems_of_spelling_are_listed_with_those_of_sense() -> None:
    assert problems_of("--prot=1", "--port=8200") == [
        "--prot: unknown flag, did you mean --port?",
        "--port: 8200 is the same port as --model-server-port 8200",
    ]


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--zap-time-encoding=EPOCH"], "--zap-time-encoding: epoch has no effect here, only rfc3339"),
        (["--zap-stacktrace-level=info"], "--zap-stacktrace-level: info has no effect here, only error"),
        (
            ["--configuration=zap-stacktrace-level: info"],
            "--zap-stacktrace-level (in --configuration): info has no effect here, only error",
        ),
        (
            ["--enable-speculative-prefill"],
            "--enable-speculative-prefill: true has no effect here, only false",
        ),
    ],
)
def test_a_value_that_only_the_peer_knows_starts_with_one_warning(argv: list[str], problem: str) -> None:
    assert warnings_of(*argv) == [problem]


@pytest.mark.parametrize(
    ("argv", "warning"),
    [
        (
            ["--mooncake-bootstrap-port=9"],
            "--mooncake-bootstrap-port: has no effect without --kv-connector=mooncake",
        ),
        (
            ["--configuration={kv-connector: sglang, mooncake-bootstrap-port: 9}"],
            "--mooncake-bootstrap-port (in --configuration): has no effect without --kv-connector=mooncake",
        ),
        (
            ["--p2p-connector-port=9"],
            "--p2p-connector-port: has no effect without --kv-connector=offloading or --enable-p2p-pull",
        ),
        (
            ["--prefill-retry-backoff=1s"],
            "--prefill-retry-backoff: has no effect without --prefill-max-retries",
        ),
        (
            ["--cert-path=/nowhere", "--secure-serving=false"],
            "--cert-path: has no effect without --secure-serving",
        ),
        (
            ["--tls-min-version=VersionTLS13", "--secure-serving=false"],
            "--tls-min-version: has no effect without --secure-serving or --metrics-cert-dir",
        ),
        (["--metrics-cert-dir=/nowhere"], "--metrics-cert-dir: has no effect without --metrics-port"),
        (
            ["--tls-insecure-skip-verify=encoder", "--enable-tls=decoder"],
            "--tls-insecure-skip-verify: has no effect without the same stages in --enable-tls",
        ),
        (["--inference-pool=ns/pool"], "--inference-pool: has no effect without --enable-ssrf-protection"),
        (["--pool-group=x-k8s.io"], "--pool-group: has no effect without --enable-ssrf-protection"),
        (
            ["--model-server-port=8202", "--vllm-port=8201"],
            "--vllm-port: has no effect beside --model-server-port",
        ),
    ],
)
def test_what_the_peer_starts_with_starts_with_one_warning_where_it_has_no_effect(
    argv: list[str], warning: str
) -> None:
    deprecated = "--vllm-port is deprecated, use --model-server-port"
    assert [line for line in warnings_of(*argv) if line != deprecated] == [warning]


@pytest.mark.parametrize(
    "argv",
    [
        ["--p2p-connector-port=9", "--kv-connector=offloading"],
        ["--p2p-connector-port=9", "--enable-p2p-pull"],
        ["--prefill-retry-backoff=1s", "--prefill-max-retries=1"],
        ["--tls-min-version=VersionTLS13"],
        ["--tls-insecure-skip-verify=encoder,decoder", "--enable-tls=decoder"],
        ["--inference-pool=ns/pool", "--enable-ssrf-protection"],
        ["--mooncake-bootstrap-port=8998", "--p2p-connector-port=7777"],
    ],
)
def test_what_has_an_effect_or_is_the_default_warns_of_nothing(argv: list[str]) -> None:
    loaded(*argv)


@pytest.mark.parametrize("name", CONNECTORS.keys() - {"moriio"})  # that one is nixlv2 in write mode
def test_every_connector_can_be_chosen(name: str) -> None:
    assert loaded(f"--kv-connector={name}").kv_connector == name


def test_every_flag_that_does_not_work_yet_may_say_its_default() -> None:
    waiting = [setting for setting in SETTINGS if setting.facts.works is not None and setting.facts.by_flag]
    argv = [f"--{setting.flag}={setting.kind.show(setting.default)}" for setting in waiting]
    assert loaded(*argv) == loaded()


def test_variables_of_what_comes_later_are_without_effect() -> None:
    environ = {variable: text for variable, (_field, text, _value) in VARIABLES.items()}
    assert loaded(**environ).inference_pool == "ns/pool"


def test_a_connectors_port_is_taken_with_that_connector_and_from_a_variable_with_any() -> None:
    given = ["--kv-connector=mooncake", "--mooncake-bootstrap-port=9"]
    assert loaded(*given).mooncake_bootstrap_port == 9
    assert loaded("--mooncake-bootstrap-port=8998").mooncake_bootstrap_port == 8998
    assert loaded(MOONCAKE_BOOTSTRAP_PORT="9", SGLANG_BOOTSTRAP_PORT="10").mooncake_bootstrap_port == 9


@pytest.mark.parametrize(
    ("argv", "problems"),
    [
        (
            ["--enable-p2p-pull", "--kv-connector=offloading"],
            ["--enable-p2p-pull: goes with --kv-connector=nixlv2 only, not offloading"],
        ),
        (
            ["--enable-p2p-pull", "--kv-connector=mooncake"],
            ["--enable-p2p-pull: goes with --kv-connector=nixlv2 only, not mooncake"],
        ),
        (
            ["--enable-bidirectional-kv-xfer", "--kv-connector=offloading"],
            ["--enable-bidirectional-kv-xfer: goes with --kv-connector=nixlv2 only, not offloading"],
        ),
        (
            ["--bidirectional-kv-ttl=8m"],
            ["--bidirectional-kv-ttl: 8m is over 7m50s: decoders free blocks after 8m"],
        ),
        (["--port=8200"], ["--port: 8200 is the same port as --model-server-port 8200"]),
        (
            ["--configuration=model-server-port: 8000"],
            ["--port: 8000 is the same port as --model-server-port (in --configuration) 8000"],
        ),
        (
            ["--data-parallel-size=8", "--port=8207"],
            ["--port: 8207 is within 8 ranks of --model-server-port 8200"],
        ),
        (
            [
                "--data-parallel-size=3",
                "--port=65534",
                "--model-server-port=65000",
                "--p2p-connector-port=65533",
            ],
            ["--port: 65534 and the 3 ranks' ports above it pass 65535"],
        ),
        (["--metrics-peers"], ["--metrics-peers: goes with --metrics-port only"]),
        (["--debug-endpoints"], ["--debug-endpoints: needs a port that no client reaches (--metrics-port)"]),
        (
            ["--pull-verification-source-interval=1s", "--pull-verification-sources=off"],
            ["--pull-verification-source-interval: does not go with --pull-verification-sources off"],
        ),
        (
            ["--pull-verification-source-interval=1s", "--pull-verification=off"],
            ["--pull-verification-source-interval: does not go with --pull-verification off"],
        ),
        (["--debug-ring=9", "--metrics-port=9"], ["--debug-ring: goes with --debug-endpoints only"]),
        (["--metrics-port=8000"], ["--metrics-port: 8000 is the same port as --port 8000"]),
        (["--metrics-port=8200"], ["--metrics-port: 8200 is the same port as --model-server-port 8200"]),
        (
            ["--metrics-port=8003", "--data-parallel-size=4"],
            ["--metrics-port: 8003 is one of the 4 ranks' ports from --port 8000"],
        ),
        (
            ["--metrics-cert-dir=/nowhere", "--metrics-port=9"],
            ["--metrics-cert-dir: '/nowhere' is not a directory"],
        ),
    ],
)
def test_what_does_not_go_together_is_refused(argv: list[str], problems: list[str]) -> None:
    assert problems_of(*argv) == problems


def test_pulls_go_with_nixl() -> None:
    assert loaded("--enable-p2p-pull", "--kv-connector=nixlv2").enable_p2p_pull is True


def test_bidirectional_transfer_goes_with_nixl_but_not_with_moriio() -> None:
    assert (
        loaded("--enable-bidirectional-kv-xfer", "--bidirectional-kv-ttl=470s").bidirectional_kv_ttl_s == 470
    )
    refused = problems_of("--enable-bidirectional-kv-xfer", "--moriio-write-mode")
    assert "--enable-bidirectional-kv-xfer: does not go with --moriio-write-mode" in refused


def test_a_certificate_directory_must_hold_both_files(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    assert problems_of(f"--cert-path={certs}") == [f"--cert-path: '{certs}' is not a directory"]
    certs.mkdir()
    (certs / "tls.crt").touch()
    assert problems_of(f"--cert-path={certs}") == [f"--cert-path: '{certs}' has no readable tls.key"]
    (certs / "tls.key").touch()
    assert loaded(f"--cert-path={certs}").cert_path == certs


def test_a_path_that_is_too_long_is_no_directory() -> None:
    path = "x" * 300
    assert problems_of(f"--cert-path={path}") == [f"--cert-path: '{path}' is not a directory"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--cert-path",),
        ("--metrics-cert-dir", "--metrics-port=9090"),
        ("--upstream-client-cert-dir", "--enable-tls=decoder"),
    ],
    ids=lambda flags: flags[0],
)
def test_a_certificate_that_could_be_waited_on_for_ever_is_not_opened(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "tls.crt").touch()
    os.mkfifo(tmp_path / "tls.key")
    flag, *others = flags
    assert problems_of(f"{flag}={tmp_path}", *others) == [
        f"{flag}: '{tmp_path / 'tls.key'}' is not a regular file"
    ]


@pytest.mark.parametrize("flag", ["--upstream-ca-file", "--client-ca-file"])
def test_authorities_that_could_be_waited_on_for_ever_are_not_opened(flag: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for file in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), tmp_path):
        assert problems_of(f"{flag}={file}", "--enable-tls=decoder") == [
            f"{flag}: '{file}' is not a regular file"
        ]


def test_files_that_the_kubelet_links_to_are_taken(tmp_path: Path) -> None:
    (tmp_path / "..moment").mkdir()
    (tmp_path / "..data").symlink_to("..moment")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / "..moment" / name).touch()
        (tmp_path / name).symlink_to(f"..data/{name}")
    settings = loaded(f"--cert-path={tmp_path}", f"--client-ca-file={tmp_path / 'ca.crt'}")
    assert (settings.cert_path, settings.client_ca_file) == (tmp_path, tmp_path / "ca.crt")


@pytest.mark.parametrize(
    ("argv", "level", "form"),
    [
        (["--zap-log-level=debug"], "debug", "json"),
        (["--zap-log-level=Error"], "error", "json"),
        (["--zap-log-level=panic"], "error", "json"),
        (["--zap-log-level=5"], "debug", "json"),
        (["--zap-encoder=console"], "info", "text"),
        (["--zap-encoder=JSON"], "info", "json"),
        (["--zap-devel"], "debug", "text"),
        (["--zap-devel=false"], "info", "json"),
        (["--zap-devel", "--zap-encoder=json", "--zap-log-level=info"], "info", "json"),
        (["--v=4"], "debug", "json"),
        (["-v=3"], "info", "json"),
        (["--v=5", "--zap-log-level=error"], "error", "json"),
        (["--v=0", "--zap-devel"], "info", "text"),
        (["--log-level=warning", "--zap-log-level=debug", "--v=9", "--zap-devel"], "warning", "text"),
        (["--log-format=json", "--zap-devel", "--zap-encoder=console"], "debug", "json"),
        (["--log-level=info", "--zap-log-level=debug"], "info", "json"),
        (["--configuration=log-level: info", "--zap-log-level=debug"], "info", "json"),
        (["--configuration=zap-log-level: debug"], "debug", "json"),
    ],
)
def test_the_peers_logging_flags_set_what_ours_leave_open(argv: list[str], level: str, form: str) -> None:
    settings = loaded(*argv)
    assert (settings.log_level, settings.log_format) == (level, form)


WORDS = st.sampled_from([*BY_NAME, "prot", "", "-"])
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(["1", "true", "off", "5s", "a,b", "{port: 1}", "-"]))
ARGV = st.lists(
    st.one_of(
        st.builds("--{}={}".format, WORDS, TEXTS),
        st.builds("--{}".format, st.one_of(WORDS, TEXTS)),
        st.builds("--configuration={}: {}".format, WORDS, TEXTS),
        TEXTS,
    ),
    max_size=5,
)


@given(ARGV)
def test_whatever_is_given_the_answer_is_settings_or_lines_that_can_be_printed(argv: list[str]) -> None:
    problems = [""]
    try:
        settings = load(argv, {}, warn=lambda _line: None)
    except SettingsError as refused:
        problems = refused.problems
    else:
        assert settings.port != settings.model_server_port
    assert problems
    assert all(line.isprintable() for line in problems)


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (
            ["--enable-ssrf-protection"],
            "--enable-ssrf-protection: needs --inference-pool or --allowed-endpoints",
        ),
        (
            ["--pool-group=x-k8s.io", "--enable-ssrf-protection", "--inference-pool=p"],
            "--pool-group: 'x-k8s.io' is not supported, only inference.networking.k8s.io",
        ),
        (
            ["--enable-ssrf-protection=false", "--allowed-endpoints=a:1"],
            "--allowed-endpoints: contradicts --enable-ssrf-protection false",
        ),
        (
            ["--allowed-endpoints=a:1,b:0/"],
            "--allowed-endpoints: 'b:0/' is neither host:port nor a network",
        ),
    ],
)
def test_an_allowlist_that_could_not_be_kept_is_refused(argv: list[str], problem: str) -> None:
    assert problems_of(*argv) == [problem]


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--upstream-ca-file=/etc/hostname"], "--upstream-ca-file: goes with --enable-tls only"),
        (["--client-ca-file=/none"], "--client-ca-file: '/none' cannot be read"),
        (
            ["--client-ca-file=/etc/hostname", "--secure-serving=false"],
            "--client-ca-file: goes with --secure-serving only",
        ),
        (
            ["--enable-tls=decoder", "--upstream-client-cert-dir=/none"],
            "--upstream-client-cert-dir: '/none' is not a directory",
        ),
        (
            ["--enable-tls=decoder", "--upstream-server-name=prefiller=a"],
            "--upstream-server-name: 'prefiller' is not a stage of --enable-tls",
        ),
        (["--upstream-server-name=a"], "--upstream-server-name: 'a' is not of the form stage=name"),
    ],
)
def test_certificates_that_nobody_would_look_at_are_refused(argv: list[str], problem: str) -> None:
    assert problems_of(*argv) == [problem]
