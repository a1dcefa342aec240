"""The settings of who may reach what: the allowlist.

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
