"""Reads one setting's value from text, and shows it as text again.

Rule: a refusal is a ValueError that holds the reason alone; who said the text (flag, variable, YAML key) is
added by the caller. Flags, environment and YAML all hand over text, so a value has the same spellings
everywhere.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from sidecar.allowlist import entry
from sidecar.settings.durations import parse_duration
from sidecar.settings.spelling import nearest
from sidecar.settings.tls_names import CIPHER_SUITES, TLS13_SUITES

Text: TypeAlias = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of value.

    `metavar` stands for the value in --help ("" for a boolean). `parse` reads one text and raises ValueError
    with the reason. `many` collects the values of a list (None: a single value). `bare` is what the flag
    alone means.
    """

    metavar: str
    parse: Callable[[str], object]
    show: Callable[[Any], str] = str
    many: Callable[[Iterable[Any]], object] | None = None
    bare: str | None = None

    def read(self, given: Text) -> object:
        """Return the value of `given`. Raises ValueError with the reason."""
        if self.many is None:
            if isinstance(given, tuple):
                raise ValueError("takes one value, not a list")
            return self.parse(_utf8(given).strip())
        lines = map(_utf8, (given,) if isinstance(given, str) else given)
        words = (word.strip() for line in lines for word in line.split(","))
        return self.many(self.parse(word) for word in words if word)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))


def _utf8(text: str) -> str:
    """Return the text if the system and name services can be given it. Raises ValueError with the reason.

    Python keeps bytes of arguments and variables that are not UTF-8 as lone surrogates (PEP 383), YAML has
    escapes for them and for NUL.
    """
    if "\0" in text:
        raise ValueError(f"{text!r} has a NUL in it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not UTF-8") from None
    return text


# Go strconv.ParseBool, which reads the peer's boolean flags.
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
# 18 digits fit Go's int, 64 bits with a sign.
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_POOL = re.compile(r"[^/\s]+(/[^/\s]+)?")
# controller-runtime pkg/log/zap/flags.go; nothing is logged above error here, so panic means error.
_ZAP_LEVELS = {"debug": "debug", "info": "info", "error": "error", "panic": "error"}


def number(noun: str, low: int, high: int | None = None) -> Callable[[str], int]:
    """Read a decimal integer in [low, high]; `noun` says in the refusal what was wanted."""

    def parse(text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text) else None
        if value is None or value < low or (high is not None and value > high):
            raise ValueError(f"{text!r} is not {noun}")
        return value

    return parse


def one_of(words: Iterable[str]) -> Callable[[str], str]:
    """Read one of `words`, spelled exactly so."""
    known = tuple(words)

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"{text!r} is not one of {', '.join(known)}")
        return text

    return parse


def zap_word(words: Mapping[str, str]) -> Callable[[str], str]:
    """Read a key of `words` in any case, as controller-runtime does for its zap flags; return its value."""
    parse = one_of(words)
    return lambda text: words[parse(text.lower())]


def or_none(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Read "" as None: manifests written for the peer switch an optional flag off with an empty value."""
    return lambda text: parse(text) if text else None


def boolean(text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is not a boolean (true or false)")
    return text in _TRUE


def on_off(text: str) -> str:
    # YAML 1.1 tools (Helm's toYaml among them) turn an unquoted on or off into true or false on the way here.
    if text not in {"on", "off"} | _TRUE | _FALSE:
        raise ValueError(f"{text!r} is not one of on, off")
    return "on" if text == "on" or text in _TRUE else "off"


def positive_duration(text: str) -> float:
    """Return seconds, more than 0."""
    duration_s = parse_duration(text)
    if duration_s <= 0:
        raise ValueError(f"{text!r} is not longer than 0")
    return duration_s


def zap_level(text: str) -> str:
    if _INTEGER.fullmatch(text) and int(text) > 0:
        return "debug"
    if text.lower() not in _ZAP_LEVELS:
        raise ValueError(f"{text!r} is not debug, info, error, panic or a whole number above 0")
    return _ZAP_LEVELS[text.lower()]


def cipher_suite(text: str) -> str:
    known = (*CIPHER_SUITES, *sorted(TLS13_SUITES))
    if text not in known:
        raise ValueError(f"{text!r} is not a secure suite of Go's crypto/tls{nearest(text.upper(), known)}")
    return text


def pool(text: str) -> str:
    if not _POOL.fullmatch(text):
        raise ValueError(f"{text!r} is not of the form namespace/name or name")
    return text


def allowed_endpoint(text: str) -> str:
    entry(text)  # the texts are kept: they are what the start line and refusals show
    return text


def word(text: str) -> str:
    if not text or any(letter.isspace() for letter in text):
        raise ValueError(f"{text!r} is not one word")
    return text


def show_optional(value: object) -> str:
    return "" if value is None else str(value)


def show_list(values: Iterable[str]) -> str:
    return ",".join(values if isinstance(values, tuple) else sorted(values))
