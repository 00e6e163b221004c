"""The recipes for containers, as far as they can be read without a program that builds one."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from docs.gen.repository import ROOT

FOLDER = ROOT / "examples" / "container"
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "ARG", "ENV", "COPY", "ENTRYPOINT", "CMD"}
SECTIONS = {"arguments", "files", "post", "environment", "runscript"}
# Names of hosts as people write them: with a scheme, or before the path of an image.
HOST = re.compile(r"https?://|git@|\b[\w-]+(\.[\w-]+)+(:\d+)?/[\w-]+/")


@dataclass
class Stage:
    """A stage of a Dockerfile: the image that it begins with, its name, its instructions and their words."""

    image: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def words(self, instruction: str) -> list[str]:
        """What follows an instruction, wherever it stands in this stage."""
        return [words for found, words in self.steps if found == instruction]


def stages(text: str) -> list[Stage]:
    """The stages of a Dockerfile. Raises ValueError for an instruction that is none, or stands before any stage."""
    found: list[Stage] = []
    for instruction, words in _instructions(text):
        if instruction not in INSTRUCTIONS:
            raise ValueError(f"no instruction: {instruction}")
        if instruction == "FROM":
            image, as_, name = words.split()
            if as_ != "AS":
                raise ValueError(f"a stage without a name: {words}")
            found.append(Stage(image=image, name=name))
        elif not found:
            raise ValueError(f"{instruction} before any stage")
        else:
            found[-1].steps.append((instruction, words))
    return found


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, words = line.partition(" ")
        yield instruction, words.strip()


def sections(text: str) -> dict[str, str]:
    """The header of an Apptainer definition under an empty name, and its sections."""
    parts = re.split(r"^%(\w+)[^\n]*\n", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (FOLDER / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def definition() -> str:
    return (FOLDER / "ktbench.def").read_text()


def assert_is_shell(script: str) -> None:
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_last_stage_takes_what_the_first_builds(dockerfile: str) -> None:
    build, run = stages(dockerfile)
    assert build.image == run.image, "an environment is of the interpreter that it was made with"
    assert any(words.startswith("python3 bootstrap.py --isas=all ") for words in build.words("RUN"))
    (folder,) = build.words("WORKDIR")
    assert run.words("COPY") == [f"--from={build.name} {folder} {folder}"], "an environment stays where it was made"
    assert run.words("ENV") == [f"PATH={folder}/.venv/bin:$PATH"]


def test_the_container_runs_an_installed_command(dockerfile: str) -> None:
    (entry,) = stages(dockerfile)[-1].words("ENTRYPOINT")
    (command,) = json.loads(entry)
    assert command in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def test_the_definition_does_as_the_dockerfile_does(dockerfile: str, definition: str) -> None:
    build, run = stages(dockerfile)
    content = sections(definition)
    assert content.keys() == {"", *SECTIONS}
    assert content[""].split() == ["Bootstrap:", "docker", "From:", build.image]
    assert content["arguments"].split() == build.words("ARG")
    assert content["environment"].split() == ["export", *run.words("ENV")]
    assert "\n    python3 bootstrap.py --isas=all " in content["post"]


def test_scripts_are_shell(dockerfile: str, definition: str) -> None:
    for stage in stages(dockerfile):
        for script in stage.words("RUN"):
            assert_is_shell(script)
    for name in ("post", "environment", "runscript"):
        assert_is_shell(sections(definition)[name])


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_no_host_is_named(path: Path) -> None:
    assert not HOST.search(path.read_text())


@pytest.mark.parametrize("text", ["FROM registry.example/a/b AS c", "pip --index-url http://x", "a.example:5000/b/c"])
def test_a_host_is_found(text: str) -> None:
    assert HOST.search(text)


def test_an_image_holds_nothing_that_git_ignores() -> None:
    left_out = {line.strip("/") for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()}
    for ignored in (ROOT / ".gitignore").read_text().split():
        name = ignored.rstrip("/")
        assert {name, f"**/{name}"} & left_out, ignored


@pytest.mark.parametrize("text", ["RUN x\n", "FROM a AS b\nRUNN x\n", "FROM a ON b\n"])
def test_what_is_no_dockerfile_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        stages(text)
