"""Signals that would end the process leave what was found, and one that is ignored changes nothing."""

from __future__ import annotations

import asyncio
import signal
from time import monotonic

import pytest

from sidecar.doctor import cli
from sidecar.doctor.cli import main
from sidecar.doctor.diagnosis import Diagnosis, Measured, diagnosed
from tests.doctor.made import told

TWO = "--peers=http://127.0.0.1:1,http://127.0.0.1:2"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("rounds", "code"), [(0, 130), (1, 3)])
def test_other_signals_end_it_as_ctrl_c_does(
    number: signal.Signals, rounds: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def found(*_: object) -> Diagnosis:
        if len(asked) == rounds:
            signal.raise_signal(number)
            await asyncio.sleep(5)  # cancelled at once
        asked.append(1)
        return diagnosed([told("A", unready="loading"), told("B")], Measured((), 0, 257))

    monkeypatch.setattr(cli, "diagnose", found)
    before = signal.signal(number, signal.default_int_handler)
    try:
        began_s = monotonic()
        assert main([TWO, "--watch", "--interval=1ms"]) == code
        assert monotonic() - began_s < 4
        assert len(asked) == rounds
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object) -> Diagnosis:
        signal.raise_signal(signal.SIGHUP)
        await asyncio.sleep(0.01)
        return diagnosed([told("A"), told("B")], Measured((), 0, 257))

    monkeypatch.setattr(cli, "diagnose", found)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main([TWO]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
