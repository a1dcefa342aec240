"""The settings of the main job: serving clients, talking to engines, moving KV, guarding its sources.

Rule: one field per flag with its default, variable and help. Defaults are the peer's (llm-d-router
pkg/sidecar/proxy/options.go, August to October 2026) unless a comment gives the reason for ours. Fields that
end in `_s` hold seconds.
"""

from typing import Annotated

from sidecar.settings import kinds
from sidecar.settings.flag import Flag, Group


class Serving(Group):
    title = "Serving clients"

    port: Annotated[kinds.Port, Flag("Port that clients or the gateway connect to.")] = 8000
    host: Annotated[kinds.Host, Flag("Address to listen on; empty: every interface, IPv4 and IPv6.")] = ""
    secure_serving: Annotated[kinds.Boolean, Flag("Serve clients over TLS.", formerly="secure-proxy")] = True
    cert_path: Annotated[
        kinds.OptionalPath,
        Flag(
            "Directory with tls.crt and tls.key for secure serving, read again when they change. "
            "Empty: a self-signed certificate, made at start."
        ),
    ] = None
    tls_min_version: Annotated[kinds.MinVersion, Flag("Lowest TLS version that clients may use.")] = (
        "VersionTLS12"
    )
    tls_cipher_suites: Annotated[
        kinds.CipherSuites,
        Flag(
            "TLS 1.2 suites that clients may use, by Go's names (TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256). "
            "Empty: OpenSSL's choice. Those of TLS 1.3 are always on."
        ),
    ] = ()
    # One process relays a few thousand small requests a second; more need more cores than one.
    workers: Annotated[kinds.Count, Flag("Processes that serve each port, sharing its connections.")] = 1
    # A prompt of a million tokens is about 5 MB of text; inline images and audio take tens of MB. Bounds the
    # memory that one client can claim.
    max_request_bytes: Annotated[
        kinds.Bytes,
        Flag("Largest body that is read (64 MiB); over it 413. Bodies that pass unread have no limit."),
    ] = 64 * 1024 * 1024
    # Longer than almost every answer takes; the pod's terminationGracePeriodSeconds cuts earlier where it is
    # shorter.
    shutdown_grace_s: Annotated[
        kinds.DurationOrZero,
        Flag("How long requests in flight may go on after SIGTERM before they are cut; 0: not at all."),
    ] = 600.0


class Engines(Group):
    title = "Engines"

    model_server_port: Annotated[
        kinds.Port, Flag("Port of the local engine, the decoder, on localhost.", formerly="vllm-port")
    ] = 8200
    data_parallel_size: Annotated[
        kinds.Count,
        Flag(
            "Ranks of the local engine: rank r is served on port + r by model-server-port + r, "
            "in a process of its own."
        ),
    ] = 1
    enable_tls: Annotated[
        kinds.Stages,
        Flag("Stages that are spoken to over TLS: prefiller, decoder, encoder; by comma or repetition."),
    ] = frozenset()
    tls_insecure_skip_verify: Annotated[
        kinds.Stages, Flag("Stages whose certificate is not verified; by comma or repetition.")
    ] = frozenset()
    # An engine in the same cluster accepts within milliseconds; five seconds ride out two
    # lost SYNs (repeated after 1 s and 3 s, RFC 6298 section 2).
    connect_timeout_s: Annotated[
        kinds.Duration, Flag("Longest wait for a connection to an engine. Answers have no time limit.")
    ] = 5.0
    max_idle_conns_per_host: Annotated[
        kinds.Count, Flag("Idle connections kept per engine; at least the expected concurrency.")
    ] = 1024
    pod_ip: Annotated[
        kinds.OptionalIP,
        Flag("This pod's address, by which it knows that a KV source is the pod itself.", env="POD_IP"),
    ] = None


