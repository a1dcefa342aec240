"""The settings of who may reach whom: the allowlist, certificates both ways, limits.

Rule: as in `groups`.
"""

from typing import Annotated

from sidecar.server.limits import DEFAULT_LIMITS
from sidecar.settings import kinds
from sidecar.settings.flag import Flag, Group


class Allowlist(Group):
    title = "SSRF protection"

    enable_ssrf_protection: Annotated[
        kinds.Boolean,
        Flag("Send legs only to pods of the InferencePool, at its ports, and to --allowed-endpoints."),
    ] = False
    inference_pool: Annotated[
        kinds.OptionalPool,
        Flag(
            "The InferencePool; a bare name is in namespace default. With --enable-ssrf-protection only.",
            env="INFERENCE_POOL",
        ),
    ] = None
    pool_group: Annotated[kinds.Word, Flag("API group of the InferencePool, in version v1.")] = (
        "inference.networking.k8s.io"
    )
    allowed_endpoints: Annotated[
        kinds.AllowedEndpoints,
        Flag(
            "Where legs may go besides, or without Kubernetes: host:port, 10.0.0.0/8 (any port), "
            "10.0.0.0/8:8000, [fd00::/8]:8000; by comma or repetition. Switches SSRF protection on."
        ),
    ] = ()


class Certificates(Group):
    title = "Certificates"

    upstream_ca_file: Annotated[
        kinds.OptionalPath,
        Flag(
            "PEM file of the authorities that sign the certificates of engines, instead of the system's; "
            "read again when it changes. With --enable-tls."
        ),
    ] = None
    upstream_client_cert_dir: Annotated[
        kinds.OptionalPath,
        Flag(
            "Directory with tls.crt and tls.key, shown to engines that ask for a certificate; read again "
            "when they change. With --enable-tls."
        ),
    ] = None
    # Pods are reached by address, and certificates mostly have names.
    upstream_server_name: Annotated[
        kinds.ServerNames,
        Flag(
            "The name in the certificates of a stage's engines, asked for by SNI, where it is not the host "
            "that they are reached by; by comma or repetition."
        ),
    ] = ()
    client_ca_file: Annotated[
        kinds.OptionalPath,
        Flag(
            "PEM file of the authorities that sign the certificates of clients, who must then have one; read "
            "again when it changes. With --secure-serving."
        ),
    ] = None


class Limits(Group):
    title = "Limits"

    # Engines queue by themselves, and gateways know better where there is room: no limit of ours by default.
    max_concurrent_requests: Annotated[
        kinds.CountOrZero,
        Flag("Requests at a time in each process; one more gets 503 with Retry-After. 0: no limit."),
    ] = 0
    # Reasons for these four stand with their defaults (server/limits.py).
    header_timeout_s: Annotated[
        kinds.Duration,
        Flag("How long a request's head may take once it has begun; over it 408. No answer is cut by it."),
    ] = DEFAULT_LIMITS.header_timeout_s
    body_timeout_s: Annotated[
        kinds.Duration,
        Flag("How long a client may be silent in the middle of a request's body; over it 408."),
    ] = DEFAULT_LIMITS.body_timeout_s
    max_header_bytes: Annotated[
        kinds.Bytes, Flag("Largest request head, request line and fields together; over it 431.")
    ] = DEFAULT_LIMITS.header_bytes
    client_idle_timeout_s: Annotated[
        kinds.Duration, Flag("How long a client's connection may wait for its next request.")
    ] = DEFAULT_LIMITS.idle_s
    # As much as of a request; engines send less than 1 KiB.
    max_response_header_bytes: Annotated[
        kinds.Bytes, Flag("Largest head of an engine's answer; over it 502.")
    ] = 65536
