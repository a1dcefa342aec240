"""Joins the groups into `Settings` and lists what is in them.

Rule: nothing about a single setting stands here.
"""

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sidecar.settings.flag import Group, Setting, by_name, settings_of
from sidecar.settings.groups import Engines, PullRescue, PullVerification, Serving, SourceGuard, Transfer
from sidecar.settings.groups_more import Configuration, MoRIIO, Observability, PeerLogging, Reuse
from sidecar.settings.groups_protection import Allowlist, Certificates, Limits

# In the order in which --help shows them.
GROUPS: tuple[type[Group], ...] = (
    Serving,
    Engines,
    Transfer,
    SourceGuard,
    PullRescue,
    PullVerification,
    Reuse,
    Observability,
    Allowlist,
    Certificates,
    Limits,
    Configuration,
    PeerLogging,
    MoRIIO,
)


class Settings(
    Serving,
    Engines,
    Transfer,
    SourceGuard,
    PullRescue,
    PullVerification,
    Reuse,
    Observability,
    Allowlist,
    Certificates,
    Limits,
    Configuration,
    PeerLogging,
    MoRIIO,
    BaseSettings,
):
    """Everything that can be set, validated and immutable; made by `sidecar.settings.load`."""

    # Defaults are tested once (tests/settings), not at every start.
    model_config = SettingsConfigDict(frozen=True, extra="forbid", defer_build=False, validate_default=False)

    def __init__(self, *sources: PydanticBaseSettingsSource) -> None:
        """Take each setting from the first of `sources` that has it, and from nowhere else.

        Raises pydantic.ValidationError.
        """
        # _build_sources is how pydantic-settings (2.13 and later) takes sources that need arguments of their
        # own.
        BaseSettings.__init__(self, _build_sources=(sources, {}))

    @property
    def writes_moriio(self) -> bool:
        """Whether MoRI-IO's write mode is on; the peer too asks for it within nixlv2 only."""
        return self.moriio_write_mode and self.kv_connector == "nixlv2"

    @property
    def processes(self) -> int:
        """How many processes serve: the workers of each rank."""
        return self.workers * self.data_parallel_size


SETTINGS: tuple[Setting, ...] = tuple(setting for group in GROUPS for setting in settings_of(group))
BY_NAME = by_name(SETTINGS)
BY_FIELD = {setting.field: setting for setting in SETTINGS}