class Transfer(Group):
    title = "KV transfer"

    kv_connector: Annotated[
        kinds.ConnectorName,
        Flag("How prefiller and decoder hand KV over."),
    ] = "nixlv2"
    ec_connector: Annotated[
        kinds.OptionalEncoderConnector,
        Flag("How encoders hand over what they made; empty: no encoders."),
    ] = None
    p2p_connector_port: Annotated[
        kinds.Port,
        Flag(
            "Port of the P2P tier of an engine's OffloadingConnector; rank r listens on port + r.",
            env="P2P_CONNECTOR_PORT",
        ),
    ] = 7777
    enable_p2p_pull: Annotated[
        kinds.Boolean,
        Flag(
            "Engines run NIXL and the P2P tier together, so cached prefixes can be pulled. With nixlv2 only."
        ),
    ] = False
    enable_prefiller_sampling: Annotated[
        kinds.Boolean,
        Flag(
            "Take a random one of the prefillers that a request names, not the first.",
            env="ENABLE_PREFILLER_SAMPLING",
        ),
    ] = False
    enable_speculative_prefill: Annotated[
        kinds.Boolean,
        Flag("The Go sidecar's: nothing is computed ahead of a chat's next turn here.", works=()),
    ] = False
    prefill_max_retries: Annotated[
        kinds.CountOrZero, Flag("Further attempts at a prefill that got 502, 503, 504 or no connection.")
    ] = 0
    prefill_retry_backoff_s: Annotated[kinds.DurationOrZero, Flag("Wait before each of those attempts.")] = (
        0.2
    )
    # The peer fails such a request. A prompt computed on a decoder slows what is being decoded there, so
    # whoever wants answers at that price says so.
    prefill_failure_policy: Annotated[
        kinds.PrefillFailurePolicy,
        Flag(
            "When a prefiller cannot be reached, or answers 502, 503 or 504 to the last attempt: fail the "
            "request, or have the local engine compute the prompt."
        ),
    ] = "fail"
    # The peer passes a client's value on. One request with "remote_kv_source": "abc" ends a vLLM 0.32
    # process.
    client_kv_transfer_params: Annotated[
        kinds.ClientParamsMode,
        Flag("A client's own kv_transfer_params: validate (400 if malformed), strip, reject (400) or pass."),
    ] = "validate"
    mooncake_bootstrap_port: Annotated[
        kinds.Port,
        Flag("Port of a prefiller's bootstrap server. With mooncake only.", env="MOONCAKE_BOOTSTRAP_PORT"),
    ] = 8998
    sglang_bootstrap_port: Annotated[
        kinds.Port,
        Flag(
            "Port of a prefiller's bootstrap server. With sglang only.",
            env="SGLANG_BOOTSTRAP_PORT",
            by_flag=False,
            by_yaml=False,
        ),
    ] = 8998
    decode_chunk_size: Annotated[
        kinds.CountOrZero, Flag("Decode chat answers in pieces of so many tokens; 0: in one.")
    ] = 0


class SourceGuard(Group):
    title = "Source guard"

    # vLLM 0.32 can hang every later pull after one contact with a peer that is gone.
    source_guard: Annotated[
        kinds.OnOff, Flag("Pull only from a source whose P2P port accepts a connection.")
    ] = "on"
    # A TCP handshake within a cluster takes about a millisecond; a pull saves hundreds.
    source_guard_timeout_s: Annotated[
        kinds.Duration, Flag("Longest that a request waits for the probe of an unknown source.")
    ] = 0.05
    # How long a source that died may still be pulled from. It is refreshed in the background before it ends,
    # so a source in use is probed every few seconds and no request waits for that.
    source_guard_good_ttl_s: Annotated[
        kinds.Duration, Flag("How long a source that accepted is trusted; refreshed in the background.")
    ] = 10.0
    # How soon a source that came back is pulled from again; short, for a probe costs one SYN.
    source_guard_bad_ttl_s: Annotated[
        kinds.Duration, Flag("How long a source that did not accept is left alone.")
    ] = 2.0
    # Some 200 bytes each; a pool has at most hundreds of engines. The bound is for made-up headers.
    source_guard_table_size: Annotated[kinds.Count, Flag("How many sources are remembered.")] = 1024


class PullRescue(Group):
    title = "Pull rescue"

    # On vLLM 0.32 a pull takes tens of milliseconds, and a failed one at most 0.1 s before the prompt is
    # computed; a hung one takes as long as the client has patience.
    pull_rescue_after_s: Annotated[
        kinds.DurationOrZero,
        Flag("How long a pull may keep an answer from beginning; then it is left out. 0: for ever."),
    ] = 10.0


class PullVerification(Group):
    title = "Pull verification"

    pull_verification: Annotated[
        kinds.Verification,
        Flag(
            "Read engines' counters around pulls, to tell what each moved. "
            "auto: when metrics or tracing are on."
        ),
    ] = "auto"
    # vLLM writes its /metrics in a few milliseconds; once a second while there are pulls is what a short
    # Prometheus interval costs it.
    pull_verification_interval_s: Annotated[
        kinds.Duration, Flag("Shortest time between two looks at an engine's counters.")
    ] = 1.0
    pull_verification_sources: Annotated[
        kinds.OnOff,
        Flag("Ask the sources of pulls for their counters too, where engines' are read."),
    ] = "on"
    # A source serves many: with 50 pods that pull from it, five looks a second, some 5 % of a core of its API
    # server's. Only after pulls.
    pull_verification_source_interval_s: Annotated[
        kinds.Duration, Flag("Shortest time between two looks at a source's counters.")
    ] = 10.0
    # One or two may be evictions, or an index that lags behind; five in a row are a mismatch.
    silent_zero_threshold: Annotated[
        kinds.CountOrZero,
        Flag("Pulls in a row that moved nothing until their source is reported; 0: never."),
    ] = 5
    silent_zero_suspend: Annotated[
        kinds.Boolean, Flag("Stop pulling from such a source, but for a trial now and then.")
    ] = True
    silent_zero_retry_s: Annotated[kinds.Duration, Flag("Time between these trials.")] = 30.0
