"""Counts pulls by their source, where `--metrics-peers` asks for it: the table of peers.

Rule: acts on memory only, as `board` does. Names come from headers, so that their number is bounded: what
comes after the table is full is counted together, as `other`. A name is never forgotten, for a counter that
falls is read as a restart.
"""

from __future__ import annotations

import mmap
from dataclasses import replace

from sidecar.observers.families import OTHER, PREFIX, PULLED_TOKENS, PULLS
from sidecar.observers.kinds import Counter

# Sources by name in each process. Twice the engines of a large pool; 14 series each.
MAX_PEERS = 256
# A host name has at most 253 characters (RFC 1035 section 2.3.4), a port six with its colon.
_NAME_BYTES = 264
_CELL_BYTES = 8

PEER_PULLS = Counter(f"{PREFIX}source_pulls_total", "The same as pulls_total, by source.", PULLS.labels)
PEER_TOKENS = Counter(
    f"{PREFIX}source_pulled_tokens_total",
    "The same as pulled_tokens_total, by source.",
    PULLED_TOKENS.labels,
    first=PEER_PULLS.cells,
)
PEER_BYTES = replace(
    PEER_TOKENS,
    name=f"{PREFIX}source_pulled_bytes_total",
    help="The same as pulled_bytes_total, by source.",
    first=PEER_PULLS.cells + 1,
)
PEER_FAMILIES = (PEER_PULLS, PEER_TOKENS, PEER_BYTES)
"""What is shown for each peer, with its P2P endpoint as the label `source`; cells within the peer's own."""

_CELLS = sum(family.cells for family in PEER_FAMILIES)


class PeerRow:
    """The peers of one process, by name; the first is `other`."""

    def __init__(self, names: memoryview[int], cells: memoryview[float]) -> None:
        self._names = names
        self._cells = cells
        self._places: dict[str, int] | None = None

    def cells(self, source: str) -> memoryview[float]:
        """The numbers of a peer, or those of `other` when the table is full."""
        places = self._places = self._places or {name: place for place, name in enumerate(self.names())}
        place = places.get(source)
        if place is None:
            place = 0 if len(places) > MAX_PEERS else self._enter(source, len(places))
            if place:
                places[source] = place
        return self.at(place)

    def at(self, place: int) -> memoryview[float]:
        """The numbers at that place."""
        return self._cells[place * _CELLS : (place + 1) * _CELLS]

    def names(self) -> list[str]:
        """Of all peers, in the order of their places; a process that restarts finds its own here."""
        found = [OTHER]
        for place in range(1, MAX_PEERS + 1):
            text = bytes(self._names[place * _NAME_BYTES : (place + 1) * _NAME_BYTES])
            if not text[0]:
                break
            found.append(text.rstrip(b"\0").decode("ascii"))
        return found

    def _enter(self, source: str, place: int) -> int:
        """Where it is now; 0, `other`, for what is no name."""
        if not source.isascii() or not source.isprintable() or not 0 < len(source) <= _NAME_BYTES:
            return 0
        text = source.encode("ascii")
        at = place * _NAME_BYTES
        # The first byte last: whoever reads meanwhile sees no name, and never a part of one.
        self._names[at + 1 : at + len(text)] = text[1:]
        self._names[at] = text[0]
        return place


class PeerBoard:
    """`rows` rows of peers, shared with every process that is forked from here on."""

    def __init__(self, rows: int) -> None:
        places = MAX_PEERS + 1
        names = memoryview(mmap.mmap(-1, rows * places * _NAME_BYTES))
        cells = memoryview(mmap.mmap(-1, rows * places * _CELLS * _CELL_BYTES)).cast("d")
        self._rows = [
            PeerRow(
                names[row * places * _NAME_BYTES : (row + 1) * places * _NAME_BYTES],
                cells[row * places * _CELLS : (row + 1) * places * _CELLS],
            )
            for row in range(rows)
        ]

    def row(self, number: int) -> PeerRow:
        """The row of one process."""
        return self._rows[number]

    def totals(self) -> dict[str, list[float]]:
        """The numbers of each peer, summed over all processes."""
        found: dict[str, list[float]] = {}
        for row in self._rows:
            for place, name in enumerate(row.names()):
                before = found.get(name, [0.0] * _CELLS)
                found[name] = [sum(pair) for pair in zip(before, row.at(place), strict=True)]
        return found
