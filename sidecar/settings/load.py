"""Makes the settings of one start out of the command line, the environment and YAML.

Rule: flag before variable before YAML before default; all problems are found before any is reported.
"""

import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sidecar.settings.argv import read_argv
from sidecar.settings.checks import conflicts
from sidecar.settings.environment import read_environment
from sidecar.settings.idle import idle
from sidecar.settings.model import BY_FIELD, Settings
from sidecar.settings.sources import Said, Source
from sidecar.settings.yaml_source import read_yaml

# klog's V(4) is llm-d's debug (llm-d-router pkg/common/observability/logging).
_DEBUG_VERBOSITY = 4
_ORDER = {field: place for place, field in enumerate(BY_FIELD)}


class SettingsError(Exception):
    """The settings cannot be used. `problems` are lines for the user that begin with the flag in question."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


def _to_stderr(line: str) -> None:
    print(f"sidecar: {line}", file=sys.stderr)


def load(
    argv: Sequence[str], environ: Mapping[str, str], *, warn: Callable[[str], None] = _to_stderr
) -> Settings:
    """Return the settings that `argv` (without the program's and the command's name) and `environ` ask for.

    `warn` is called with one line per deprecated flag, and per flag or YAML key without effect. Raises
    SettingsError with every problem found.
    """
    flags, environment = read_argv(argv), read_environment(environ)
    yaml = read_yaml(flags.said)
    readings = (flags, environment, yaml)
    said = ChainMap(*(reading.said for reading in readings))
    problems = [problem for reading in readings for problem in reading.problems]
    for warning in (warning for reading in readings for warning in reading.warnings):
        warn(warning)
    try:
        settings = Settings(*(Source(Settings, reading.said) for reading in readings))
    except ValidationError as refused:
        # pydantic names them in the order in which it found the fields; users know that of --help.
        errors = sorted(refused.errors(), key=lambda error: _ORDER[str(error["loc"][0])])
        raise SettingsError([*problems, *(_line(error, said) for error in errors)]) from None
    problems += conflicts(settings, lambda field: _name(field, said))
    if problems:
        raise SettingsError(problems)
    for warning in idle(settings, said):
        warn(warning)
    return settings.model_copy(update=_peer_logging(settings))


def _name(field: str, said: Mapping[str, Said]) -> str:
    return said[field].origin if field in said else BY_FIELD[field].name


def _line(error: ErrorDetails, said: Mapping[str, Said]) -> str:
    reason = error.get("ctx", {}).get("error", error["msg"])
    return f"{_name(str(error['loc'][0]), said)}: {reason}"


def _peer_logging(settings: Settings) -> dict[str, Any]:
    """Return what the peer's logging flags set of --log-level and --log-format where those were not given."""
    level = settings.zap_log_level
    if level is None and settings.v is not None:
        level = "debug" if settings.v >= _DEBUG_VERBOSITY else "info"
    if level is None and settings.zap_devel:
        level = "debug"
    form = settings.zap_encoder or ("text" if settings.zap_devel else None)
    meant = {"log_level": level, "log_format": form}
    return {
        field: value for field, value in meant.items() if value and field not in settings.model_fields_set
    }
