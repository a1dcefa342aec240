"""What a setting is besides its type and default: its flag, environment variable, help and standing.

Rule: these facts are written once, in the field's annotation; parsing, --help, the flags table and the
warnings of what does not work yet all read them from here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from sidecar.settings.reading import Kind

# Fields that hold seconds end so; their flags do not, for there the value says its unit (200ms).
_SECONDS_SUFFIX = "_s"


@dataclass(frozen=True, slots=True)
class Flag:
    """The facts of one setting, for its field's annotation.

    `env` is the variable that sets it, `formerly` the deprecated name that still does. `works` are the values
    that work in this release (None: all; (): the default only); others have no effect. `by_flag` is False
    for a setting that only a variable sets, `by_yaml` for one that YAML cannot set.
    """

    help: str
    env: str | None = None
    formerly: str | None = None
    works: tuple[object, ...] | None = None
    by_flag: bool = True
    by_yaml: bool = True


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of the settings with all that is known about it; `flag` is the flag's name without dashes."""

    field: str
    flag: str
    kind: Kind
    default: Any
    facts: Flag

    @property
    def name(self) -> str:
        """What a user calls it: `--port`, or the variable where there is no flag."""
        return f"--{self.flag}" if self.facts.by_flag else str(self.facts.env)

    def works(self, value: object) -> bool:
        """Whether this release does what `value` asks for."""
        works = self.facts.works
        return works is None or value == self.default or value in works

    def show(self, value: object) -> str:
        """Spell `value` as a user would write it, in one line."""
        text = self.kind.show(value) or "empty"
        return text if text.isprintable() else repr(text)

    def standing(self) -> str:
        """Say what of it has no effect yet, for people; "" when everything has."""
        works = self.facts.works
        if works is None:
            return ""
        return f"yet only {', '.join(map(self.show, works))}" if works else "without effect"


class Group(BaseModel):
    """Settings that --help and the flags table show together, under `title`."""

    # The parts are never built alone: only Settings, which joins them, needs a validator.
    model_config = ConfigDict(defer_build=True)
    title: ClassVar[str]


def settings_of(group: type[BaseModel]) -> tuple[Setting, ...]:
    """Return the settings that `group` itself declares, in order."""
    return tuple(_setting(group, field) for field in group.__annotations__ if field in group.model_fields)


def _setting(group: type[BaseModel], field: str) -> Setting:
    described = group.model_fields[field]
    (facts,) = (fact for fact in described.metadata if isinstance(fact, Flag))
    (kind,) = (fact for fact in described.metadata if isinstance(fact, Kind))
    flag = field.removesuffix(_SECONDS_SUFFIX) if kind.metavar == "DURATION" else field
    return Setting(field, flag.replace("_", "-"), kind, described.default, facts)


def by_name(settings: Iterable[Setting]) -> Mapping[str, Setting]:
    """Map the name of every flag, deprecated ones too, to its setting."""
    names: dict[str, Setting] = {}
    for setting in settings:
        if setting.facts.by_flag:
            names[setting.flag] = setting
        if setting.facts.formerly is not None:
            names[setting.facts.formerly] = setting
    return MappingProxyType(names)
