"""Writes the settings down for people: the text of --help and the README's table of flags.

Rule: everything is generated from the settings; nothing about a single flag stands here.
"""

import textwrap
from collections.abc import Iterator

from sidecar.settings.flag import Setting, settings_of
from sidecar.settings.model import GROUPS

# Lines beyond this are hard to read however wide the terminal is; below the least, wrapping no longer helps.
_WIDEST_COLUMNS = 100
_NARROWEST_COLUMNS = 60
_HELP_COLUMN = 34

_ABOUT = (
    "Flags are written --flag=value or --flag value, booleans --flag or --flag=false, lists a,b or by "
    "repetition, durations as in Go (200ms, 1m30s). A flag wins over its environment variable, that over "
    "YAML, that over the default."
)


def help_text(columns: int) -> str:
    """Return the flags by group, wrapped to `columns` within reason."""
    width = max(_NARROWEST_COLUMNS, min(columns, _WIDEST_COLUMNS))
    parts = [textwrap.fill(_ABOUT, width, break_on_hyphens=False)]
    for group in GROUPS:
        flags = "\n".join(line for setting in settings_of(group) for line in _help_lines(setting, width))
        parts.append(f"{group.title}:\n{flags}")
    return "\n\n".join(parts)


def flags_table() -> str:
    """Return a Markdown table per group: flag, default, environment variable, meaning."""
    return "\n\n".join("\n".join(_table_lines(group.title, settings_of(group))) for group in GROUPS) + "\n"


def _help_lines(setting: Setting, width: int) -> Iterator[str]:
    spelling = f"  {_spelling(setting)}"
    notes = "; ".join(_notes(setting))
    meaning = f"{setting.facts.help} [{notes}]" if notes else setting.facts.help
    if len(spelling) + 2 > _HELP_COLUMN:
        yield spelling
        spelling = ""
    indent = " " * _HELP_COLUMN
    lines = textwrap.wrap(meaning, width - _HELP_COLUMN, break_on_hyphens=False)
    yield spelling.ljust(_HELP_COLUMN) + lines[0]
    yield from (indent + line for line in lines[1:])


def _spelling(setting: Setting) -> str:
    metavar = setting.kind.metavar
    return f"{setting.name}={metavar}" if metavar else setting.name


def _notes(setting: Setting) -> Iterator[str]:
    default = setting.kind.show(setting.default)
    if default:
        yield f"default: {default}"
    if setting.facts.by_flag and setting.facts.env:
        yield f"env: {setting.facts.env}"
    if setting.facts.formerly:
        yield f"formerly --{setting.facts.formerly}"
    if setting.standing():
        yield setting.standing()


def _table_lines(title: str, settings: tuple[Setting, ...]) -> Iterator[str]:
    yield f"**{title}**\n"
    yield "| flag | default | variable | meaning |"
    yield "|---|---|---|---|"
    for setting in settings:
        facts = setting.facts
        flag = f"`{_spelling(setting)}`" if facts.by_flag else ""
        default = setting.kind.show(setting.default)
        notes = [facts.help]
        if facts.formerly:
            notes.append(f"Formerly `--{facts.formerly}`.")
        if setting.standing():
            notes.append(f"({setting.standing()})")
        cells = (flag, default and f"`{default}`", f"`{facts.env}`" if facts.env else "", " ".join(notes))
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
