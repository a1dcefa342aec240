"""The picture: what it shows, and that it is one well-formed file for light and dark pages."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from sidecar.calibrate import picture
from sidecar.calibrate.axes import around, round_ticks, spaced
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.report import Report
from sidecar.calibrate.verdicts import Verdict
from tests.calibrate.made import LENGTHS, bad, legs_of, legs_of_profile, report

SVG = "{http://www.w3.org/2000/svg}"


def drawn(told: Report) -> ElementTree.Element:
    return ElementTree.fromstring(picture.svg(told))


def texts(root: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def test_it_shows_curves_bands_points_crossover_and_threshold() -> None:
    told = report(legs_of_profile("glm"))
    root = drawn(told)
    assert told.crossover is not None
    assert told.crossover.tokens is not None
    said = texts(root)
    assert said[0] == f"Pulling beats computing from {told.crossover.tokens:,.0f} tokens on"
    assert f"crossover {told.crossover.tokens:,.0f}" in said
    assert ("minCachedTokenDelta" in said, f"{told.recommended:,}" in said) == (True, True)
    assert {f"{length:,}" for length in LENGTHS} <= set(said)
    assert {"recompute", "pull", "prefix, tokens (log scale)", "time to first token, ms (log scale)"} <= set(
        said
    )
    assert [one.get("class") for one in root.iter(f"{SVG}polyline")] == ["recompute", "pull"]
    assert [one.get("class") for one in root.iter(f"{SVG}polygon")] == ["recompute-fill", "pull-fill"]


def test_the_curves_go_through_what_was_measured() -> None:
    root = drawn(report(legs_of_profile("glm")))
    pulls = [one for one in root.iter(f"{SVG}circle") if one.get("class") == "pull-fill halo"]
    [line] = [one for one in root.iter(f"{SVG}polyline") if one.get("class") == "pull"]
    curve = [tuple(map(float, point.split(","))) for point in (line.get("points") or "").split()]
    assert len(pulls) == len(LENGTHS)
    for point in pulls:
        x, y = float(point.get("cx") or 0), float(point.get("cy") or 0)
        assert min(abs(x - cx) + abs(y - cy) for cx, cy in curve) < 6


@pytest.mark.parametrize("name", ["glm", "gpt-oss-120b"])
def test_nothing_is_drawn_outside(name: str) -> None:
    for one in drawn(report(legs_of_profile(name))).iter():
        for key, most in (("x", 880), ("x1", 880), ("cx", 880), ("y", 540), ("y1", 540), ("cy", 540)):
            assert 0 <= float(one.get(key) or 0) <= most


def test_it_needs_nothing_else_and_has_colours_for_dark_pages() -> None:
    text = picture.svg(report(legs_of_profile("glm")))
    assert "prefers-color-scheme:dark" in text
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]


def test_names_are_escaped() -> None:
    told = report(legs_of_profile("glm"))
    named = replace(told, setting=replace(told.setting, model="<b>&"))
    assert "&lt;b&gt;&amp;" in picture.svg(named)


def test_a_path_that_never_pays_has_no_threshold() -> None:
    said = texts(drawn(report(legs_of(lambda n: 10 + n / 100, lambda n: 50 + n / 50))))
    assert said[0] == "Computing beats pulling up to 16,384 tokens"
    assert "minCachedTokenDelta" not in said


def test_where_nothing_counts_it_says_so() -> None:
    assert "nothing was measured" in texts(drawn(report([bad(Kind.PULL, Verdict.NOTHING, "x")])))


def test_ticks_are_round_numbers_and_enough_of_them() -> None:
    assert list(round_ticks(around((70, 1600), 0, 500, room=0.0))) == [100, 200, 500, 1000]
    assert len(round_ticks(around((100, 110), 0, 500, room=0.0))) >= 2


def test_labels_that_would_touch_are_left_out() -> None:
    axis = around((2048, 49152), 0, 400, room=0.0)
    assert spaced(axis, [2048, 2100, 32768, 49152], 60) == [2100, 49152]
