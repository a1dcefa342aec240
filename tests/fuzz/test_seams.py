"""The seams hold for the corpus, for mutations of it, and for texts that are nearly right."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.seams import SEAMS, check_bodies, check_values
from tests.fuzz.seeds import SEEDS
from tests.json_texts import VALUES, json_objects

EVERY = pytest.mark.parametrize("seam", SEAMS)


@EVERY
def test_the_corpus_holds(seam: str) -> None:
    assert SEEDS[seam]
    for seed in SEEDS[seam]:
        SEAMS[seam](seed)


def mutated(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """A seed with a piece of it replaced: by any bytes, by a piece of another seed, or by nothing."""
    pieces = st.one_of(st.binary(max_size=8), st.sampled_from(seeds).map(lambda seed: seed[-40:]))

    @st.composite
    def strategy(draw: st.DrawFn) -> bytes:
        seed = draw(st.sampled_from(seeds))
        begin = draw(st.integers(0, len(seed)))
        end = draw(st.integers(begin, min(len(seed), begin + 8)))
        return seed[:begin] + draw(pieces) + seed[end:]

    return strategy()


@EVERY
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_mutations_of_the_corpus_hold(seam: str, data: st.DataObject) -> None:
    SEAMS[seam](data.draw(mutated(SEEDS[seam])))


@settings(deadline=None)
@given(json_objects())
def test_any_json_object_holds(made: object) -> None:
    check_bodies(made.text)  # type: ignore[attr-defined]


@settings(deadline=None)
@given(st.lists(VALUES, max_size=4))
def test_any_json_array_holds(values: list[str]) -> None:
    check_values(("[" + ",".join(values) + "]").encode())
