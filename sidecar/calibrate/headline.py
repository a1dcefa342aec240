"""The first line of the report as text: the verdict in one sentence.

Rule: pure.
"""

from __future__ import annotations

from sidecar.calibrate.outcomes import MEANINGS, Outcome, unmoved
from sidecar.calibrate.report import Report
from sidecar.calibrate.verdicts import Verdict
from sidecar.calibrate.words import several


def headline(report: Report) -> str:
    """How the run ended, and what to do about it."""
    sentence = _VERDICTS.get(report.ended, lambda _: MEANINGS[report.ended])(report)
    return f"{_MARKS.get(report.ended, 'FAILED')}: {sentence}"


_MARKS = {
    Outcome.CROSSES: "OK",
    Outcome.PULLS_WIN: "OK, no crossover",
    Outcome.COMPUTING_WINS: "no crossover",
    Outcome.UNCLEAR: "unclear",
    Outcome.INTERRUPTED: "interrupted",
}


def _crosses(report: Report) -> str:
    found = report.crossover
    assert found is not None
    assert found.high is not None
    since = f"from {found.tokens:,.0f}" if found.tokens else f"for certain from {found.high:,.0f}"
    return f"pulling beats computing {since} tokens on; set minCachedTokenDelta to {report.recommended:,}"


def _pulls_win(report: Report) -> str:
    found = report.crossover
    assert found is not None
    return (
        f"pulling wins at every length from {found.shortest:,} tokens on;"
        f" set minCachedTokenDelta to {report.recommended:,}"
    )


def _computing_wins(report: Report) -> str:
    found = report.crossover
    assert found is not None
    return f"computing beats pulling up to {found.longest:,} tokens; leave pulls off between these engines"


def _no_pull(report: Report) -> str:
    some, of = unmoved(report.measured)
    if some == of:
        return "no pull ever moved its prefix"
    ranks = {one.leg.rank for one in report.measured if one.verdict is Verdict.MOVED}
    if report.setting.ranks > 1 and len(ranks) < report.setting.ranks:
        return "no pull of a data-parallel rank ever moved its prefix"
    return (
        f"{some:,} of {several(of, 'pull')} did not move about the whole prefix: no verdict on what was left"
    )


def _interrupted(report: Report) -> str:
    done = len(report.measured)
    so_far = f"{done} of {report.setting.legs} legs were run"
    if report.recommended is None:
        return f"{so_far}; too few for a threshold"
    return f"{so_far}; so far they give minCachedTokenDelta {report.recommended:,}"


_VERDICTS = {
    Outcome.CROSSES: _crosses,
    Outcome.PULLS_WIN: _pulls_win,
    Outcome.COMPUTING_WINS: _computing_wins,
    Outcome.NO_PULL: _no_pull,
    Outcome.INTERRUPTED: _interrupted,
}
