"""How long an engine takes: the measured curves of named models as functions of token counts.

Rule: pure arithmetic in milliseconds; k is thousands of tokens.

The two measured lines are whole times to the first token: `recompute` of a prompt of k thousand tokens and
`pull` of all of it. A request that does some of each is composed from them:

- it pays one fixed part, that of the pull if anything is pulled, else that of the recompute (the fixed parts
  hold the step that makes the first token, which happens once);
- each pulled token pays the pull's slope;
- computing tokens c to n pays the recompute curve's difference between them, linear and quadratic: the
  quadratic part is attention, in which late tokens look back at everything before them, cached or not;
- tokens found in the engine's own GPU or CPU cache cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """Coefficients of one model on one kind of GPU, in ms and ms per thousand tokens."""

    recompute_fixed_ms: float
    recompute_ms_per_k: float
    recompute_ms_per_k2: float
    pull_fixed_ms: float
    pull_ms_per_k: float
    inter_token_ms: float

    def recompute_ms(self, tokens: int) -> float:
        """Time to the first token of a prompt of which nothing is cached."""
        return self.recompute_fixed_ms + self._compute_ms(0, tokens)

    def pull_ms(self, tokens: int) -> float:
        """Time to the first token of a prompt that is pulled whole."""
        return self.pull_fixed_ms + self._transfer_ms(tokens)

    def transfer_stage_ms(self, pulled_tokens: int) -> float:
        """The part of the time to first token spent waiting for `pulled_tokens` from a peer."""
        return self.pull_fixed_ms + self._transfer_ms(pulled_tokens) if pulled_tokens else 0.0

    def compute_stage_ms(self, computed_from: int, prompt_tokens: int, *, pulled: bool) -> float:
        """The part spent computing from token `computed_from` on; `pulled`: after a transfer stage."""
        fixed_ms = 0.0 if pulled else self.recompute_fixed_ms
        return fixed_ms + self._compute_ms(computed_from, prompt_tokens)

    def _transfer_ms(self, tokens: int) -> float:
        return self.pull_ms_per_k * tokens / 1000

    def _compute_ms(self, start: int, end: int) -> float:
        k0, k1 = start / 1000, end / 1000
        return self.recompute_ms_per_k * (k1 - k0) + self.recompute_ms_per_k2 * (k1 * k1 - k0 * k0)


PROFILES = {
    # Measured on H200 with RDMA. Between tokens: assumed, not measured.
    "gpt-oss-120b": Profile(26.3, 24.6, 0.312, 25.5, 4.07, inter_token_ms=5.0),
    # Of GLM only the crossover is known: below 8.7 thousand tokens its pull costs more than recomputing. The
    # coefficients are chosen to cross there (both lines give 222.92 ms at k = 8.7).
    "glm": Profile(30.0, 20.0, 0.25, 144.6225, 9.0, inter_token_ms=12.0),
    # No latency at all, for tests; the prices of failures (timeouts) stay.
    "instant": Profile(0.0, 0.0, 0.0, 0.0, 0.0, inter_token_ms=0.0),
}
