"""What flags, environment and YAML each say, in one form.

Rule: within one source a repeated scalar is the last one, lists add up, and a deprecated name is its
successor; which source wins is not decided here but by the order in which `load` hands them to
pydantic-settings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from sidecar.settings.flag import Setting
from sidecar.settings.reading import Text


@dataclass(frozen=True, slots=True)
class Said:
    """One mention of a setting: `text` as it was given, `origin` as a user would name the place.

    `inert`: nobody is told where it has no effect (variables: manifests set them for every pod).
    """

    setting: Setting
    text: Text
    origin: str
    deprecated: bool = False
    inert: bool = False


@dataclass(slots=True)
class Reading:
    """What one source says, by field, with what is wrong in it and what its user should be told."""

    said: dict[str, Said] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Source(PydanticBaseSettingsSource):
    """A Reading as pydantic-settings wants it."""

    def __init__(self, settings_cls: type[BaseSettings], said: Mapping[str, Said]) -> None:
        super().__init__(settings_cls)
        self._said = said

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        said = self._said.get(field_name)
        return (None if said is None else said.text), field_name, False

    def __call__(self) -> dict[str, Any]:
        return {name: said.text for name, said in self._said.items()}


def merge(mentions: Iterable[Said], reading: Reading) -> Reading:
    """Add `mentions`, in the order in which they were given, to `reading` and return it."""
    for said in mentions:
        name = said.setting.field
        before = reading.said.get(name)
        if said.deprecated:
            warning = f"{said.origin} is deprecated, use {said.setting.name}"
            reading.warnings.extend([] if warning in reading.warnings else [warning])
        if before is not None and before.deprecated != said.deprecated and _differ(before, said):
            said = _settled(before, said, reading)
        reading.said[name] = _joined(before, said)
    return reading


def _settled(before: Said, said: Said, reading: Reading) -> Said:
    """Which of two names that disagree is meant, or what is wrong with that."""
    if said.setting.kind.bare is not None:
        # The peer's booleans share one variable, so that TLS would hang on which of them stands last.
        reading.problems.append(f"{said.origin}: {said.text!r} contradicts {before.origin} {before.text!r}")
        return said
    # llm-d-router pkg/sidecar/proxy/options.go, Complete: the old name counts where the new one is absent.
    old, new = (before, said) if before.deprecated else (said, before)
    reading.warnings.append(f"{old.origin}: has no effect beside {new.origin}")
    return new


def _joined(before: Said | None, said: Said) -> Said:
    if before is None or said.setting.kind.many is None:
        return said
    return replace(said, text=(*_lines(before.text), *_lines(said.text)))


def _lines(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def _differ(one: Said, other: Said) -> bool:
    read = one.setting.kind.read
    try:
        return read(one.text) != read(other.text)
    except ValueError:
        # Unreadable text is refused as such when the settings are made.
        return False
