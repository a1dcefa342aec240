"""Reads the command line's flags in the spellings of Go's pflag.

Rule: `--flag=value` or `--flag value`; a boolean is bare or `=true|false`, never followed by its value; one
dash only for the shorthand `-v` (pflag gives one to Go flags of one letter). What cannot be read is a
problem, not an exit.
"""

import re
from collections import deque
from collections.abc import Sequence

from sidecar.settings.flag import Setting
from sidecar.settings.model import BY_NAME
from sidecar.settings.sources import Reading, Said, merge
from sidecar.settings.spelling import nearest

_SHORTHAND = re.compile(r"-v(?:=(?P<after>.*)|(?P<joined>[0-9]+))?", re.ASCII | re.DOTALL)
_BOOLEANS = frozenset({"true", "false"})


def read_argv(argv: Sequence[str]) -> Reading:
    """Return what `argv`, without the program and the command, says."""
    reading = Reading()
    words = deque(argv)
    mentions: list[Said] = []
    while words:
        word = words.popleft()
        if word == "--":
            continue
        if not word.startswith("-") or word == "-":
            reading.problems.append(f"unexpected argument {word!r}")
            continue
        try:
            mentions.append(_mention(word, words))
        except ValueError as problem:
            reading.problems.append(str(problem))
    return merge(mentions, reading)


def _mention(word: str, words: deque[str]) -> Said:
    """Read the flag `word`, and its value off `words` if it takes one. Raises ValueError with the problem."""
    name, text = _split(word)
    setting = BY_NAME.get(name)
    if setting is None:
        if text is None and words and not words[0].startswith("-"):
            words.popleft()
        given = word.partition("=")[0]
        raise ValueError(f"{given if given.isprintable() else repr(given)}: {_wrong(name)}")
    if text is None:
        text = _bare(name, setting, words) if setting.kind.bare is not None else _next(name, words)
    return Said(setting, text, f"--{name}", deprecated=name == setting.facts.formerly)


def _split(word: str) -> tuple[str, str | None]:
    """Return the flag's name, any wrong dashes still on it, and the text after "=" if there is one."""
    short = _SHORTHAND.fullmatch(word)
    if short is not None:
        return "v", short["joined"] if short["after"] is None else short["after"]
    name, equals, text = word.removeprefix("--").partition("=")
    return name, text if equals else None


def _wrong(name: str) -> str:
    known = name.lstrip("-")
    if known in BY_NAME and known != name:
        return f"flags take two dashes, write --{known}"
    return f"unknown flag{nearest(known.lower().replace('_', '-'), BY_NAME, prefix='--')}"


def _bare(name: str, setting: Setting, words: deque[str]) -> str:
    # pflag would take the word for an argument and the flag for true: "--secure-serving false" would serve
    # TLS.
    if words and words[0] in _BOOLEANS:
        raise ValueError(f"--{name}: a boolean takes its value after =, write --{name}={words.popleft()}")
    return str(setting.kind.bare)


def _next(name: str, words: deque[str]) -> str:
    if not words:
        raise ValueError(f"--{name}: needs a value")
    return words.popleft()
