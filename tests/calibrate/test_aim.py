"""Whom the consumer pulls from, and what each kind of consumer can be told."""

from __future__ import annotations

import pytest

from sidecar.calibrate.aim import Aim, BadAim, aimed
from sidecar.endpoint import Endpoint
from sidecar.remote import Place, by_body, by_header

SOURCE = Place.parse("http://10.0.0.1:8000")
OTHER = Endpoint("10.0.0.9", 9)


def test_an_engine_is_told_the_p2p_endpoint() -> None:
    aim = aimed(SOURCE, through_sidecar=False, p2p=None, endpoint=None)
    assert aim == Aim(Endpoint("10.0.0.1", 7777), by_header=False)
    assert aim.directive(2)("id") == by_body(Endpoint("10.0.0.1", 7779), "id")
    assert aimed(SOURCE, through_sidecar=False, p2p=OTHER, endpoint=None).target == OTHER


def test_a_sidecar_is_told_the_source_as_the_picker_names_it() -> None:
    aim = aimed(SOURCE, through_sidecar=True, p2p=None, endpoint=None)
    assert aim == Aim(Endpoint("10.0.0.1", 8000), by_header=True)
    assert aim.directive(1)("id") == by_header(Endpoint("10.0.0.1", 8001))
    assert aimed(SOURCE, through_sidecar=True, p2p=None, endpoint=OTHER).target == OTHER


def test_a_flag_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(BadAim, match=r"--source-p2p: the consumer is a sidecar"):
        aimed(SOURCE, through_sidecar=True, p2p=OTHER, endpoint=None)
    with pytest.raises(BadAim, match=r"--source-endpoint: the consumer is an engine"):
        aimed(SOURCE, through_sidecar=False, p2p=None, endpoint=OTHER)
