"""Runs a test again that failed while the machine stood still, and says so.

Many tests bound a wait. On a machine that is shared the whole process may stand still for longer than any of
them: such a run says nothing of the code. A test that fails without that fails, and so does one that fails
three times.
"""

from __future__ import annotations

import threading
from time import monotonic, sleep

import pytest
from _pytest.runner import runtestprotocol

_ATTEMPTS = 3
_LOOK_EVERY_S = 0.01
# The shortest waits that tests bound are as long. A thread that asks for its turn has it within 5 ms
# (sys.getswitchinterval), unless one call holds the interpreter for longer.
STILL_S = 0.05


class Watch(threading.Thread):
    """Notes the longest time for which its thread had no turn."""

    def __init__(self) -> None:
        super().__init__(name="watch", daemon=True)
        self.ended = threading.Event()
        self.begin()

    def begin(self) -> None:
        """Forget what was."""
        self._longest_s = 0.0
        self._last_s = monotonic()

    def still_s(self) -> float:
        """The longest time since `begin`, that which goes on included."""
        return max(self._longest_s, monotonic() - self._last_s - _LOOK_EVERY_S)

    def run(self) -> None:
        """Look, until `ended` is set."""
        while not self.ended.is_set():
            sleep(_LOOK_EVERY_S)
            self._longest_s = self.still_s()
            self._last_s = monotonic()


_WATCH = pytest.StashKey[Watch]()
_REPEATED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_WATCH] = Watch()
    config.stash[_REPEATED] = []
    config.stash[_WATCH].start()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_WATCH].ended.set()
    config.stash[_WATCH].join()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Of the last attempt."""
    watch, reports = item.config.stash[_WATCH], list[pytest.TestReport]()
    for attempt in range(1, _ATTEMPTS + 1):
        watch.begin()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        still_s = watch.still_s()
        failed = any(report.failed for report in reports)
        if not failed or still_s < STILL_S or attempt == _ATTEMPTS:
            break
        item.config.stash[_REPEATED].append(f"{item.nodeid} (still for {still_s:.2f} s)")
    return reports


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if repeated := config.stash[_REPEATED]:
        terminalreporter.section("run again: failed while the machine stood still")
        for told in repeated:
            terminalreporter.line(told)
