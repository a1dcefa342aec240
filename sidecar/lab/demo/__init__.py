"""`sidecar lab demo`: two pods on loopback, and a prefix that is pulled from one by the other.

Rule: nothing is asserted that was not measured: what moved is read from the engines' own counters.
"""

from sidecar.lab.demo.story import main

__all__ = ["main"]
