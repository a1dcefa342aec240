"""Finds what is wrong with settings that are each right: not working yet, or not going together.

Rule: a problem is one line that begins with the flag as it was given; nothing is changed, nothing is raised.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sidecar.settings.durations import format_duration
from sidecar.settings.model import SETTINGS, Settings
from sidecar.settings.sources import Said

_LAST_PORT = 65535
# vLLM 0.32: a decoder keeps blocks for 480 s (nixl/base_scheduler.py, decoder_kv_blocks_ttl), and nobody may
# read them in the last 5 s of that (nixl/pull_worker.py).
_LONGEST_TTL_S = 470


def not_yet(settings: Settings, said: Mapping[str, Said]) -> Iterator[str]:
    """Name every flag or YAML key whose value asks for what this release does not do."""
    for setting in SETTINGS:
        value = getattr(settings, setting.field)
        given = said.get(setting.field)
        if given is not None and not given.inert and not setting.works(value):
            working = ", ".join(map(setting.show, setting.facts.works or (setting.default,)))
            yield f"{given.origin}: {setting.show(value)} is not supported yet, only {working}"


def conflicts(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    """Name what does not go together; `name` gives a field's name as the user gave it."""
    yield from _pulls(settings, name)
    yield from _reuse(settings, name)
    yield from _ports(settings, name)
    yield from _certificate(settings, name)


def _pulls(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    if settings.enable_p2p_pull and settings.kv_connector != "nixlv2":
        yield f"{name('enable_p2p_pull')}: goes with --kv-connector=nixlv2 only, not {settings.kv_connector}"


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


def _certificate(settings: Settings, name: Callable[[str], str]) -> Iterator[str]:
    directory = settings.cert_path
    if directory is None:
        return
    if not directory.is_dir():
        yield f"{name('cert_path')}: {str(directory)!r} is not a directory"
        return
    for file in ("tls.crt", "tls.key"):
        if not os.access(Path(directory, file), os.R_OK):
            yield f"{name('cert_path')}: {str(directory)!r} has no readable {file}"
