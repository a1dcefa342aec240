"""Flags are read in every spelling of Go's pflag, and in no other."""

import itertools

import pytest

from sidecar.settings.argv import read_argv
from sidecar.settings.model import BY_NAME, Settings
from sidecar.settings.sources import Source
from tests.settings.spellings import FORMERLY, SPELLINGS, YAML_FLAGS

EVERY_FLAG = SPELLINGS | YAML_FLAGS | {old: SPELLINGS[new] for old, new in FORMERLY.items()}
BOOLEANS = sorted(flag for flag in EVERY_FLAG if BY_NAME[flag].kind.bare is not None)


def value_of(flag: str, *argv: str) -> object:
    reading = read_argv(argv)
    assert reading.problems == []
    settings: object = Settings(Source(Settings, reading.said))
    return getattr(settings, BY_NAME[flag].field)


def problems_of(*argv: str) -> list[str]:
    return read_argv(argv).problems


def test_the_table_of_spellings_has_every_flag() -> None:
    assert EVERY_FLAG.keys() == BY_NAME.keys()


@pytest.mark.parametrize("flag", EVERY_FLAG)
def test_the_value_follows_an_equals_sign(flag: str) -> None:
    text, value = EVERY_FLAG[flag]
    assert value_of(flag, f"--{flag}={text}") == value


@pytest.mark.parametrize("flag", sorted(EVERY_FLAG.keys() - set(BOOLEANS)))
def test_the_value_is_the_next_word(flag: str) -> None:
    text, value = EVERY_FLAG[flag]
    assert value_of(flag, f"--{flag}", text) == value


@pytest.mark.parametrize("flag", BOOLEANS)
def test_a_boolean_flag_alone_is_true(flag: str) -> None:
    assert value_of(flag, f"--{flag}") is True


@pytest.mark.parametrize("text", ["true", "TRUE", "True", "t", "T", "1"])
def test_every_true_of_go_is_true(text: str) -> None:
    assert value_of("tracing", f"--tracing={text}") is True


@pytest.mark.parametrize("text", ["false", "FALSE", "False", "f", "F", "0"])
def test_every_false_of_go_is_false(text: str) -> None:
    assert value_of("secure-serving", f"--secure-serving={text}") is False


@pytest.mark.parametrize(("text", "value"), [("on", "on"), ("off", "off"), ("true", "on"), ("false", "off")])
def test_on_and_off_survive_a_yaml_1_1_tool(text: str, value: str) -> None:
    assert value_of("source-guard", f"--source-guard={text}") == value


def test_a_boolean_that_is_followed_by_its_value_is_refused() -> None:
    assert problems_of("--secure-proxy", "false", "--port=8085") == [
        "--secure-proxy: a boolean takes its value after =, write --secure-proxy=false"
    ]


def test_the_last_of_a_repeated_scalar_wins() -> None:
    assert value_of("port", "--port=1", "--port", "2") == 2


def test_lists_grow_by_comma_and_by_repetition() -> None:
    stages = frozenset({"prefiller", "decoder", "encoder"})
    argv = ["--enable-tls=prefiller, decoder", "--enable-tls", "encoder", "--enable-tls="]
    assert value_of("enable-tls", *argv) == stages


def test_an_empty_value_switches_an_optional_flag_off() -> None:
    for flag in ("cert-path", "ec-connector", "inference-pool", "metrics-cert-dir", "pod-ip", "zap-encoder"):
        assert value_of(flag, f"--{flag}=") is None
    assert value_of("tls-min-version", "--tls-min-version=") == "VersionTLS12"
    assert value_of("tls-cipher-suites", "--tls-cipher-suites=") == ()


def test_a_value_may_look_like_a_flag_or_hold_an_equals_sign() -> None:
    assert value_of("configuration", "--configuration", "--x") == "--x"
    assert value_of("configuration", "--configuration=a=b") == "a=b"


@pytest.mark.parametrize("argv", [["-v=5"], ["-v5"], ["-v", "5"], ["--v=5"], ["--v", "5"]])
def test_verbosity_has_the_shorthand_that_pflag_gives_it(argv: list[str]) -> None:
    assert value_of("v", *argv) == 5


def test_two_dashes_alone_end_nothing() -> None:
    assert value_of("port", "--port=1", "--") == 1


@pytest.mark.parametrize(
    ("argv", "problems"),
    [
        (["--prot=8000"], ["--prot: unknown flag, did you mean --port?"]),
        (["--prot", "8000"], ["--prot: unknown flag, did you mean --port?"]),
        (["--prot", "--port=1"], ["--prot: unknown flag, did you mean --port?"]),
        (["--enable_tls=decoder"], ["--enable_tls: unknown flag, did you mean --enable-tls?"]),
        (["--KV-Connector=nixlv2"], ["--KV-Connector: unknown flag, did you mean --kv-connector?"]),
        (["--xyzzy"], ["--xyzzy: unknown flag"]),
        (["--=1"], ["--: unknown flag"]),
        (["---port=1"], ["---port: flags take two dashes, write --port"]),
        (["-port=8000"], ["-port: flags take two dashes, write --port"]),
        (["-port", "8000"], ["-port: flags take two dashes, write --port"]),
        (["-x"], ["-x: unknown flag"]),
        (["-vx"], ["-vx: unknown flag, did you mean --v?"]),
        (["--port"], ["--port: needs a value"]),
        (["-v"], ["--v: needs a value"]),
        (["8000"], ["unexpected argument '8000'"]),
        (["-"], ["unexpected argument '-'"]),
        (["--tracing", "yes"], ["unexpected argument 'yes'"]),
        (["--a", "--b"], ["--a: unknown flag", "--b: unknown flag"]),
    ],
)
def test_what_is_no_flag_is_a_problem_that_names_it(argv: list[str], problems: list[str]) -> None:
    assert problems_of(*argv) == problems


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [("vllm-port", "model-server-port", "8201"), ("secure-proxy", "secure-serving", "f")],
)
def test_a_deprecated_flag_is_its_successor_and_warns_once(old: str, new: str, same: str) -> None:
    reading = read_argv([f"--{old}={same}", f"--{new}={same}", f"--{old}={same}"])
    assert reading.problems == []
    assert reading.warnings == [f"--{old} is deprecated, use --{new}"]
    assert reading.said.keys() == {BY_NAME[new].field}


@pytest.mark.parametrize(
    "argv", list(itertools.permutations(("--vllm-port=8201", "--model-server-port=8202")))
)
def test_a_deprecated_flag_has_no_effect_beside_its_successor(argv: tuple[str, ...]) -> None:
    reading = read_argv(argv)
    assert (reading.problems, reading.said["model_server_port"].text) == ([], "8202")
    assert reading.warnings[-1] == "--vllm-port: has no effect beside --model-server-port"


def test_a_deprecated_boolean_must_agree_with_its_successor() -> None:
    assert problems_of("--secure-serving", "--secure-proxy=0") == [
        "--secure-proxy: '0' contradicts --secure-serving 'true'"
    ]
    assert problems_of("--secure-serving", "--secure-proxy=1") == []
    assert problems_of("--vllm-port=x", "--model-server-port=8202") == []
