"""The report as text, whole."""

from __future__ import annotations

from dataclasses import replace

from sidecar.calibrate.crossover import Crossover, Shape
from sidecar.calibrate.outcomes import Outcome
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.text import text
from sidecar.calibrate.verdicts import Verdict
from tests.calibrate.made import bad, legs_of, legs_of_profile, report

GLM = """\
OK: pulling beats computing from 8,698 tokens on; set minCachedTokenDelta to 10,672

source         http://a:8000  vLLM 0.32.0
consumer       http://b:8000  vLLM 0.32.0
pulls from     a:7777
model          tiny, blocks of 16 tokens, limit 131,072 tokens
run            5 rounds, seed 1, no background load

prefix  recompute    min - max  pull  min - max  delta    moved      legs
tokens         ms           ms    ms         ms     ms           rec+pull
 2,048       72.0  70.6 - 73.4   163  160 - 166  -91.0   131 KB       5+5
 4,096        116    114 - 118   181  178 - 185  -65.4   262 KB       5+5
 8,192        211    206 - 215   218  214 - 223  -7.73   524 KB       5+5
16,384        425    416 - 433   292  286 - 298   +133  1.05 MB       5+5

recompute(n)   29.99 + 19.99 k + 0.2499 k² ms     k = n / 1000 tokens
pull(n)        144.6 + 8.996 k ms
crossover      8,698 tokens (95 %: 8,501 to 8,890)
recommended    minCachedTokenDelta: 10,672  (8,890, from where it is certain, x headroom 1.2, in blocks of 16)
floor          145 ms ± 2.23, the fixed cost of a pull
KV             64 bytes per token
bandwidth      7.11 MB/s effective, by what each further token costs
session        the first pull took 200 ms, 37.0 ms more than a later one (its set-up; discarded)
verified       20 pulls moved about the whole prefix, 20 controls moved 0 bytes, by both engines' counters"""


def test_a_crossover_is_told_with_its_table_and_figures() -> None:
    assert text(report(legs_of_profile("glm"))) == GLM


def test_what_was_set_aside_and_what_is_likely_stand_at_the_end() -> None:
    strays = [bad(Kind.RECOMPUTE, Verdict.CONTAMINATED, "64 bytes were pulled without a directive")] * 11
    told = text(report([*legs_of_profile("glm"), *strays]))
    assert told.startswith("FAILED: too many legs were contaminated: others use the pair\n")
    assert "5+5 (11 aside)" in told
    assert "crossover" not in told
    assert told.endswith(
        "set aside      11 controls (contaminated): 64 bytes were pulled without a directive\n"
        "likely         - other clients use the pair: take both engines out of the pool while they are\n"
        "                 measured\n"
        "               - one of the URLs is a gateway whose endpoint picker names sources itself: give the\n"
        "                 pods' own URLs"
    )


def test_a_crossover_under_the_shortest_length_is_told_by_what_is_certain() -> None:
    told = report(legs_of_profile("glm"))
    found = Crossover(Shape.CROSSES, 2048, 16384, None, None, 3000.4)
    said = text(replace(told, crossover=found, recommended=3616))
    assert said.startswith("OK: pulling beats computing for certain from 3,000 tokens on; set minCached")
    assert "crossover      under 2,048 tokens (95 %: under 2,048 to 3,000)" in said


def test_background_load_is_told_with_what_became_of_it() -> None:
    told = report(legs_of_profile("glm"))
    busy = replace(told, setting=replace(told.setting, load=8, load_answered=1234, load_failed=1))
    assert "8 background requests at a time on each engine (1,234 answered, 1 failed)" in text(busy)


def test_nothing_is_said_to_be_verified_where_nothing_counts() -> None:
    assert "verified" not in text(report([bad(Kind.PULL, Verdict.NOTHING, "0 bytes came over P2P")]))


def test_no_crossover_says_which_way() -> None:
    pulls = text(report(legs_of_profile("gpt-oss-120b")))
    assert pulls.startswith(
        "OK, no crossover: pulling wins at every length from 2,048 tokens on;"
        " set minCachedTokenDelta to 2,048\n"
    )
    computing = text(report(legs_of(lambda n: 10 + n / 100, lambda n: 50 + n / 50)))
    assert computing.startswith(
        "no crossover: computing beats pulling up to 16,384 tokens; leave pulls off between these engines\n"
    )


def test_an_interrupted_run_says_how_far_it_came() -> None:
    legs = legs_of_profile("glm")[:20]
    told = report(legs, Outcome.INTERRUPTED)
    assert text(told).startswith(
        f"interrupted: 20 of 40 legs were run; so far they give minCachedTokenDelta {told.recommended:,}\n"
    )
    assert text(report([], Outcome.INTERRUPTED)).startswith(
        "interrupted: 0 of 40 legs were run; too few for a threshold\n"
    )


def test_a_run_that_could_not_go_on_says_why() -> None:
    told = text(report(legs_of_profile("glm"), Outcome.UNREACHABLE, "http://a:8000: gone"))
    sentence = "an engine does not answer, or not as engines do, or refuses the requests"
    assert told.startswith(f"FAILED: {sentence}\n")
    assert told.endswith("stopped        http://a:8000: gone")


def test_no_line_is_wider_than_a_terminal_in_a_report() -> None:
    assert max(map(len, GLM.splitlines())) <= 112
