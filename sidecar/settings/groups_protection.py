"""The settings of who may reach whom: the allowlist, and certificates both ways.

Rule: as in `groups`.
"""

from typing import Annotated

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
