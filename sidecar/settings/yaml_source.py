"""Reads settings from YAML: one mapping from flag names to scalars or lists of scalars.

Rule: scalars stay the text that the user wrote and are read like flags; YAML's own types would lose spellings
(an unquoted `on` is a boolean in YAML 1.1, `1:30` the number 90). A null is not set. What is not understood
is a problem.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.settings.model import BY_NAME
from sidecar.settings.reading import Text
from sidecar.settings.sources import Reading, Said, merge
from sidecar.settings.spelling import nearest

if TYPE_CHECKING:
    import yaml

_KEYS = {name: setting for name, setting in BY_NAME.items() if setting.facts.by_yaml}
_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"


def read_yaml(flags: Mapping[str, Said]) -> Reading:
    """Return what the YAML says that the two configuration flags among `flags` bring."""
    given = [
        said for name in ("configuration", "configuration_file") if (said := flags.get(name)) and said.text
    ]
    reading = Reading()
    if len(given) > 1:
        reading.problems.append(f"{given[0].origin}: cannot be given together with {given[1].origin}")
        return reading
    for said in given:
        try:
            root = _compose(_document(said))
            merge(_mentions(root, said.origin, reading), reading)
        except ValueError as problem:
            reading.problems.append(f"{said.origin}: {problem}")
    return reading


def _document(said: Said) -> str:
    """Return the YAML itself. Raises ValueError with the reason when the file cannot be read."""
    text = str(said.text)
    if said.setting.field == "configuration":
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except OSError as problem:
        raise ValueError(f"cannot read {text!r}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"cannot read {text!r}: it is not UTF-8") from None


def _compose(text: str) -> "list[tuple[yaml.Node, yaml.Node]]":
    """Return the pairs of the document's mapping; an empty document has none. Raises ValueError."""
    import yaml  # here, because most starts need none

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"is not YAML: {problem.problem}{where}") from None
    except yaml.YAMLError as problem:
        raise ValueError(f"is not YAML: {' '.join(str(problem).split())}") from None
    except RecursionError:
        raise ValueError("is not YAML that can be read: nested too deeply") from None
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag == _NULL):
        return []
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("is not a mapping from flag names to values")
    return list(root.value)


def _mentions(pairs: "list[tuple[yaml.Node, yaml.Node]]", origin: str, reading: Reading) -> list[Said]:
    mentions: list[Said] = []
    names: set[str] = set()
    for key, value in pairs:
        name = str(key.value)
        try:
            said = _mention(name, value, origin)
        except ValueError as problem:
            reading.problems.append(str(problem))
            continue
        if name in names:
            reading.problems.append(f"{said.origin}: is there twice")
        elif value.tag != _NULL:
            mentions.append(said)
        names.add(name)
    return mentions


def _mention(name: str, value: "yaml.Node", origin: str) -> Said:
    """Read one pair. Raises ValueError with the problem."""
    setting = _KEYS.get(name)
    if setting is None:
        raise ValueError(f"{origin}: unknown key {name!r}{nearest(name, _KEYS)}")
    text = _text(value, boolean=setting.kind.bare is not None)
    place = f"--{name} (in {origin})"
    if text is None:
        raise ValueError(f"{place}: is neither one value nor a list of values")
    return Said(setting, text, place, deprecated=name == setting.facts.formerly)


def _text(value: "yaml.Node", *, boolean: bool) -> Text | None:
    """Return the text of a scalar or the texts of a list; None for anything else."""
    import yaml

    match value:
        case yaml.ScalarNode(tag=tag, value=text) if boolean and tag == _BOOL:
            return str(yaml.SafeLoader.bool_values[text.lower()]).lower()
        case yaml.ScalarNode(value=text):
            return str(text)
        case yaml.SequenceNode(value=items) if all(isinstance(item, yaml.ScalarNode) for item in items):
            return tuple(str(item.value) for item in items)
        case _:
            return None
