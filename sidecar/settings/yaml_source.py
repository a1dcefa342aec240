"""Reads settings from YAML: one mapping from flag names to scalars or lists of scalars.

Rule: scalars stay the text that the user wrote and are read like flags; YAML's own types would lose spellings
(an unquoted `on` is a boolean in YAML 1.1, `1:30` the number 90). A null is not set. What is not understood
is a problem.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.files import is_special
from sidecar.settings.model import BY_NAME
from sidecar.settings.reading import Text
from sidecar.settings.sources import Reading, Said, merge
from sidecar.settings.spelling import nearest

if TYPE_CHECKING:
    import yaml

_KEYS = {name: setting for name, setting in BY_NAME.items() if setting.facts.by_yaml}
_YAML = "tag:yaml.org,2002:"
_NULL = f"{_YAML}null"
_BOOL = f"{_YAML}bool"
# How YAML 1.1 spells null (yaml.org/type/null.html): with its tag, any other text is that text.
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
# The tags of a text and of a list: those that PyYAML gives them, or that say no more. With another (!!binary,
# one that an application made up) the text would not be the value yet.
_TEXTS = frozenset(
    f"{_YAML}{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
_LISTS = frozenset({f"{_YAML}seq"})

# What is no file and can be read all the same: what a shell has opened for us, `<(...)` or a pipe, and
# nothing.
_AT_HAND = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin", "/dev/null")


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
        if not _can_be_used(said):
            continue  # it is refused as such when the settings are made
        try:
            root = _compose(_document(said))
            merge(_mentions(root, said.origin, reading), reading)
        except ValueError as problem:
            reading.problems.append(f"{said.origin}: {problem}")
    return reading


def _can_be_used(said: Said) -> bool:
    try:
        said.setting.kind.read(said.text)
    except ValueError:
        return False
    return True


def _document(said: Said) -> str:
    """Return the YAML itself. Raises ValueError with the reason when the file cannot be read."""
    text = str(said.text)
    if said.setting.field == "configuration":
        return text
    file = Path(text)
    waits = is_special(file) and not text.startswith(_AT_HAND)
    if waits and not file.is_dir():  # of which the system itself says so
        raise ValueError(f"cannot read {text!r}: it is not a regular file")
    try:
        return file.read_text(encoding="utf-8")
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
    except (ValueError, OverflowError):  # an escape such as "\\UFFFFFFFF", a version of thousands of digits
        raise ValueError("is not YAML that can be read: a number in it is out of range") from None
    if root is None or _is_null(root):
        return []
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("is not a mapping from flag names to values")
    return list(root.value)


def _mentions(pairs: "list[tuple[yaml.Node, yaml.Node]]", origin: str, reading: Reading) -> list[Said]:
    mentions: list[Said] = []
    names: set[str] = set()
    for key, value in pairs:
        try:
            name = _name(key, origin)
            said = _mention(name, value, origin)
        except ValueError as problem:
            reading.problems.append(str(problem))
            continue
        if name in names:
            reading.problems.append(f"{said.origin}: is there twice")
        elif not _is_null(value):
            mentions.append(said)
        names.add(name)
    return mentions


def _name(key: "yaml.Node", origin: str) -> str:
    """Return what a key says. Raises ValueError with the problem."""
    import yaml

    where = f", in line {key.start_mark.line + 1}, column {key.start_mark.column + 1}"
    if not isinstance(key, yaml.ScalarNode):
        what = "list" if isinstance(key, yaml.SequenceNode) else "mapping"
        raise ValueError(f"{origin}: a key must be a text, not a {what}{where}")
    _know_tag(key, f"{origin}: a key", where)
    return str(key.value)


def _mention(name: str, value: "yaml.Node", origin: str) -> Said:
    """Read one pair. Raises ValueError with the problem."""
    setting = _KEYS.get(name)
    if setting is None:
        raise ValueError(f"{origin}: unknown key {name!r}{nearest(name, _KEYS)}")
    text = _text(value, boolean=setting.kind.bare is not None)
    place = f"--{name} (in {origin})"
    if text is None:
        raise ValueError(f"{place}: is neither one value nor a list of values")
    for node in (value, *(() if isinstance(value.value, str) else value.value)):
        _know_tag(node, f"{place}:")
    return Said(setting, text, place, deprecated=name == setting.facts.formerly)


def _text(value: "yaml.Node", *, boolean: bool) -> Text | None:
    """Return the text of a scalar or the texts of a list; None for anything else."""
    import yaml

    match value:
        case yaml.ScalarNode(tag=tag, value=text) if boolean and tag == _BOOL:
            known = yaml.SafeLoader.bool_values.get(text.lower())  # None: `!!bool maybe`
            return str(text) if known is None else str(known).lower()
        case yaml.ScalarNode(value=text):
            return str(text)
        case yaml.SequenceNode(value=items) if all(isinstance(item, yaml.ScalarNode) for item in items):
            return tuple(str(item.value) for item in items)
        case _:
            return None


def _is_null(node: "yaml.Node") -> bool:
    return node.tag == _NULL and isinstance(node.value, str) and node.value in _NULLS


def _know_tag(node: "yaml.Node", what: str, where: str = "") -> None:
    """Raises ValueError for a tag that a text or a list cannot have here."""
    tag = str(node.tag)
    if tag not in (_TEXTS if isinstance(node.value, str) else _LISTS):
        spelled = f"!!{tag.removeprefix(_YAML)}" if tag.startswith(_YAML) else tag
        raise ValueError(f"{what} has the tag {spelled!r}, which means nothing here{where}")
