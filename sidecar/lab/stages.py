"""Where a waiting request is with its KV: vLLM's gauges of requests that wait, by reason and by fetch stage.

Rule: a request is in one stage at a time, and in none when the context ends, however it ends.
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal

from sidecar.lab.metrics import Metrics

StageName = Literal["waiting_to_start", "in_progress", "completed_waiting"]

_STAGES = "vllm:num_requests_kv_fetch_by_stage"


class FetchStage:
    """The stage of one request's KV fetch; none until the first `move`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._current: StageName | None = None

    def move(self, stage: StageName | None) -> None:
        """Leaves the current stage for another."""
        if self._current is not None:
            self._metrics.add(_STAGES, -1, stage=self._current)
        if stage is not None:
            self._metrics.add(_STAGES, 1, stage=stage)
        self._current = stage

    def __enter__(self) -> FetchStage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.move(None)
