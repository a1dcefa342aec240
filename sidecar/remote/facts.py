"""What an engine says of itself: model, limit, version, the configuration of its cache.

Rule: pure; engines' versions differ, so what is absent or of another kind is None or empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}


@dataclass(frozen=True, slots=True)
class Facts:
    """One engine. through_sidecar: our sidecar answers in front of it. cache: the labels of
    `vllm:cache_config_info` (vLLM's CacheConfig as texts). root: where the model was loaded from.
    """

    model: str | None = None
    root: str | None = None
    max_model_tokens: int | None = None
    version: str | None = None
    through_sidecar: bool = False
    cache: Mapping[str, str] = field(default_factory=dict)

    @property
    def block_tokens(self) -> int | None:
        """Tokens per block, where the engine tells."""
        return self.number("block_size")

    def number(self, label: str) -> int | None:
        """A label of the cache's configuration that is a positive whole number."""
        text = self.cache.get(label, "")
        return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else None


def of_models(content: Any) -> tuple[str | None, str | None, int | None]:
    """Name, root and limit of the first model in an answer of `/v1/models`.

    Adapters stand behind their base model (vLLM 0.32, entrypoints/openai/models/serving.py).
    """
    cards = content.get("data") if isinstance(content, dict) else None
    card = cards[0] if isinstance(cards, list) and cards and isinstance(cards[0], dict) else {}
    limit = card.get("max_model_len")
    return (
        _text(card.get("id")),
        _text(card.get("root")),
        limit if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 else None,
    )


def of_version(content: Any) -> str | None:
    """The version in an answer of `/version`."""
    return _text(content.get("version")) if isinstance(content, dict) else None


def cache_labels(metrics: bytes) -> dict[str, str]:
    """The labels of the first `vllm:cache_config_info` in a text of `/metrics`; ranks have them alike."""
    found = _CACHE_CONFIG.search(metrics.decode("utf-8", "replace"))
    pairs = _LABEL.findall(found[1]) if found else []
    return {name: _ESCAPED.sub(lambda one: _UNESCAPED.get(one[1], one[1]), text) for name, text in pairs}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
