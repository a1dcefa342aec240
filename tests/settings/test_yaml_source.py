"""YAML sets what flags set, in its own way of writing scalars and lists, and refuses what it cannot be."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.settings.argv import read_argv
from sidecar.settings.model import BY_NAME, Settings
from sidecar.settings.sources import Reading, Source
from sidecar.settings.yaml_source import read_yaml
from tests.settings.spellings import FORMERLY, SPELLINGS

EVERY_KEY = SPELLINGS | {old: SPELLINGS[new] for old, new in FORMERLY.items()}
# What explicit tags, anchors, merge keys, keys of all kinds and escapes are made of.
SCRAPS = (
    *(
        "!!bool ",
        "!!int ",
        "!!float ",
        "!!null ",
        "!!binary ",
        "!!set ",
        "!!omap ",
        "!!timestamp ",
        "!x ",
        "!<",
    ),
    *(
        "!!python/object/apply:os.getpid ",
        "&a ",
        "*a",
        "<<",
        ": ",
        "? ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "\n",
    ),
    *(
        '"',
        "\\U00110000",
        "\\UFFFFFFFF",
        "\\uDCFF",
        "\\0",
        "port",
        "tracing",
        "enable-tls",
        "abc",
        "~",
        "=",
        "|",
    ),
    *("%YAML ", "%TAG ", "---\n", "1.1", "9"),
)
UNREADABLE = "--configuration: is not YAML that can be read: a number in it is out of range"


def reading_of(yaml: str) -> Reading:
    return read_yaml(read_argv([f"--configuration={yaml}"]).said)


def value_of(key: str, yaml: str) -> object:
    reading = reading_of(yaml)
    assert reading.problems == []
    settings: object = Settings(Source(Settings, reading.said))
    return getattr(settings, BY_NAME[key].field)


@pytest.mark.parametrize("key", EVERY_KEY)
def test_every_flag_is_a_key(key: str) -> None:
    text, value = EVERY_KEY[key]
    assert value_of(key, f"{key}: {text}") == value


@pytest.mark.parametrize("key", [key for key in EVERY_KEY if BY_NAME[key].kind.many is not None])
def test_lists_are_yaml_lists(key: str) -> None:
    text, value = EVERY_KEY[key]
    assert value_of(key, f"{key}: [{text}]") == value
    assert value_of(key, f"{key}:\n" + "".join(f"- {word}\n" for word in text.split(","))) == value
    assert value_of(key, f"{key}: []") == BY_NAME[key].default


@pytest.mark.parametrize(
    ("yaml", "key", "value"),
    [
        ("{port: 8085, tracing: true}", "port", 8085),
        ("port: '8085'", "port", 8085),
        ("tracing: yes", "tracing", True),
        ("secure-serving: Off", "secure-serving", False),
        ("tracing: 'true'", "tracing", True),
        ("source-guard: off", "source-guard", "off"),
        ("source-guard: 'on'", "source-guard", "on"),
        ("source-guard: false", "source-guard", "off"),
        ("inference-pool: 123", "inference-pool", "123"),
        ("prefill-retry-backoff: 0", "prefill-retry-backoff", 0.0),
        ("cert-path:", "cert-path", None),
        ("port: null", "port", 8000),
        ("port: ~", "port", 8000),
        ("cert-path: !!null", "cert-path", None),
        ("cert-path: !!null here", "cert-path", Path("here")),
        ("tracing: !!bool On", "tracing", True),
        ("port: !!str 8085", "port", 8085),
        ("enable-tls: !!seq [decoder]", "enable-tls", frozenset({"decoder"})),
        ("port: &p 8085\nmodel-server-port: *p", "model-server-port", 8085),
    ],
)
def test_scalars_are_written_as_yaml_users_write_them(yaml: str, key: str, value: object) -> None:
    assert value_of(key, yaml) == value


@pytest.mark.parametrize("yaml", ["", "# only a comment", "---", "null", "{}"])
def test_an_empty_document_sets_nothing(yaml: str) -> None:
    reading = reading_of(yaml)
    assert (reading.said, reading.problems) == ({}, [])


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("prot: 1", "--configuration: unknown key 'prot', did you mean port?"),
        ("xyzzy: 1", "--configuration: unknown key 'xyzzy'"),
        ("'--port': 1", "--configuration: unknown key '--port', did you mean port?"),
        ("configuration-file: x", "--configuration: unknown key 'configuration-file'"),
        (
            "sglang-bootstrap-port: 1",
            "--configuration: unknown key 'sglang-bootstrap-port', did you mean mooncake-bootstrap-port?",
        ),
        ("[port]", "--configuration: is not a mapping from flag names to values"),
        ("port", "--configuration: is not a mapping from flag names to values"),
        ("port: 1\nport: 2", "--port (in --configuration): is there twice"),
        ("port: 1\nport:", "--port (in --configuration): is there twice"),
        ("port: {a: 1}", "--port (in --configuration): is neither one value nor a list of values"),
        (
            "enable-tls: [[decoder]]",
            "--enable-tls (in --configuration): is neither one value nor a list of values",
        ),
        (
            "port: 1: 2",
            "--configuration: is not YAML: mapping values are not allowed here in line 1, column 8",
        ),
        (
            "port: 1\n---\nport: 2",
            "--configuration: is not YAML: but found another document in line 2, column 1",
        ),
        (
            "a: \x07",
            "--configuration: is not YAML: unacceptable character #x0007: special characters are not "
            'allowed in "<unicode string>", position 3',
        ),
        ("a: " + "[" * 5000, "--configuration: is not YAML that can be read: nested too deeply"),
        ("<<: {port: 1}", "--configuration: unknown key '<<'"),
        ('host: "\\U00110000"', UNREADABLE),
        ('host: "\\UFFFFFFFF"', UNREADABLE),
        (f"%YAML {'9' * 5000}.1\n---\nport: 1", UNREADABLE),
        ("!!null nothing", "--configuration: is not a mapping from flag names to values"),
        (
            "port: !!binary ODA4NQ==",
            "--port (in --configuration): has the tag '!!binary', which means nothing here",
        ),
        ("port: !ours 8085", "--port (in --configuration): has the tag '!ours', which means nothing here"),
        (
            "port: !!python/tuple []",
            "--port (in --configuration): has the tag '!!python/tuple', which means nothing here",
        ),
        (
            "enable-tls: !!null [decoder]",
            "--enable-tls (in --configuration): has the tag '!!null', which means nothing here",
        ),
        (
            "enable-tls: [!!binary YQ==]",
            "--enable-tls (in --configuration): has the tag '!!binary', which means nothing here",
        ),
        ("port: !!set {a, b}", "--port (in --configuration): is neither one value nor a list of values"),
        ("port: !!omap [a: 1]", "--port (in --configuration): is neither one value nor a list of values"),
        ("port: &a [*a]", "--port (in --configuration): is neither one value nor a list of values"),
        ("{? [a, b] : 2}", "--configuration: a key must be a text, not a list, in line 1, column 4"),
        ("\n? {a: b}\n: 2", "--configuration: a key must be a text, not a mapping, in line 2, column 3"),
        ("{? *a : 2}", "--configuration: is not YAML: found undefined alias 'a' in line 1, column 4"),
        (
            "!!binary cG9ydA==: 1",
            "--configuration: a key has the tag '!!binary', which means nothing here, in line 1, column 1",
        ),
        ('"\\uDCFF\\0": 1', "--configuration: unknown key '\\udcff\\x00'"),
        (
            "secure-proxy: true\nsecure-serving: false",
            "--secure-serving (in --configuration): 'false' contradicts "
            "--secure-proxy (in --configuration) 'true'",
        ),
    ],
)
def test_what_is_not_understood_is_one_line(yaml: str, problem: str) -> None:
    assert reading_of(yaml).problems == [problem]


def test_all_problems_of_a_document_are_found() -> None:
    assert reading_of("prot: 1\nport: {}\nxyzzy: 2\n").problems == [
        "--configuration: unknown key 'prot', did you mean port?",
        "--port (in --configuration): is neither one value nor a list of values",
        "--configuration: unknown key 'xyzzy'",
    ]


def test_a_deprecated_key_warns() -> None:
    assert reading_of("secure-proxy: false").warnings == [
        "--secure-proxy (in --configuration) is deprecated, use --secure-serving"
    ]


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text("# f\u00fcr pod A\nport: 8085\n", encoding="utf-8")
    reading = read_yaml(read_argv(["--configuration-file", str(file)]).said)
    assert reading.problems == []
    assert reading.said["port"].text == "8085"
    assert reading.said["port"].origin == "--port (in --configuration-file)"


def test_an_empty_configuration_flag_is_none(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text("port: 8085\n", encoding="utf-8")
    reading = read_yaml(read_argv([f"--configuration-file={file}", "--configuration="]).said)
    assert reading.problems == []
    assert reading.said["port"].text == "8085"


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"host: f\xfcr\n")
    for file, reason in (
        (tmp_path / "absent.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (latin, "it is not UTF-8"),
    ):
        reading = read_yaml(read_argv([f"--configuration-file={file}"]).said)
        assert reading.problems == [f"--configuration-file: cannot read '{file}': {reason}"]


def test_what_a_shell_has_opened_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"port: 8123")
    os.close(writing)
    for file, expected in ((f"/dev/fd/{reading}", "8123"), ("/dev/null", None)):
        found = read_yaml(read_argv([f"--configuration-file={file}"]).said)
        assert (found.problems, [said.text for said in found.said.values()]) == (
            [],
            [expected] if expected else [],
        )
    os.close(reading)


def test_a_file_that_could_be_waited_on_for_ever_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for file in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        reading = read_yaml(read_argv([f"--configuration-file={file}"]).said)
        assert reading.problems == [f"--configuration-file: cannot read '{file}': it is not a regular file"]


def test_a_configuration_that_a_mount_links_to_is_read(tmp_path: Path) -> None:
    (tmp_path / "..moment").mkdir()
    (tmp_path / "..moment" / "sidecar.yaml").write_text("port: 8085\n")
    (tmp_path / "..data").symlink_to("..moment")
    (tmp_path / "sidecar.yaml").symlink_to("..data/sidecar.yaml")
    reading = read_yaml(read_argv([f"--configuration-file={tmp_path / 'sidecar.yaml'}"]).said)
    assert (reading.problems, reading.said["port"].text) == ([], "8085")


@given(st.lists(st.sampled_from(SCRAPS), max_size=8).map("".join))
def test_whatever_the_yaml_is_its_problems_are_lines(yaml: str) -> None:
    problems = reading_of(yaml).problems
    assert all(problem.startswith("--") and problem.isprintable() for problem in problems)


def test_inline_and_file_together_are_refused() -> None:
    reading = read_yaml(read_argv(["--configuration={}", "--configuration-file=/x"]).said)
    assert reading.problems == ["--configuration: cannot be given together with --configuration-file"]
