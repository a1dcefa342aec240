"""The life of one request inside an engine: load what KV there is, wait for a seat, compute the rest,
generate.

Rule: whatever way the request ends, by its last token, an error or a client that left, its seat, blocks and
gauges go back when the context ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType

from sidecar.lab.clock import for_ever
from sidecar.lab.core import Core
from sidecar.lab.faults import EngineDied
from sidecar.lab.footprint import Footprint
from sidecar.lab.jobs import Job, Step
from sidecar.lab.loading import External
from sidecar.lab.speech import Speech
from sidecar.lab.stages import FetchStage
from sidecar.lab.tokens import END_OF_SEQUENCE
from sidecar.lab.weights import SILENT_TOKENS


class Run:
    """An async context around `prefill`, then `steps`; counts of prompt tokens are final after `prefill`."""

    def __init__(self, core: Core, job: Job) -> None:
        self.job = job
        self.cached_tokens = 0
        self.created_tokens = 0
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.kv_transfer_params: dict[str, object] | None = None
        self._core = core
        self._footprint = Footprint(core.config, core.weights, job)
        self._admitted = False
        self._started_s = 0.0
        self._last_token_s = 0.0

    async def __aenter__(self) -> Run:
        self._started_s = asyncio.get_running_loop().time()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.finish_reason is None:
            self._record_end("error" if isinstance(error, Exception) else "abort")
        if self._admitted:
            self._core.metrics.add("vllm:num_requests_running", -1)
            self._footprint.leave(self._core.admission, self._core.pool)

    async def prefill(self) -> None:
        """Everything up to the first token; raises ApiError when KV cannot be loaded, EngineDied."""
        if self.job.kv.fatal:
            self._core.die(self.job.kv.fatal)
            raise EngineDied(self.job.kv.fatal)
        core, waiting, by_reason = (
            self._core,
            "vllm:num_requests_waiting",
            "vllm:num_requests_waiting_by_reason",
        )
        with core.metrics.level(waiting), FetchStage(core.metrics) as stage:
            with core.metrics.level(by_reason, reason="deferred"):
                await self._hang_if_told()
                external = await core.loader.load(self.job, self._footprint.hashes, stage)
            stage.move("completed_waiting" if external.kv else None)
            with core.metrics.level(by_reason, reason="capacity"):
                await self._footprint.enter(core.admission, self.job.sampling.most_tokens)
        self._admitted = True
        core.metrics.add("vllm:num_requests_running", 1)
        core.metrics.observe("vllm:request_queue_time_seconds", self._age_s())
        await self._compute_rest(external)

    async def steps(self) -> AsyncGenerator[Step, None]:
        """The generated tokens, at the model's pace."""
        core, speech = self._core, Speech(self.job.sampling.stop)
        while True:
            token_id = self._next_token()
            speech.hear(token_id)
            finish_reason, stop_reason = self._ending(token_id, speech)
            if finish_reason:
                self._finish(finish_reason)
            yield Step(token_id, speech.say(last=finish_reason is not None), finish_reason, stop_reason)
            if finish_reason:
                return
            await core.clock.sleep(core.profile.inter_token_ms / 1000)
            self._footprint.sequence.compute((token_id,))
            self._footprint.grow(core.pool, core.offloading)

    def _age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._started_s

    async def _hang_if_told(self) -> None:
        """vLLM waits for a NIXL read that nobody starts; aborting the request then ends the engine."""
        if self.job.kv.hangs:
            try:
                await for_ever()
            finally:
                self._core.die("abort of a request whose KV transfer never started")

    async def _compute_rest(self, external: External) -> None:
        core, prompt_tokens = self._core, len(self.job.prompt)
        began_s = core.clock.now_s
        device_tokens, computed = await self._footprint.fill(core.pool, external)
        # Of a prompt that NIXL brought whole, the last token is computed once more.
        computed_from = prompt_tokens - max(1, computed)
        pulled = external.from_peer > 0
        stage_ms = core.profile.compute_stage_ms(computed_from, prompt_tokens, pulled=pulled)
        await core.clock.sleep(stage_ms / 1000, since_s=began_s)
        self._count_prompt(device_tokens, prompt_tokens - computed)
        self._footprint.grow(core.pool, core.offloading)
        if self.job.kv.decoder_id and core.offloading:
            core.offloading.hold(self.job.kv.decoder_id, self._footprint.chunk_hashes())

    def _count_prompt(self, device_tokens: int, cached_tokens: int) -> None:
        add, prompt_tokens = self._core.metrics.add, len(self.job.prompt)
        add("vllm:prompt_tokens_total", prompt_tokens)
        add("vllm:prompt_tokens_cached_total", cached_tokens)
        add("vllm:prompt_tokens_by_source_total", prompt_tokens - cached_tokens, source="local_compute")
        add("vllm:prompt_tokens_by_source_total", device_tokens, source="local_cache_hit")
        add(
            "vllm:prompt_tokens_by_source_total", cached_tokens - device_tokens, source="external_kv_transfer"
        )
        block_size = self._core.config.block_size
        self.created_tokens = max(0, prompt_tokens // block_size * block_size - cached_tokens)
        self.cached_tokens = min(cached_tokens, prompt_tokens - 1)
        remote = self.job.kv.remote
        if remote and remote.prefill_cached_tokens is not None:
            self.cached_tokens = remote.prefill_cached_tokens

    def _next_token(self) -> int:
        sampling, metrics, made = self.job.sampling, self._core.metrics, len(self.token_ids)
        may_end = not sampling.ignore_eos and made >= max(sampling.min_tokens, SILENT_TOKENS)
        token_id = self._footprint.sequence.next_token(self.job.choice, may_end=may_end)
        if made + 1 == sampling.most_tokens < sampling.max_tokens:
            token_id = END_OF_SEQUENCE
        self.token_ids.append(token_id)
        metrics.add("vllm:generation_tokens_total")
        now_s = self._age_s()
        if made:
            metrics.observe("vllm:inter_token_latency_seconds", now_s - self._last_token_s)
        else:
            metrics.observe("vllm:time_to_first_token_seconds", now_s)
        self._last_token_s = now_s
        return token_id

    def _ending(self, token_id: int, speech: Speech) -> tuple[str | None, str | int | None]:
        """Finish reason and stop reason, if this token is the last one."""
        sampling = self.job.sampling
        if token_id == END_OF_SEQUENCE and not sampling.ignore_eos:
            return "stop", None
        if token_id in sampling.stop_token_ids:
            return "stop", token_id
        if speech.stopped_by is not None:
            return "stop", speech.stopped_by
        return ("length" if len(self.token_ids) >= sampling.max_tokens else None), None

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason
        self._record_end(reason)
        if self._core.nixl and reason == "length":  # vLLM hands over only what ended by its limit
            self._hand_over()

    def _record_end(self, reason: str) -> None:
        metrics = self._core.metrics
        metrics.add("vllm:request_success_total", 1, finished_reason=reason)
        metrics.observe("vllm:request_prompt_tokens", len(self.job.prompt))
        metrics.observe("vllm:request_generation_tokens", len(self.token_ids))
        metrics.observe("vllm:e2e_request_latency_seconds", self._age_s())

    def _hand_over(self) -> None:
        """Keeps the KV for the reader of the answer's `kv_transfer_params`, which are in vLLM's order."""
        nixl, directive = self._core.nixl, self.job.kv
        assert nixl is not None
        if not (directive.hands_over or directive.remote):
            return
        tokens = len(self._footprint.sequence.tokens)
        params = nixl.hand_over(self.job.request_id, self._footprint.whole_blocks(), tokens)
        if directive.hands_over:
            roles: dict[str, object] = {"do_remote_prefill": True, "do_remote_decode": False}
            params["remote_prefill_cached_tokens"] = self.cached_tokens
        else:  # a decoder offers what it has back to its prefiller (seen on vLLM 0.32)
            roles = {"do_remote_prefill": False, "do_remote_decode": True}
            params["remote_blocks_expiry_time"] = nixl.lease_end_s
        self.kv_transfer_params = roles | params
