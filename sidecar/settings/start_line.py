"""Says in one line what has started and how to try it.

Rule: everything in it can be pasted: addresses are URLs, the command is complete.
"""

import shlex

from sidecar.settings.model import Settings

_EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})


def start_line(settings: Settings, version: str) -> str:
    """Return e.g. `sidecar 0.1.0 on https://*:8000, decoder ..., connector nixlv2; try: curl -k ...`."""
    scheme = "https" if settings.secure_serving else "http"
    decoder = "https" if "decoder" in settings.enable_tls else "http"
    mode = " in MoRI-IO write mode" if settings.moriio_write_mode else ""
    mode += " with p2p pulls" if settings.enable_p2p_pull else ""
    try_host = "localhost" if settings.host in _EVERY_INTERFACE else _literal(settings.host)
    url = shlex.quote(f"{scheme}://{try_host}:{settings.port}/v1/models")
    return (
        f"sidecar {version} on {scheme}://{_literal(settings.host) or '*'}:{settings.port}, "
        f"decoder {decoder}://localhost:{settings.model_server_port}, "
        f"connector {settings.kv_connector}{mode}; try: curl {'-k ' if settings.secure_serving else ''}{url}"
    )


def _literal(host: str) -> str:
    return f"[{host}]" if ":" in host else host
