"""The shape of the source: what decides is pure, and nothing grows beyond the agreed sizes."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sidecar"
MODULES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))
}

DECIDERS = [
    "sidecar/allowlist.py",
    "sidecar/alone.py",
    "sidecar/api.py",
    "sidecar/body.py",
    "sidecar/calibrate/agreement.py",
    "sidecar/calibrate/aim.py",
    "sidecar/calibrate/asking.py",
    "sidecar/calibrate/axes.py",
    "sidecar/calibrate/cost.py",
    "sidecar/calibrate/crossover.py",
    "sidecar/calibrate/curves.py",
    "sidecar/calibrate/fitting.py",
    "sidecar/calibrate/headline.py",
    "sidecar/calibrate/machine.py",
    "sidecar/calibrate/outcomes.py",
    "sidecar/calibrate/picture.py",
    "sidecar/calibrate/plan.py",
    "sidecar/calibrate/report.py",
    "sidecar/calibrate/summary.py",
    "sidecar/calibrate/text.py",
    "sidecar/calibrate/verdicts.py",
    "sidecar/calibrate/words.py",
    "sidecar/call.py",
    "sidecar/counters.py",
    "sidecar/engine_counters.py",
    "sidecar/chunks.py",
    "sidecar/debug/elision.py",
    "sidecar/debug/playing.py",
    "sidecar/debug/reasons.py",
    "sidecar/debug/told.py",
    "sidecar/debug/tree.py",
    "sidecar/doctor/addresses.py",
    "sidecar/doctor/agreement.py",
    "sidecar/doctor/between.py",
    "sidecar/doctor/checks.py",
    "sidecar/doctor/counted.py",
    "sidecar/doctor/diagnosis.py",
    "sidecar/doctor/document.py",
    "sidecar/doctor/findings.py",
    "sidecar/doctor/fronts.py",
    "sidecar/doctor/gates.py",
    "sidecar/doctor/keeping.py",
    "sidecar/doctor/paint.py",
    "sidecar/doctor/peers.py",
    "sidecar/doctor/pulls.py",
    "sidecar/doctor/reading.py",
    "sidecar/doctor/report.py",
    "sidecar/doctor/said.py",
    "sidecar/doctor/told.py",
    "sidecar/encoders.py",
    "sidecar/endpoint.py",
    "sidecar/errors.py",
    "sidecar/evidence.py",
    "sidecar/giving.py",
    "sidecar/headers.py",
    "sidecar/heard.py",
    "sidecar/kvhosts.py",
    "sidecar/kvparams.py",
    "sidecar/kvtypes.py",
    "sidecar/masking.py",
    "sidecar/pieces.py",
    "sidecar/plan.py",
    "sidecar/planning.py",
    "sidecar/pool/objects.py",
    "sidecar/problem.py",
    "sidecar/remote/errors.py",
    "sidecar/remote/facts.py",
    "sidecar/remote/place.py",
    "sidecar/remote/prompts.py",
    "sidecar/remote/texts.py",
    "sidecar/responses.py",
    "sidecar/reuse.py",
    "sidecar/routing.py",
    "sidecar/scan.py",
    "sidecar/sizes.py",
    "sidecar/sse.py",
    "sidecar/trace_context.py",
    "sidecar/turns.py",
    "sidecar/usage.py",
    *[name for name in MODULES if name.startswith("sidecar/connectors/")],
]
# All that a module that decides may import: no I/O, clock, randomness, environment, nor anything that acts.
PURE = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "html",
    "ipaddress",
    "json",
    "json.decoder",
    "json.scanner",
    "math",
    "msgspec",
    "numpy",
    "posixpath",
    "re",
    "statistics",
    "textwrap",
    "typing",
    "urllib.parse",
}
# Builtins that reach outside, or around the imports that this test can see.
IMPURE_BUILTINS = {"__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "open", "print"}

MAX_MODULE_LINES = 250
MAX_FUNCTION_LINES = 40
MAX_PARAMETERS = 5


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported anywhere in the tree, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (
                f"{node.module}.{alias.name}" if node.module == "sidecar" else node.module
                for alias in node.names
            )


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_decider(module: str) -> bool:
    """Whether `sidecar.x` names a module that decides."""
    path = module.replace(".", "/")
    return f"{path}.py" in DECIDERS or f"{path}/__init__.py" in DECIDERS


@pytest.mark.parametrize("name", DECIDERS)
def test_what_decides_imports_nothing_that_acts(name: str) -> None:
    imported = set(imports_of(MODULES[name]))
    assert {module for module in imported - PURE if not is_decider(module)} == set()


@pytest.mark.parametrize("name", DECIDERS)
def test_what_decides_reaches_nothing_through_builtins(name: str) -> None:
    used = {node.id for node in ast.walk(MODULES[name]) if isinstance(node, ast.Name)}
    assert used & IMPURE_BUILTINS == set()


@pytest.mark.parametrize("name", DECIDERS)
def test_what_decides_waits_for_nothing(name: str) -> None:
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert [node for node in ast.walk(MODULES[name]) if isinstance(node, kinds)] == []


@pytest.mark.parametrize("name", DECIDERS)
def test_what_decides_keeps_no_state_between_requests(name: str) -> None:
    assert [node for node in ast.walk(MODULES[name]) if isinstance(node, ast.Global)] == []


def test_a_connector_knows_no_other_connector() -> None:
    for name in DECIDERS:
        if name.startswith("sidecar/connectors/") and not name.endswith("__init__.py"):
            known = {one for one in imports_of(MODULES[name]) if one.startswith("sidecar.connectors")}
            assert known <= {"sidecar.connectors.options"}, name


def test_import_linter_watches_the_same_modules() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    watched = {module.replace(".", "/") for module in contract["source_modules"]}
    mine = {name.removesuffix(".py") for name in DECIDERS if not name.startswith("sidecar/connectors/")}
    assert watched == mine | {"sidecar/connectors"}


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_its_job_and_stays_small(name: str) -> None:
    text = ast.get_docstring(MODULES[name])
    assert text or not MODULES[name].body
    assert (ROOT / name).read_text().count("\n") <= MAX_MODULE_LINES


@pytest.mark.parametrize("name", MODULES)
def test_every_function_stays_small_and_takes_few_parameters(name: str) -> None:
    for function in functions_of(MODULES[name]):
        where = f"{name}:{function.lineno} {function.name}"
        assert function.end_lineno is not None
        assert function.end_lineno - function.lineno < MAX_FUNCTION_LINES, where
        given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        assert len([one for one in given if one.arg not in ("self", "cls")]) <= MAX_PARAMETERS, where


@pytest.mark.parametrize("name", MODULES)
def test_no_function_takes_a_flag_by_position(name: str) -> None:
    for function in functions_of(MODULES[name]):
        for one in [*function.args.posonlyargs, *function.args.args]:
            annotation = one.annotation
            assert not (isinstance(annotation, ast.Name) and annotation.id == "bool"), (
                f"{name} {function.name}"
            )
