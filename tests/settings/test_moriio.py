"""What MoRI-IO's flags need and what they do not go with; one address alone asks for nothing."""

from __future__ import annotations

import pytest

from sidecar.settings import Settings, SettingsError, load

POD = {"POD_IP": "10.0.0.1"}
WRITE = "--moriio-write-mode"


def problems_of(*argv: str, environ: dict[str, str] = POD) -> list[str]:
    """Why these do not start."""
    with pytest.raises(SettingsError) as refused:
        load(argv, environ)
    return refused.value.problems


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
def test_a_flag_without_write_mode_refuses_to_start_and_its_default_does_not(flag: str, value: str) -> None:
    refusal = f"--moriio-{flag}: goes with --moriio-write-mode only"
    assert problems_of(f"--moriio-{flag}={value}") == [refusal]
    assert problems_of(f"--moriio-{flag}={value}", f"{WRITE}=false") == [refusal]
    assert problems_of(f"--configuration=moriio-{flag}: {value}") == [
        f"--moriio-{flag} (in --configuration): goes with --moriio-write-mode only"
    ]
    default = getattr(loaded(), f"moriio_{flag.replace('-', '_')}", None)
    if isinstance(default, int):
        assert not loaded(f"--moriio-{flag}={str(default).lower()}").moriio_write_mode


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
            ["--kv-connector=offloading"],
            POD,
            "--moriio-write-mode: goes with --kv-connector=nixlv2 only, not offloading",
        ),
        (
            ["--moriio-remote-hosts=p0,p1", "--moriio-dp-size=16"],
            POD,
            "--moriio-remote-hosts: 2 pods need --moriio-dp-size-local, the ranks of each",
        ),
        (
            ["--moriio-decode-hosts=d0,d1,d2", "--moriio-dp-size=16", "--moriio-dp-size-local=8"],
            POD,
            "--moriio-decode-hosts: 3 pods of 8 ranks are not the 16 of --moriio-dp-size",
        ),
        (
            ["--moriio-decode-hosts=d0,d1", "--moriio-dp-size=16", "--moriio-dp-size-local=7"],
            POD,
            "--moriio-decode-hosts: 2 pods of 7 ranks are not the 16 of --moriio-dp-size",
        ),
    ],
)
def test_what_write_mode_cannot_work_with_is_refused(
    argv: list[str], environ: dict[str, str], problem: str
) -> None:
    assert problems_of(WRITE, *argv, environ=environ) == [problem]
