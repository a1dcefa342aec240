"""What an embedded engine tells operators about itself: its configuration, and the time on its clock.

Rule: the shapes are vLLM's (0.32, entrypoints/serve/dev/server_info); only what the lab has.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar.lab.config import EngineConfig

Json = dict[str, object]


def server_info(config: EngineConfig, config_format: str) -> Json:
    """The answer of /server_info, with the configuration as an object (`json`) or as one text."""
    told = _vllm_config(config)
    return {
        "vllm_config": told if config_format == "json" else str(told),
        "vllm_env": {"VLLM_SERVER_DEV_MODE": True},
        "system_env": {},
    }


def _vllm_config(config: EngineConfig) -> Json:
    return {
        "model_config": {
            "model": config.model,
            "revision": config.model_seed,
            "dtype": config.dtype,
            "max_model_len": config.max_model_len,
        },
        "cache_config": {"block_size": config.block_size, "cache_dtype": "auto"},
        "parallel_config": {
            "tensor_parallel_size": config.tensor_parallel_size,
            "pipeline_parallel_size": 1,
            "data_parallel_size": 1,
        },
        "kv_transfer_config": _kv_transfer_config(config),
        "kv_events_config": None,
    }


def _kv_transfer_config(config: EngineConfig) -> Json | None:
    tier: Json = {"type": "p2p", "host": config.peer_host, "port": config.p2p_port}
    offloading = _connector(
        "OffloadingConnector",
        {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": config.cpu_blocks * config.block_bytes,
            "block_size": config.chunk_tokens,
            "offload_prompt_only": config.offload_prompt_only,
            "secondary_tiers": [tier],
        },
    )
    nixl = _connector("NixlConnector", {})
    return {
        "offloading": offloading,
        "nixl": nixl,
        "multi": _connector("MultiConnector", {"connectors": [nixl, offloading]}),
    }.get(config.kv_connector)


def _connector(name: str, extra: Json) -> Json:
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}


class Dated:
    """Adds the `date` header, as uvicorn does under vLLM; `ahead_s`: seconds that its clock is ahead."""

    def __init__(self, app: ASGIApp, *, ahead_s: float) -> None:
        self._app, self._ahead_s = app, ahead_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI side."""

        async def dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                now = datetime.fromtimestamp(datetime.now(UTC).timestamp() + self._ahead_s, UTC)
                date = format_datetime(now, usegmt=True).encode()
                message["headers"] = [(b"date", date), *message.get("headers", ())]
            await send(message)

        await self._app(scope, receive, dated)
