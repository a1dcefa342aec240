"""Says in one line what has started and how to try it.

Rule: everything in it can be pasted: addresses are URLs, the command is complete.
"""

import shlex
from collections.abc import Iterator

from sidecar.settings.model import Settings

_EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})


def start_line(settings: Settings, version: str) -> str:
    """Return e.g. `sidecar 0.1.0 on https://*:8000, decoder ..., connector nixlv2; try: curl -k ...`."""
    scheme = "https" if settings.secure_serving else "http"
    decoder = "https" if "decoder" in settings.enable_tls else "http"
    mode = " in MoRI-IO write mode" if settings.writes_moriio else ""
    mode += " with p2p pulls" if settings.enable_p2p_pull else ""
    try_host = "localhost" if settings.host in _EVERY_INTERFACE else _literal(settings.host)
    also = "".join(f", {each}" for each in _extras(settings))
    curl = "curl -k" if settings.secure_serving else "curl"
    url = shlex.quote(f"{scheme}://{try_host}:{settings.port}/v1/models")
    return (
        f"sidecar {version} on {scheme}://{_literal(settings.host) or '*'}:{settings.port}, "
        f"decoder {decoder}://localhost:{settings.model_server_port}, "
        f"connector {settings.kv_connector}{mode}{also}; try: {curl} {url}"
    )


def _extras(settings: Settings) -> Iterator[str]:
    if settings.data_parallel_size > 1:
        yield f"{settings.data_parallel_size} ranks from these ports on"
    if settings.workers > 1:
        yield f"{settings.workers} workers" + (" each" if settings.data_parallel_size > 1 else "")
    if settings.metrics_port:
        scheme = "https" if settings.metrics_cert_dir else "http"
        base = f"{scheme}://{_literal(settings.host) or '*'}:{settings.metrics_port}"
        yield f"metrics {base}/metrics"
        if settings.debug_endpoints:
            yield f"debug page {base}/debug/"


def _literal(host: str) -> str:
    return f"[{host}]" if ":" in host else host
