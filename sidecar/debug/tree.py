"""Draws an explanation as a tree for a terminal.

Rule: pure; everything that is in the explanation is drawn, in its order, of characters that can be printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidecar.debug.told import Leg, Told
from sidecar.remote.texts import printable


@dataclass(frozen=True, slots=True)
class Node:
    """A line and what hangs on it."""

    text: str
    below: Sequence[Node] = ()


def tree(told: Told) -> list[str]:
    """The lines of an explanation (`debug.explain`); values of bodies are texts here."""
    request = told["request"]
    api = f" ({request['api']})" if request["api"] else ""
    title = f"{request['method']} {request['path']}{api}, connector {told['connector']}: {told['answer']}"
    return [printable(title), *_drawn(list(_parts(told)), "")]


def _parts(told: Told) -> Iterator[Node]:
    if refusal := told.get("refusal"):
        yield Node(f"answered {refusal['status']} {refusal['type']}")
    yield Node("why", [Node(reason) for reason in told["why"]])
    for number, leg in enumerate(told["legs"], start=1):
        yield _leg(number, leg)
    if notes := told.get("notes"):
        yield Node("to know", [Node(note) for note in notes])


def _leg(number: int, leg: Leg) -> Node:
    when = f"only if {leg['when']}: " if leg["when"] else ""
    below = [Node(f"{when}{leg['how']}")]
    if pull := leg["pull"]:
        below.append(Node(f"its engine pulls from {pull['source']}"))
    if headers := leg["headers"]:
        below.append(Node("headers", [Node(header) for header in headers]))
    if leg["body"] is not None:
        fields = [Node(f"{key}: {text}") for key, text in leg["body"].items()]
        below.append(Node(f"body, {leg['body_bytes']:,} bytes", fields))
    return Node(f"{number} {leg['role']}  {leg['method']} {leg['url']}", below)


def _drawn(nodes: Sequence[Node], indent: str) -> Iterator[str]:
    for node in nodes:
        last = node is nodes[-1]
        yield f"{indent}{'└─' if last else '├─'} {printable(node.text)}"
        yield from _drawn(node.below, indent + ("   " if last else "│  "))
