"""Routing sidecar for vLLM pods: peer-to-peer KV pulls and prefill/decode handoff."""

__version__ = "0.1.0"
