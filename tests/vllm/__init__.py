"""The sidecar in front of real vLLM engines on CPU: `python -m tests.vllm` (README, "On real vLLM")."""
