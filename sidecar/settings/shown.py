"""The configuration in force, for people to look at.

Rule: generated from the settings. An inline configuration is shown as what it set, not as a text.
"""

from typing import Any

from sidecar.settings.flag import settings_of
from sidecar.settings.model import GROUPS, Settings

_TEXTS = frozenset(("configuration",))


def config_of(settings: Settings) -> list[dict[str, Any]]:
    """One entry per setting, in the order of --help."""
    return [
        {
            "group": group.title,
            "name": setting.name,
            "value": setting.kind.show(value := getattr(settings, setting.field)),
            "default": value == setting.default,
            "help": setting.facts.help,
        }
        for group in GROUPS
        for setting in settings_of(group)
        if setting.field not in _TEXTS
    ]
