"""An embedded engine for demonstrations and tests: a simulated vLLM 0.32 with real KV transfers between
engines.

Rule: the serving path never imports this package, and this package imports nothing of the serving path.
"""

from sidecar.lab.config import EngineConfig
from sidecar.lab.engine import Engine

__all__ = ["Engine", "EngineConfig"]
