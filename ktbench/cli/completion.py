"""`completion`: scripts that complete verbs, keys and values in a shell, and the words that they offer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ktbench.cli.catalogue import KINDS
from ktbench.cli.help import HELP, Help
from ktbench.resources import option_files
from ktbench.spec.errors import RequestError, instead

# Each asks for `completion offer SHELL WORD ...`: the words of the line up to the cursor, the last one unfinished.
_SCRIPTS: Mapping[str, str] = {
    "bash": """\
_ktbench() {
    local line="${COMP_LINE:0:COMP_POINT}" words
    read -ra words <<< "$line"
    [[ $line == *" " ]] && words+=("")
    local IFS=$'\\n'
    COMPREPLY=($(ktbench completion offer bash "${words[@]:1}" 2>/dev/null))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _ktbench ktbench
""",
    "zsh": """\
#compdef ktbench
_ktbench() {
    local -a offered
    offered=("${(@f)$(ktbench completion offer zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n $offered[1] ]] && compadd -S '' -- $offered || _files
}
compdef _ktbench ktbench
""",
    "fish": """\
function __ktbench
    set -l words (commandline -opc)[2..] (commandline -ct)
    ktbench completion offer fish $words 2>/dev/null
end
complete -c ktbench -a '(__ktbench)'
""",
}
_FLAGS = ("--help", "--json", "--quiet", "--verbose")


def run(overrides: Sequence[str]) -> int:
    """Print the script of a shell. Raises RequestError for another shell."""
    if overrides[:1] == ["offer"]:
        print("\n".join(_shown(overrides[1], offered(overrides[2:]))))
        return 0
    if len(overrides) != 1 or overrides[0] not in _SCRIPTS:
        raise RequestError(f"completion {' '.join(overrides)}: name a shell{instead(' '.join(overrides), _SCRIPTS)}")
    print(_SCRIPTS[overrides[0]], end="")
    return 0


def _shown(shell: str, words: Sequence[str]) -> list[str]:
    """Bash takes what follows the last `=` for the word to complete."""
    return [word.rpartition("=")[2] or word if shell == "bash" and not word.endswith("=") else word for word in words]


def offered(words: Sequence[str]) -> list[str]:
    """What the last of the words of a command line may become."""
    from ktbench.cli import VERBS

    before, last = [word for word in words[:-1] if not word.startswith("-")], words[-1] if words else ""
    found = _arguments(before, last) if before else [*VERBS, "--help", "--version"]
    return [word for word in dict.fromkeys(found) if word.startswith(last)]


def _arguments(before: Sequence[str], last: str) -> Iterator[str]:
    verb, *given = before
    told = HELP.get(verb, Help())
    if "=" in last:
        key = last.partition("=")[0]
        yield from (f"{key}={value}" for value in _values(told, key.lstrip("+")))
        return
    yield from _FLAGS if last.startswith("-") else ()
    yield from _positional(verb, len(given))
    chosen = {word.partition("=")[0].lstrip("+") for word in given}
    keys = (key.name for key in told.all_keys())
    yield from (f"{name}=" for name in (*map(_signed, told.groups), *keys) if name.lstrip("+") not in chosen)


def _signed(group: str) -> str:
    return f"+{group}" if group in ("ablation", "suite") else group


def _values(told: Help, key: str) -> Iterator[str]:
    if key in told.groups:
        yield from option_files(key)
    yield from (word for one in told.all_keys() if one.name == key for word in one.choices)
    if key in ("resume", "run", "with"):
        yield from _runs()


def _positional(verb: str, given: int) -> Iterator[str]:
    if verb in ("report", "compare") and given < (1 if verb == "report" else 2):
        yield from ("latest", *_runs())
    elif verb == "report":
        from ktbench.report.write import FORMATS  # takes a while to import

        yield from FORMATS
    elif verb == "list":
        yield from KINDS
    elif verb == "completion":
        yield from _SCRIPTS


def _runs() -> Iterator[str]:
    yield from (log.parent.name for log in sorted(Path("runs").glob("*/log.jsonl")))
