"""Which legs are run."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sidecar.calibrate.plan import Kind, NoLength, check_enough, ordered, usable


@pytest.mark.parametrize(
    ("lengths", "block_tokens", "limit", "used"),
    [
        ((2048, 4096), 16, 131072, (2048, 4096)),
        ((4096, 1000, 2048), 64, None, (960, 2048, 4096)),
        # What is over the limit is cut to it, with room for the last token and the answer.
        ((2048, 32768, 49152), 16, 8192, (2048, 8176)),
        ((2048, 8190), 16, 8192, (2048, 8176)),
        # What is shorter than a block is none.
        ((10, 2048, 4096), 16, None, (2048, 4096)),
    ],
)
def test_lengths_are_whole_blocks_under_the_limit(
    lengths: tuple[int, ...], block_tokens: int, limit: int | None, used: tuple[int, ...]
) -> None:
    assert usable(lengths, block_tokens, limit) == used


def test_where_no_block_fits_nothing_can_be_run() -> None:
    with pytest.raises(NoLength, match="--lengths: none has a whole block of 64 tokens"):
        usable((2048,), 64, 65)


@pytest.mark.parametrize(
    ("lengths", "limit_tokens", "told"),
    [
        (
            (10, 2048),
            None,
            "only 2,048 tokens are left in whole blocks of 16; no curve goes through less than 2",
        ),
        (
            (8192, 16384),
            4096,
            "only 4,080 tokens are left in whole blocks of 16, cut to the model's limit of 4,096; no curve"
            " goes through less than 2",
        ),
    ],
)
def test_one_length_that_is_left_is_no_run(
    lengths: tuple[int, ...], limit_tokens: int | None, told: str
) -> None:
    with pytest.raises(NoLength, match=f"^--lengths: {told}$"):
        usable(lengths, 16, limit_tokens)


def test_two_lengths_that_are_left_of_three_need_a_second_round() -> None:
    with pytest.raises(NoLength, match=r"^--rounds: 1 of 2 lengths gives 2 points"):
        check_enough(usable((2048, 8192, 16384), 16, 8192), 1)
    check_enough(usable((2048, 8192, 16384), 16, 8192), 2)


def test_each_round_has_both_kinds_at_every_length_once() -> None:
    legs = ordered((16, 32), 3, 2, random.Random(7).randrange)
    for number in range(3):
        mine = [(leg.prefix_tokens, leg.kind) for leg in legs if leg.round == number]
        assert Counter(mine) == Counter((length, kind) for length in (16, 32) for kind in Kind)
    assert [leg.number for leg in legs] == list(range(12))
    assert [leg.rank for leg in legs] == [0, 1] * 6


def test_the_order_is_random_and_a_seed_gives_it_again() -> None:
    def kinds(seed: int) -> list[Kind]:
        return [leg.kind for leg in ordered((16, 32, 48), 2, 1, random.Random(seed).randrange)]

    assert kinds(1) == kinds(1)
    assert len({tuple(kinds(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("limit_tokens", [1, 2, 17])
def test_a_limit_without_room_for_a_block_leaves_no_length(limit_tokens: int) -> None:
    with pytest.raises(NoLength):
        usable((512,), 16, limit_tokens)
