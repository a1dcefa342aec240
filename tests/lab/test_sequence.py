"""Weights, KV and chained block hashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.lab.sequence import Sequence, block_hashes, root_hash
from sidecar.lab.tokens import END_OF_SEQUENCE
from sidecar.lab.weights import Weights

TOKENS = list(range(100, 200))
ROOT = root_hash("0")


def computed(tokens: list[int], weights: Weights | None = None) -> Sequence:
    sequence = Sequence(weights or Weights("w", 16))
    sequence.compute(tokens)
    return sequence


def say(sequence: Sequence, count: int) -> list[int]:
    said = []
    for _ in range(count):
        said.append(sequence.next_token(0, may_end=False))
        sequence.compute(said[-1:])
    return said


@given(st.integers(0, 100))
def test_kv_computed_in_parts_is_the_same_kv(cut: int) -> None:
    parts = computed(TOKENS[:cut])
    parts.compute(TOKENS[cut:])
    assert parts.kv == computed(TOKENS).kv


@pytest.mark.parametrize("size", [8, 63, 64, 65, 200])
def test_every_token_has_its_bytes(size: int) -> None:
    sequence = computed(TOKENS, Weights("w", size))
    assert len(sequence.kv) == 100 * size
    assert len({sequence.kv_of(i, i + 1) for i in range(100)}) == 100


def test_kv_depends_on_what_came_before() -> None:
    assert computed([1, 2, 3]).kv_of(2, 3) != computed([9, 2, 3]).kv_of(2, 3)


def test_loaded_kv_continues_as_computed_kv_does() -> None:
    whole = computed(TOKENS)
    loaded = Sequence(Weights("w", 16))
    loaded.load(TOKENS[:96], whole.kv_of(0, 96))
    loaded.compute(TOKENS[96:])
    assert loaded.kv == whole.kv
    assert say(loaded, 10) == say(whole, 10)


@pytest.mark.parametrize("wrong_byte", [0, 500, 95 * 16])
def test_one_wrong_byte_of_kv_changes_what_is_said(wrong_byte: int) -> None:
    whole = computed(TOKENS)
    kv = bytearray(whole.kv)
    kv[wrong_byte] ^= 1
    loaded = Sequence(Weights("w", 16))
    loaded.load(TOKENS, bytes(kv))
    assert say(loaded, 4) != say(whole, 4)


def test_other_weights_say_something_else() -> None:
    assert say(computed(TOKENS), 4) != say(computed(TOKENS, Weights("v", 16)), 4)


def test_the_end_of_sequence_comes_only_where_it_may() -> None:
    weights = Weights("w", 16)
    digests = [i.to_bytes(4, "big") for i in range(2000)]
    ends = [weights.next_token(digest, 0, may_end=True) == END_OF_SEQUENCE for digest in digests]
    assert 10 < sum(ends) < 70
    assert all(weights.next_token(digest, 0, may_end=False) != END_OF_SEQUENCE for digest in digests)


def test_hashes_are_of_full_blocks_only() -> None:
    assert len(block_hashes(ROOT, TOKENS, 32)) == 3


def test_a_block_hash_covers_everything_up_to_the_block_and_nothing_after() -> None:
    changed_late = [*TOKENS[:64], 1, *TOKENS[65:]]
    changed_early = [1, *TOKENS[1:]]
    base = block_hashes(ROOT, TOKENS, 32)
    assert block_hashes(ROOT, changed_late, 32)[:2] == base[:2]
    assert block_hashes(ROOT, changed_late, 32)[2] != base[2]
    assert not set(block_hashes(ROOT, changed_early, 32)) & set(base)


def test_hashing_goes_on_from_the_last_block() -> None:
    whole = block_hashes(ROOT, TOKENS[:96], 32)
    first = block_hashes(ROOT, TOKENS[:64], 32)
    assert [*first, *block_hashes(first[-1], TOKENS[64:96], 32)] == whole


@pytest.mark.parametrize("root", [root_hash("1"), root_hash("0", salt="tenant")])
def test_another_hash_seed_or_salt_makes_other_hashes(root: bytes) -> None:
    assert not set(block_hashes(root, TOKENS, 32)) & set(block_hashes(ROOT, TOKENS, 32))
