"""Versions of packages and programs, read without importing or starting anything heavy."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import metadata

PACKAGES = ("torch", "transformers", "numpy")
_TIMEOUT_S = 5.0
# `g++ (Debian 12.2.0-14) 12.2.0`, `Cuda compilation tools, release 13.0, V13.0.88`, llama.cpp's `version: 5581 (a1b2)`
_VERSION = re.compile(r"version: (\d+)|(\d+\.\d+(?:\.\d+)*)")


def package_version(name: str) -> str | None:
    """Version of an installed distribution; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def program_versions(names: tuple[str, ...]) -> dict[str, str | None]:
    """Program -> the version it prints, None where it is not on the PATH; all are asked at the same time."""
    running = {name: _ask(path) if (path := shutil.which(name)) else None for name in names}
    return {name: None if asked is None else _answer(asked) for name, asked in running.items()}


def _ask(path: str) -> subprocess.Popen[str]:
    return subprocess.Popen([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _answer(asked: subprocess.Popen[str]) -> str:
    with asked:
        try:
            text, _ = asked.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            asked.kill()
            return "did not answer"
    return parse_version(text) or "of unknown version"


def parse_version(text: str) -> str | None:
    """The version in what a program prints for `--version`; None where there is none."""
    found = _VERSION.search(text)
    return found and (found.group(1) or found.group(2))
