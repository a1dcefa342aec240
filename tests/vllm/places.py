"""Where everything of these tests lives on disk.

Rule: nothing is written outside `HOME`; two variables move it, `VLLM_VENV` and `VLLM_TEST_HOME`.
"""

from __future__ import annotations

import os
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")

HOME = Path(os.environ.get("VLLM_TEST_HOME") or _CACHE / "sidecar-vllm")
VENV = Path(os.environ.get("VLLM_VENV") or HOME / "venv")
MODEL = HOME / "tiny"
LOGS = HOME / "logs"
"""What engines and sidecars of the last run said, and the figures that the tests noted."""

PYTHON = VENV / "bin" / "python"
VLLM = VENV / "bin" / "vllm"

INSIDE = Path(__file__).parent / "inside"
"""Files that run in vLLM's environment: the model's maker, the offloading spec, the SDK calls."""
