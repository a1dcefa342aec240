"""Reads the documented environment variables, and no others.

Rule: a variable that is set but empty is not set (Kubernetes passes empty values for absent ones). A variable
never asks for a feature by itself, so one whose feature has not come yet is read, checked and without effect.
"""

from collections.abc import Mapping

from sidecar.settings.model import SETTINGS
from sidecar.settings.sources import Reading, Said


def read_environment(environ: Mapping[str, str]) -> Reading:
    """Return what the variables in `environ` say."""
    reading = Reading()
    for setting in SETTINGS:
        env = setting.facts.env
        text = "" if env is None else environ.get(env, "")
        if text.strip():
            origin = f"{env} ({setting.name})" if setting.facts.by_flag else str(env)
            reading.said[setting.field] = Said(setting, text, origin, inert=True)
    return reading
