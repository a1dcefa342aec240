"""What an engine says of itself: model, limit, version, the configuration of its cache.

Rule: pure; engines' versions differ, so what is absent or of another kind is None or empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.remote.texts import shown

QUESTION_S = 15.0
"""Questions about itself an engine answers at once, unless a step of its model holds it up: so much of
the time that a request may take."""

_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}
# The longest names are paths of models, of some 100 characters; a longer one, or one that cannot be printed,
# is none. What is only shown is cut.
_MOST_NAME_CHARACTERS = 256
_MOST_SHOWN_CHARACTERS = 120
# vLLM's CacheConfig has some forty fields.
_MOST_LABELS = 200
# No context is as long; a larger number is no limit.
_MOST_TOKENS = 1_000_000_000
# A petabyte of KV; a larger number is none.
_MOST_NUMBER = 10**15


@dataclass(frozen=True, slots=True)
class Facts:
    """One engine. through_sidecar: our sidecar answers in front of it. cache: the labels of
    `vllm:cache_config_info` (vLLM's CacheConfig as texts). root: where the model was loaded from. unlisted:
    why there is no list of models, where there is none. All texts can be printed.
    """

    model: str | None = None
    root: str | None = None
    max_model_tokens: int | None = None
    version: str | None = None
    through_sidecar: bool = False
    cache: Mapping[str, str] = field(default_factory=dict)
    unlisted: str | None = None

    @property
    def block_tokens(self) -> int | None:
        """Tokens per block, where the engine tells."""
        return self.number("block_size")

    def number(self, label: str) -> int | None:
        """A label of the cache's configuration that is a positive whole number."""
        text = self.cache.get(label, "")
        return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) <= _MOST_NUMBER else None


def of_models(content: Any) -> tuple[str | None, str | None, int | None]:
    """Name, root and limit of the first model in an answer of `/v1/models`.

    Adapters stand behind their base model (vLLM 0.32, entrypoints/openai/models/serving.py).
    """
    cards = content.get("data") if isinstance(content, dict) else None
    card = cards[0] if isinstance(cards, list) and cards and isinstance(cards[0], dict) else {}
    limit = card.get("max_model_len")
    return (
        _name(card.get("id")),
        _text(card.get("root")),
        limit
        if isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit <= _MOST_TOKENS
        else None,
    )


def of_version(content: Any) -> str | None:
    """The version in an answer of `/version`."""
    return _text(content.get("version")) if isinstance(content, dict) else None


def cache_labels(metrics: bytes) -> dict[str, str]:
    """The labels of the first `vllm:cache_config_info` in a text of `/metrics`; ranks have them alike."""
    found = _CACHE_CONFIG.search(metrics.decode("utf-8", "replace"))
    pairs = _LABEL.findall(found[1])[:_MOST_LABELS] if found else []
    return {shown(name, _MOST_SHOWN_CHARACTERS): _unescaped(text) for name, text in pairs}


def _unescaped(text: str) -> str:
    return shown(_ESCAPED.sub(lambda one: _UNESCAPED.get(one[1], one[1]), text), _MOST_SHOWN_CHARACTERS)


def _name(value: Any) -> str | None:
    """A model's name, which requests repeat as it is: an escaped one would be another's."""
    usable = isinstance(value, str) and value.isprintable() and 0 < len(value) <= _MOST_NAME_CHARACTERS
    return value if usable else None


def _text(value: Any) -> str | None:
    return shown(value, _MOST_SHOWN_CHARACTERS) if isinstance(value, str) and value else None
