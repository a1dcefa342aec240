"""Runs every test here on both event loops: uvloop serves, asyncio is what its interface is written for."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops, by the name that shows in a test's id."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
