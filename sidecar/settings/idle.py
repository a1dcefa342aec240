"""Finds what is said and has no effect, which the peer passes over and a warning tells of here.

Rule: what manifests written for the peer say starts, so nothing here refuses; a warning is one line that
begins with the flag as it was given, and names what it would have an effect with. Variables are not told of:
manifests set them for every pod.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sidecar.settings.flag import settings_of
from sidecar.settings.groups_more import MoRIIO
from sidecar.settings.model import SETTINGS, Settings
from sidecar.settings.sources import Said


@dataclass(frozen=True, slots=True)
class _Use:
    """These fields have an effect only where `when` holds, which `needs` says in words."""

    fields: tuple[str, ...]
    when: Callable[[Settings], bool]
    needs: str


def _serves_tls(settings: Settings) -> bool:
    return settings.secure_serving or bool(settings.metrics_port and settings.metrics_cert_dir)


def _skips(settings: Settings) -> bool:
    return bool(settings.tls_insecure_skip_verify & settings.enable_tls)


# --moriio-local-pod-ip has a variable, and one address alone asks for nothing.
_MORIIO = tuple(
    setting.field
    for setting in settings_of(MoRIIO)
    if setting.facts.env is None and setting.field != "moriio_write_mode"
)
_USES = (
    _Use(
        ("mooncake_bootstrap_port",),
        lambda settings: settings.kv_connector == "mooncake",
        "--kv-connector=mooncake",
    ),
    _Use(
        ("p2p_connector_port",),
        lambda settings: settings.kv_connector == "offloading" or settings.enable_p2p_pull,
        "--kv-connector=offloading or --enable-p2p-pull",
    ),
    _Use(
        ("moriio_write_mode",),
        lambda settings: settings.writes_moriio,
        "--kv-connector=nixlv2",
    ),
    _Use(
        _MORIIO,
        lambda settings: settings.writes_moriio,
        "--moriio-write-mode and --kv-connector=nixlv2",
    ),
    _Use(
        ("prefill_retry_backoff_s",),
        lambda settings: settings.prefill_max_retries > 0,
        "--prefill-max-retries",
    ),
    _Use(("cert_path",), lambda settings: settings.secure_serving, "--secure-serving"),
    _Use(("tls_min_version", "tls_cipher_suites"), _serves_tls, "--secure-serving or --metrics-cert-dir"),
    _Use(("metrics_cert_dir",), lambda settings: settings.metrics_port > 0, "--metrics-port"),
    _Use(("tls_insecure_skip_verify",), _skips, "the same stages in --enable-tls"),
    _Use(
        ("inference_pool", "pool_group"),
        lambda settings: settings.enable_ssrf_protection,
        "--enable-ssrf-protection",
    ),
)


def idle(settings: Settings, said: Mapping[str, Said]) -> Iterator[str]:
    """Tell of every flag or YAML key that says what these settings, or this release, have no use for."""
    yield from _not_done(settings, said)
    yield from _without_ranks(settings, said)
    for use in _USES:
        if use.when(settings):
            continue
        for field in use.fields:
            if _told(settings, said, field):
                yield f"{said[field].origin}: has no effect without {use.needs}"


def _without_ranks(settings: Settings, said: Mapping[str, Said]) -> Iterator[str]:
    """Pods that no rank is in: engines count by dp-size-local, and without it all ranks are in the first."""
    local = settings.moriio_dp_size_local or settings.moriio_dp_size
    reached = -(-settings.moriio_dp_size // local)
    for field in ("moriio_remote_hosts", "moriio_decode_hosts"):
        pods = len(getattr(settings, field))
        if settings.writes_moriio and _told(settings, said, field) and pods > reached:
            yield (
                f"{said[field].origin}: of {pods} pods only the first {reached} can have ranks "
                "(--moriio-dp-size, --moriio-dp-size-local)"
            )


def _not_done(settings: Settings, said: Mapping[str, Said]) -> Iterator[str]:
    for setting in SETTINGS:
        value = getattr(settings, setting.field)
        if _told(settings, said, setting.field) and not setting.works(value):
            done = ", ".join(map(setting.show, setting.facts.works or (setting.default,)))
            yield f"{said[setting.field].origin}: {setting.show(value)} has no effect here, only {done}"


def _told(settings: Settings, said: Mapping[str, Said], field: str) -> bool:
    """Whether a flag or YAML asks for something else than the default."""
    given = said.get(field)
    return given is not None and not given.inert and getattr(settings, field) != given.setting.default
