"""The settings around the main job: observability, configuration, the peer's own.

Rule: as in `groups`.
"""

from typing import Annotated

from sidecar.settings import kinds
from sidecar.settings.flag import Flag, Group


class Reuse(Group):
    title = "Reading from decoders (bidirectional NIXL)"

    enable_bidirectional_kv_xfer: Annotated[
        kinds.Boolean,
        Flag(
            "A prefiller reads from this pod's decoder what that holds of a chat's last turn; engines need "
            "bidirectional_kv_xfer. With nixlv2 only."
        ),
    ] = False
    # A person's pause between two turns. vLLM's decoders keep the blocks for 480 s (decoder_kv_blocks_ttl).
    bidirectional_kv_ttl_s: Annotated[
        kinds.Duration, Flag("How long a turn is remembered; less where the decoder says so.")
    ] = 300.0
    # One per conversation within the time above. An entry is some 700 bytes and its block ids.
    bidirectional_kv_entries: Annotated[kinds.Count, Flag("How many turns are remembered.")] = 4096
    # 128k tokens in blocks of 16 are 8,000 ids, about 50 KB of text.
    bidirectional_kv_bytes: Annotated[kinds.Bytes, Flag("How much memory they may take.")] = 32 * 1024 * 1024


class Observability(Group):
    title = "Observability"

    tracing: Annotated[
        kinds.Boolean, Flag("Record OpenTelemetry spans; where to is set by the OTEL_* variables.")
    ] = False
    metrics_port: Annotated[kinds.PortOrZero, Flag("Port of the sidecar's own /metrics; 0: none.")] = 0
    metrics_cert_dir: Annotated[
        kinds.OptionalPath,
        Flag(
            "Directory with tls.crt and tls.key for that port, read again when they change. "
            "Empty: plain HTTP."
        ),
    ] = None
    # Fourteen series for each, of at most 256 (observers/peers.py).
    metrics_peers: Annotated[
        kinds.Boolean, Flag("Count pulls by source too, 256 of them at most. With --metrics-port only.")
    ] = False
    debug_endpoints: Annotated[
        kinds.Boolean,
        Flag(
            "Serve /debug/ on --metrics-port, which it needs, and tell clients that send x-sidecar-debug: 1 "
            "what was done for them."
        ),
    ] = False
    # Some 2 KB each, so a megabyte: what a person looks back over, and at 10 requests a second most of a
    # minute.
    debug_ring: Annotated[
        kinds.Count, Flag("How many exchanges each process remembers. With --debug-endpoints only.")
    ] = 512
    log_level: Annotated[kinds.Level, Flag("Least severe lines that are logged.")] = "info"
    log_format: Annotated[kinds.Format, Flag("One JSON object per line, or text to read.")] = "json"


class PeerLogging(Group):
    """The flags of controller-runtime's zap binding (pkg/log/zap/zap.go, BindFlags) and klog's verbosity.

    They set --log-level and --log-format where those are not given, so that manifests written for the peer
    start unchanged.
    """

    title = "Logging flags of the peer"

    zap_log_level: Annotated[
        kinds.ZapLevel,
        Flag("Sets --log-level: a number is debug, panic is error (nothing is logged above it)."),
    ] = None
    zap_encoder: Annotated[kinds.ZapEncoder, Flag("Sets --log-format: console is text.")] = None
    zap_devel: Annotated[kinds.Boolean, Flag("Sets --log-level to debug and --log-format to text.")] = False
    zap_stacktrace_level: Annotated[
        kinds.ZapStacktrace, Flag("Lines that carry a traceback.", works=("error",))
    ] = "error"
    zap_time_encoding: Annotated[kinds.ZapTime, Flag("How lines spell the time.", works=("rfc3339",))] = (
        "rfc3339"
    )
    v: Annotated[kinds.OptionalCount, Flag("Sets --log-level: debug from 4 on, else info; also -v=N.")] = None


class MoRIIO(Group):
    """Plans are in connectors/moriio.py, where vLLM's use of these values is named."""

    title = "MoRI-IO (nixlv2 with --moriio-write-mode only)"

    moriio_write_mode: Annotated[
        kinds.Boolean, Flag("Engines run MoRI-IO in write mode. Needs --moriio-local-pod-ip.")
    ] = False
    moriio_parallel_dispatch: Annotated[
        kinds.Boolean,
        Flag("Send prefill and decode together; decode's answer is held until prefill has succeeded."),
    ] = False
    # A prefill of a long prompt takes seconds; a decode that waits for it holds blocks for its whole answer.
    moriio_parallel_decode_wait_timeout_s: Annotated[
        kinds.Duration,
        Flag("Longest wait of a decode for its prefill, when sent together; over it both end with 504."),
    ] = 30.0
    moriio_local_pod_ip: Annotated[
        kinds.OptionalHost,
        Flag("Address or name by which prefillers reach this pod.", env="POD_IP"),
    ] = None
    moriio_decode_notify_port: Annotated[kinds.Port, Flag("Base notify port of the decode pod.")] = 61005
    moriio_decode_handshake_port: Annotated[kinds.Port, Flag("Base handshake port of the decode pod.")] = 6301
    moriio_prefill_notify_port: Annotated[kinds.Port, Flag("Base notify port of a prefill pod.")] = 61005
    moriio_prefill_handshake_port: Annotated[kinds.Port, Flag("Base handshake port of a prefill pod.")] = 6301
    moriio_tp_size: Annotated[kinds.Count, Flag("Tensor-parallel size of the engines.")] = 1
    moriio_dp_size: Annotated[kinds.Count, Flag("Data-parallel size over all pods.")] = 1
    moriio_dp_size_local: Annotated[
        kinds.CountOrZero, Flag("Data-parallel size within a pod; 0: one pod has all ranks.")
    ] = 0
    moriio_remote_hosts: Annotated[kinds.Hosts, Flag("Prefill pods, by rank; by comma or repetition.")] = ()
    moriio_decode_hosts: Annotated[kinds.Hosts, Flag("Decode pods, by rank; by comma or repetition.")] = ()
    moriio_dns_resolve_ttl_s: Annotated[
        kinds.WholeSeconds,
        Flag(
            "How long a looked-up host name holds; refreshed in the background.",
            env="MORIIO_DNS_RESOLVE_TTL_SECONDS",
            by_flag=False,
            by_yaml=False,
        ),
    ] = 30
    moriio_dns_resolve_timeout_s: Annotated[
        kinds.WholeSeconds,
        Flag(
            "Longest wait for a look-up; the start waits as long for the first.",
            env="MORIIO_DNS_RESOLVE_TIMEOUT_SECONDS",
            by_flag=False,
            by_yaml=False,
        ),
    ] = 5


class Configuration(Group):
    title = "Configuration"

    configuration: Annotated[
        kinds.OptionalText,
        Flag("Settings as YAML, keys are flag names: '{port: 8085, tracing: true}'.", by_yaml=False),
    ] = None
    configuration_file: Annotated[
        kinds.OptionalPath, Flag("File with such YAML; not together with --configuration.", by_yaml=False)
    ] = None
