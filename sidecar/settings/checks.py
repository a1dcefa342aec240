"""Finds what is wrong with settings that are each right and do not go together.

Rule: a problem is one line that begins with the flag as it was given; nothing is changed, nothing is raised.
What the peer starts with is no problem; where it has no effect, `idle` tells of it.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from sidecar.files import is_special
from sidecar.settings.durations import format_duration
from sidecar.settings.model import BY_FIELD, Settings

_LAST_PORT = 65535
# vLLM 0.32: a decoder keeps blocks for 480 s (nixl/base_scheduler.py, decoder_kv_blocks_ttl), and nobody may
# read them in the last 5 s of that (nixl/pull_worker.py).
_LONGEST_TTL_S = 470


def conflicts(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    """Name what does not go together; `name` gives a field's name as the user gave it."""
    yield from _pulls(settings, name)
    yield from _reuse(settings, name)
    yield from _ports(settings, name)
    if settings.metrics_peers and not settings.metrics_port:
        yield f"{name('metrics_peers')}: goes with --metrics-port only"
    yield from _certificates(settings, name)
    yield from _trust(settings, name)
    yield from _allowlist(settings, name)
    yield from _debug(settings, name)
    yield from _moriio(settings, name)


# The one group whose pools are read, as the peer's (llm-d-router pkg/sidecar/proxy/allowlist.go).
_POOL_GROUP = "inference.networking.k8s.io"


def _allowlist(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    if settings.enable_ssrf_protection and settings.pool_group != _POOL_GROUP:
        yield f"{name('pool_group')}: {settings.pool_group!r} is not supported, only {_POOL_GROUP}"
    if settings.enable_ssrf_protection and not (settings.inference_pool or settings.allowed_endpoints):
        yield f"{name('enable_ssrf_protection')}: needs --inference-pool or --allowed-endpoints"
    off = "enable_ssrf_protection" in settings.model_fields_set and not settings.enable_ssrf_protection
    if off and settings.allowed_endpoints:
        yield f"{name('allowed_endpoints')}: contradicts {name('enable_ssrf_protection')} false"


def _pulls(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    if settings.enable_p2p_pull and settings.kv_connector != "nixlv2":
        yield f"{name('enable_p2p_pull')}: goes with --kv-connector=nixlv2 only, not {settings.kv_connector}"
    field = "pull_verification_source_interval_s"
    if getattr(settings, field) != BY_FIELD[field].default:
        if settings.pull_verification_sources == "off":
            yield f"{name(field)}: does not go with {name('pull_verification_sources')} off"
        if settings.pull_verification == "off":
            yield f"{name(field)}: does not go with {name('pull_verification')} off"


def _reuse(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    if settings.enable_bidirectional_kv_xfer:
        flag = name("enable_bidirectional_kv_xfer")
        if settings.kv_connector != "nixlv2":
            yield f"{flag}: goes with --kv-connector=nixlv2 only, not {settings.kv_connector}"
        if settings.moriio_write_mode:
            yield f"{flag}: does not go with {name('moriio_write_mode')}"
    if settings.bidirectional_kv_ttl_s > _LONGEST_TTL_S:
        given = format_duration(settings.bidirectional_kv_ttl_s)
        longest = format_duration(_LONGEST_TTL_S)
        yield f"{name('bidirectional_kv_ttl_s')}: {given} is over {longest}: decoders free blocks after 8m"


def _ports(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    ranks = settings.data_parallel_size
    for field in ("port", "model_server_port", "p2p_connector_port"):
        first: int = getattr(settings, field)
        if first + ranks - 1 > _LAST_PORT:
            yield f"{name(field)}: {first} and the {ranks} ranks' ports above it pass {_LAST_PORT}"
    if abs(settings.port - settings.model_server_port) < ranks:
        shared = "the same port as" if ranks == 1 else f"within {ranks} ranks of"
        other = f"{name('model_server_port')} {settings.model_server_port}"
        yield f"{name('port')}: {settings.port} is {shared} {other}"
    for field in ("port", "model_server_port"):
        first = getattr(settings, field)
        if first <= settings.metrics_port < first + ranks:
            which = "the same port as" if ranks == 1 else f"one of the {ranks} ranks' ports from"
            yield f"{name('metrics_port')}: {settings.metrics_port} is {which} {name(field)} {first}"


def _certificates(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    if settings.cert_path is not None and settings.secure_serving:
        yield from _certificate(settings.cert_path, name("cert_path"))
    if settings.metrics_cert_dir is not None and settings.metrics_port:
        yield from _certificate(settings.metrics_cert_dir, name("metrics_cert_dir"))
    if settings.upstream_client_cert_dir is not None:
        yield from _certificate(settings.upstream_client_cert_dir, name("upstream_client_cert_dir"))
    for field in ("upstream_ca_file", "client_ca_file"):
        file: Path | None = getattr(settings, field)
        if file is not None and is_special(file):
            yield f"{name(field)}: {str(file)!r} is not a regular file"
        elif file is not None and not os.access(file, os.R_OK):
            yield f"{name(field)}: {str(file)!r} cannot be read"


def _certificate(directory: Path, flag: str) -> Iterator[str]:
    if not os.path.isdir(directory):  # unlike Path.is_dir, also for a path that is too long
        yield f"{flag}: {str(directory)!r} is not a directory"
        return
    for file in ("tls.crt", "tls.key"):
        path = Path(directory, file)
        if is_special(path):
            yield f"{flag}: {str(path)!r} is not a regular file"
        elif not os.access(path, os.R_OK):
            yield f"{flag}: {str(directory)!r} has no readable {file}"


def _debug(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    if settings.debug_endpoints and not settings.metrics_port:
        yield f"{name('debug_endpoints')}: needs a port that no client reaches (--metrics-port)"
    if settings.debug_ring != BY_FIELD["debug_ring"].default and not settings.debug_endpoints:
        yield f"{name('debug_ring')}: goes with --debug-endpoints only"


def _trust(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    """What is said of certificates where none are looked at."""
    for field in ("upstream_ca_file", "upstream_client_cert_dir"):
        if getattr(settings, field) is not None and not settings.enable_tls:
            yield f"{name(field)}: goes with --enable-tls only"
    for pair in settings.upstream_server_name:
        if (stage := pair.partition("=")[0]) not in settings.enable_tls:
            yield f"{name('upstream_server_name')}: {stage!r} is not a stage of --enable-tls"
    if settings.client_ca_file is not None and not settings.secure_serving:
        yield f"{name('client_ca_file')}: goes with --secure-serving only"


def _moriio(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    if not settings.writes_moriio:
        return
    mode = name("moriio_write_mode")
    if not settings.moriio_local_pod_ip:
        yield f"{mode}: needs this pod's address (--moriio-local-pod-ip or POD_IP)"
    for field in ("moriio_remote_hosts", "moriio_decode_hosts"):
        yield from _by_rank(settings, name, field)


def _by_rank(settings: Settings, name: Callable[[str], str], field: str) -> Iterator[str]:
    """Engines look for rank r in pod r // dp-size-local, and hang where there is none."""
    pods, ranks, local = len(getattr(settings, field)), settings.moriio_dp_size, settings.moriio_dp_size_local
    if pods > 1 and local and ranks > pods * local:
        yield f"{name(field)}: {pods} pods of {local} ranks have not the {ranks} of --moriio-dp-size"
