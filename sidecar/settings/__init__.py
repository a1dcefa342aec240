"""Configuration: one immutable `Settings`, made by `load` from flags, environment variables and YAML.

Rule: nothing outside this package reads flags or the environment.
"""

from sidecar.settings.load import SettingsError, load
from sidecar.settings.model import Settings
from sidecar.settings.shown import config_of
from sidecar.settings.start_line import start_line
from sidecar.settings.table import flags_table, help_text

__all__ = ["Settings", "SettingsError", "config_of", "flags_table", "help_text", "load", "start_line"]
