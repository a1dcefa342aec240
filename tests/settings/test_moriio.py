"""What MoRI-IO's flags need and what they do not go with; one address alone asks for nothing."""

from __future__ import annotations

import pytest

from sidecar.connectors import CONNECTORS
from sidecar.parts import deciders
from sidecar.settings import Settings, SettingsError, load

POD = {"POD_IP": "10.0.0.1"}
WRITE = "--moriio-write-mode"


def problems_of(*argv: str, environ: dict[str, str] = POD) -> list[str]:
    """Why these do not start."""
    with pytest.raises(SettingsError) as refused:
        load(argv, environ)
    return refused.value.problems


def warnings_of(*argv: str, environ: dict[str, str] = POD) -> list[str]:
    """What the user of these, which start, is told."""
    warnings: list[str] = []
    load(argv, environ, warn=warnings.append)
    return warnings


def loaded(*argv: str, environ: dict[str, str] = POD) -> Settings:
    return load(argv, environ)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("parallel-dispatch", "true"),
        ("parallel-decode-wait-timeout", "1m"),
        ("decode-notify-port", "1"),
        ("decode-handshake-port", "1"),
        ("prefill-notify-port", "1"),
        ("prefill-handshake-port", "1"),
        ("tp-size", "2"),
        ("dp-size", "2"),
        ("dp-size-local", "2"),
        ("remote-hosts", "p0"),
        ("decode-hosts", "d0"),
    ],
)
def test_a_flag_without_write_mode_warns_and_its_default_does_not(flag: str, value: str) -> None:
    why = "has no effect without --moriio-write-mode and --kv-connector=nixlv2"
    assert warnings_of(f"--moriio-{flag}={value}") == [f"--moriio-{flag}: {why}"]
    assert warnings_of(f"--moriio-{flag}={value}", f"{WRITE}=false") == [f"--moriio-{flag}: {why}"]
    assert warnings_of(f"--configuration=moriio-{flag}: {value}") == [
        f"--moriio-{flag} (in --configuration): {why}"
    ]
    assert warnings_of(WRITE, f"--moriio-{flag}={value}") == []
    default = getattr(loaded(), f"moriio_{flag.replace('-', '_')}", None)
    if isinstance(default, int):
        assert warnings_of(f"--moriio-{flag}={str(default).lower()}") == []


def test_pods_that_are_not_counted_on_are_not_counted() -> None:
    assert len(warnings_of("--moriio-remote-hosts=p0,p1", "--moriio-dp-size=16")) == 2


@pytest.mark.parametrize(
    ("sizes", "reached"),
    [(["--moriio-dp-size=16"], 1), (["--moriio-dp-size=16", "--moriio-dp-size-local=8"], 2)],
)
def test_pods_that_no_rank_is_in_are_told_of(sizes: list[str], reached: int) -> None:
    warning = f"--moriio-decode-hosts: of 3 pods only the first {reached} can have ranks"
    assert warnings_of(WRITE, "--moriio-decode-hosts=d0,d1,d2", *sizes) == [
        f"{warning} (--moriio-dp-size, --moriio-dp-size-local)"
    ]
    assert warnings_of(WRITE, "--moriio-decode-hosts=d0", *sizes[:1]) == []


@pytest.mark.parametrize("environ", [POD, {}])
def test_write_mode_with_another_connector_warns_and_that_connector_works(environ: dict[str, str]) -> None:
    argv = (WRITE, "--moriio-tp-size=2", "--kv-connector=offloading")
    assert warnings_of(*argv, environ=environ) == [
        "--moriio-write-mode: has no effect without --kv-connector=nixlv2",
        "--moriio-tp-size: has no effect without --moriio-write-mode and --kv-connector=nixlv2",
    ]
    settings = load(argv, environ, warn=lambda line: None)
    assert not settings.writes_moriio
    assert deciders(settings).connector is CONNECTORS["offloading"]


def test_variables_alone_set_nothing_in_motion() -> None:
    environ = {**POD, "MORIIO_DNS_RESOLVE_TTL_SECONDS": "1", "MORIIO_DNS_RESOLVE_TIMEOUT_SECONDS": "1"}
    assert loaded(environ=environ).moriio_write_mode is False
    assert loaded("--moriio-local-pod-ip=pod-0.svc").moriio_local_pod_ip == "pod-0.svc"


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        ([], POD),
        (["--moriio-local-pod-ip=pod-0.svc"], {}),
        (["--moriio-parallel-dispatch", "--moriio-dp-size=8"], POD),
        (["--enable-p2p-pull"], POD),
        (["--moriio-remote-hosts=p0", "--moriio-dp-size=8"], POD),
        (["--moriio-remote-hosts=p0,p1", "--moriio-dp-size=16", "--moriio-dp-size-local=8"], POD),
        (["--moriio-remote-hosts=p0,p1", "--moriio-dp-size=16"], POD),
        (["--moriio-remote-hosts=p0,p1,p2", "--moriio-dp-size=16", "--moriio-dp-size-local=8"], POD),
    ],
)
def test_write_mode_starts_with_all_that_it_needs(argv: list[str], environ: dict[str, str]) -> None:
    assert loaded(WRITE, *argv, environ=environ).moriio_write_mode is True


@pytest.mark.parametrize(
    ("argv", "environ", "problem"),
    [
        ([], {}, "--moriio-write-mode: needs this pod's address (--moriio-local-pod-ip or POD_IP)"),
        (
            ["--moriio-local-pod-ip="],
            POD,
            "--moriio-write-mode: needs this pod's address (--moriio-local-pod-ip or POD_IP)",
        ),
        (
            ["--moriio-decode-hosts=d0,d1", "--moriio-dp-size=16", "--moriio-dp-size-local=7"],
            POD,
            "--moriio-decode-hosts: 2 pods of 7 ranks have not the 16 of --moriio-dp-size",
        ),
    ],
)
def test_what_write_mode_cannot_work_with_is_refused(
    argv: list[str], environ: dict[str, str], problem: str
) -> None:
    assert problems_of(WRITE, *argv, environ=environ) == [problem]
