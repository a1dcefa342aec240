"""The types of the settings: each is the value's Python type plus the Kind that reads and shows it.

Rule: a row per sort of value and no logic; how texts are read stands in `reading`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from sidecar.settings.durations import format_duration, parse_duration
from sidecar.settings.hosts import host, ip, stage_name
from sidecar.settings.reading import (
    Kind,
    allowed_endpoint,
    boolean,
    cipher_suite,
    number,
    on_off,
    one_of,
    or_none,
    pool,
    positive_duration,
    show_list,
    show_optional,
    word,
    zap_level,
    zap_word,
)
from sidecar.settings.tls_names import MIN_VERSIONS

Connector = Literal["nixlv2", "offloading", "mooncake", "sglang", "shared-storage"]
EncoderConnector = Literal["ec-example", "ec-nixl"]
Stage = Literal["prefiller", "decoder", "encoder"]
ClientParams = Literal["validate", "strip", "reject", "pass"]
PrefillFailure = Literal["fail", "local"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "text"]

_ZAP_ENCODERS = {"json": "json", "console": "text"}
_ZAP_STACKTRACES = {level: level for level in ("info", "error", "panic")}
_ZAP_TIMES = {name: name for name in ("epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano")}
_LEAST_VERSION = next(iter(MIN_VERSIONS))


def _choice(literal: Any) -> Kind:
    return Kind("|".join(get_args(literal)), one_of(get_args(literal)))


def _optional(metavar: str, parse: Any) -> Kind:
    return Kind(metavar, or_none(parse), show_optional)


Boolean = Annotated[bool, Kind("", boolean, lambda value: str(value).lower(), bare="true")]
Verification = Annotated[Literal["auto", "on", "off"], Kind("auto|on|off", one_of(("auto", "on", "off")))]
OnOff = Annotated[Literal["on", "off"], Kind("on|off", on_off)]
Port = Annotated[int, Kind("PORT", number("a port (1 to 65535)", 1, 65535))]
PortOrZero = Annotated[int, Kind("PORT", number("a port (1 to 65535) or 0", 0, 65535))]
Count = Annotated[int, Kind("N", number("a whole number of at least 1", 1))]
CountOrZero = Annotated[int, Kind("N", number("a whole number of at least 0", 0))]
OptionalCount = Annotated[int | None, _optional("N", number("a whole number of at least 0", 0))]
Bytes = Annotated[int, Kind("BYTES", number("a whole number of bytes of at least 1", 1))]
WholeSeconds = Annotated[int, Kind("SECONDS", number("a whole number of seconds of at least 1", 1))]
Duration = Annotated[float, Kind("DURATION", positive_duration, format_duration)]
DurationOrZero = Annotated[float, Kind("DURATION", parse_duration, format_duration)]
Host = Annotated[str, Kind("HOST", host)]
OptionalHost = Annotated[str | None, _optional("HOST", host)]
Hosts = Annotated[tuple[str, ...], Kind("HOST,...", host, show_list, many=tuple)]
OptionalIP = Annotated[str | None, _optional("IP", ip)]
OptionalPath = Annotated[Path | None, _optional("PATH", Path)]
OptionalText = Annotated[str | None, _optional("YAML", str)]
OptionalPool = Annotated[str | None, _optional("[NAMESPACE/]NAME", pool)]
AllowedEndpoints = Annotated[
    tuple[str, ...], Kind("NETWORK|HOST:PORT,...", allowed_endpoint, show_list, many=tuple)
]
Word = Annotated[str, Kind("NAME", word)]
ServerNames = Annotated[tuple[str, ...], Kind("STAGE=NAME,...", stage_name, show_list, many=tuple)]
Stages = Annotated[frozenset[Stage], Kind("STAGE,...", one_of(get_args(Stage)), show_list, many=frozenset)]
MinVersion = Annotated[
    str, Kind("|".join(MIN_VERSIONS), lambda text: one_of(MIN_VERSIONS)(text or _LEAST_VERSION))
]
CipherSuites = Annotated[tuple[str, ...], Kind("SUITE,...", cipher_suite, show_list, many=tuple)]
ConnectorName = Annotated[Connector, _choice(Connector)]
OptionalEncoderConnector = Annotated[
    EncoderConnector | None,
    _optional("|".join(get_args(EncoderConnector)), one_of(get_args(EncoderConnector))),
]
ClientParamsMode = Annotated[ClientParams, _choice(ClientParams)]
PrefillFailurePolicy = Annotated[PrefillFailure, _choice(PrefillFailure)]
Level = Annotated[LogLevel, _choice(LogLevel)]
Format = Annotated[LogFormat, _choice(LogFormat)]
ZapLevel = Annotated[LogLevel | None, _optional("debug|info|error|panic|N", zap_level)]
ZapEncoder = Annotated[LogFormat | None, _optional("|".join(_ZAP_ENCODERS), zap_word(_ZAP_ENCODERS))]
ZapStacktrace = Annotated[str, Kind("|".join(_ZAP_STACKTRACES), zap_word(_ZAP_STACKTRACES))]
ZapTime = Annotated[str, Kind("|".join(_ZAP_TIMES), zap_word(_ZAP_TIMES))]
