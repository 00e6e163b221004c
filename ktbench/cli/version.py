"""`--version`: which ktbench, from which commit, with which kernels."""

from __future__ import annotations

import platform
from pathlib import Path

from ktbench import __version__
from ktbench.host.code import Extension, load_extension, read_build, read_commit


def lines() -> list[str]:
    """Version, commit, kernel build and Python; a dash with its reason where one cannot be had."""
    return [
        f"ktbench {__version__}",
        f"commit  {read_commit() or '- (neither a checkout nor a wheel built in one)'}",
        f"kernels {_kernels(load_extension())}",
        f"python  {platform.python_version()}",
    ]


def _kernels(extension: Extension) -> str:
    if extension.module is None or extension.module.__file__ is None:
        return f"- ({extension.reason})"
    build = read_build(Path(extension.module.__file__).parent)
    return f"{extension.module.build_id()[:12]}{f', {build.tools}' if build else ''}"
