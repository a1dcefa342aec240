"""Makes what SSRF protection needs of the settings: the static entries, and the watch of an InferencePool.

Rule: acts only in making them; what is allowed `allowlist` decides and `pool.watch` keeps in step.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from sidecar.allowlist import Allowlist, entry
from sidecar.pool.watch import PoolName, PoolWatch
from sidecar.settings import Settings


@dataclass(frozen=True, slots=True)
class Protection:
    """static: what is always allowed, None when protection is off. pool: None without an InferencePool."""

    static: Allowlist | None = None
    pool: PoolWatch | None = None

    @property
    def allowlist(self) -> Allowlist | None:
        """Where legs may go now; None: anywhere."""
        return self.static if self.pool is None else self.pool.allowlist

    @property
    def known(self) -> bool:
        """Whether that is what it should be: the pool and its pods have been seen."""
        return self.pool is None or self.pool.synced

    def running(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """What keeps it in step, to be entered for as long as the sidecar serves."""
        return self.pool or contextlib.nullcontext()


def protects(settings: Settings) -> bool:
    """Whether SSRF protection is on."""
    return settings.enable_ssrf_protection or bool(settings.allowed_endpoints)


def protection_of(settings: Settings) -> Protection:
    """The protection that the settings describe."""
    if not protects(settings):
        return Protection()
    static = Allowlist.of(map(entry, settings.allowed_endpoints))
    if not watches(settings):
        return Protection(static)
    from sidecar.pool.cluster import Cluster  # only when it is on

    name = PoolName.parse(settings.pool_group, settings.inference_pool or "")
    return Protection(static, PoolWatch(Cluster, name, static, settings.data_parallel_size))


def watches(settings: Settings) -> bool:
    """Whether an InferencePool is watched: a mere INFERENCE_POOL, set for every pod, asks for nothing."""
    return settings.enable_ssrf_protection and settings.inference_pool is not None


def try_cluster(settings: Settings) -> None:
    """Raises ValueError, which begins with the flag, where the InferencePool surely cannot be watched."""
    if not watches(settings):
        return
    try:
        from sidecar.pool.cluster import credentials
    except ImportError as error:
        raise ValueError(f"--inference-pool: needs the extra sidecar[kubernetes] ({error})") from None
    credentials()
