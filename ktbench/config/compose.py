"""Composes Hydra overrides into plain content, with errors in one line."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ktbench.config.axes import overridden, with_nodes
from ktbench.config.files import USER_FILE
from ktbench.config.keys import known_keys, register_defaults
from ktbench.config.launcher import is_launching
from ktbench.config.lists import Lists, SplitOverrides, key_of, parsed, split_lists, with_letters
from ktbench.config.machine import BESIDE_PRESETS, HERE, ReadLocal, is_own, no_local, preset
from ktbench.config.options import (
    NO_SUITE,
    REGISTERED,
    SEARCHPATH,
    group_options,
    is_file,
    is_registered_task,
    own_folders,
    read_options,
)
from ktbench.config.user_files import register_files
from ktbench.resources import data_folder, group_folder
from ktbench.spec.errors import RequestError, did_you_mean, instead, shown
from ktbench.spec.features import FEATURES
from ktbench.spec.peers import PROGRAMS
from ktbench.spec.sweep import axis_changes, part_name

# Of the overrides of a sweep's own keys these are the run's; the others are for each of its parts.
_OF_THE_RUN = ("sweep.parts", "sweep.name", "sweep.title")
_UNSAFE, _OWN_FILE = "confirm_unsafe", "engine.own_file"
_LISTED = ("ablation", "model", "machine", "workload", "suite")  # by `list`
_BESIDE = {
    "suite": f"; a task of lm-eval is suite={REGISTERED}TASK",
    "machine": f"; beside these {', '.join(BESIDE_PRESETS)}",
}
_LONGEST_KEY = 200  # characters: Hydra looks for files that are called like keys
Groups = Mapping[str, list[str]]  # the options of every group
_MAPPINGS = ("engine", "inject", "machine", "measure", "model", "peer", "sweep", "workload")
_WITHOUT = {f"suite={NO_SUITE}": "~suite"}  # as Hydra writes it


@dataclass(frozen=True, kw_only=True, slots=True)
class Composed:
    """Plain content of the run as a whole, and of each part by its name, "" for a single one."""

    run: dict[str, Any]
    parts: dict[str, dict[str, Any]]


def compose(overrides: Sequence[str], read_local: ReadLocal = no_local) -> Composed:
    """Plain content of the composed configuration. `read_local` gives the description behind `machine=local`.

    Every part is composed with the same overrides, which win over what the part sets: an axis whose key is overridden
    is not varied, and a list of values for a key is an axis before all others. Raises RequestError in one line for an
    override that does not parse, an unknown group option or key, an invalid list, a part that has parts itself, and a
    program that only a file names.
    """
    overrides = [*map(with_letters, overrides)]
    groups = group_options(overrides)
    words = split_lists(overrides, groups)
    composed = _composed_parts(words, groups, read_local)
    keys = {key_of(normal(word)).removeprefix("suite.") for word in overrides}
    for content in (composed.run, *composed.parts.values()):
        _require_confirmed(content, keys)
    return composed


def _composed_parts(words: SplitOverrides, groups: Groups, read_local: ReadLocal) -> Composed:
    run = _compose_once([word for word in words.overrides if not _is_for_parts(word)], groups, read_local)
    ablations = run["sweep"]["parts"]
    if not isinstance(ablations, list):
        raise RequestError(f"sweep.parts={ablations}: must be a list of ablations, such as [decode,prefill]")
    if not ablations:
        alone = _content(words.overrides, words, groups, read_local)
        return Composed(run=alone, parts={"": alone})
    parts = {part_name(str(name)): _part(str(name), words, groups, read_local) for name in ablations}
    return Composed(run=run, parts=parts)


def _require_confirmed(content: Mapping[str, Any], keys: Container[str]) -> None:
    """Raises RequestError for what a file, and not the command line, has run, be it programs that a model writes."""
    for key, value in _run_by(content):
        if value and key not in keys:
            raise RequestError(
                f"{key}={value}: stands in a file, and what files name is run only where the command line names it, "
                f"too; add {key}={value} if you trust it"
            )


def _run_by(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a configuration has run, by the keys of a command line."""
    suite, axes = content["suite"], content["sweep"]["axes"]
    yield _UNSAFE, content[_UNSAFE] or (isinstance(suite, dict) and suite.get(_UNSAFE))
    engines = [content["engine"]]
    found = [content["peer"]]
    for axis, values in axes.items() if isinstance(axes, dict) else ():
        for changes in (axis_changes(axis, value) for value in values if isinstance(values, list)):
            found += [{key.removeprefix("peer."): one for key, one in changes.items() if key.startswith("peer.")}]
            found += [changes["peer"]] if isinstance(changes.get("peer"), dict) else []
            engines += [{"own_file": changes.get(_OWN_FILE)}]
            engines += [changes["engine"]] if isinstance(changes.get("engine"), dict) else []
    yield from ((_OWN_FILE, engine.get("own_file")) for engine in engines)
    yield from ((f"peer.{name}", peer.get(name)) for peer in found for name in PROGRAMS)


def _part(ablation: str, words: SplitOverrides, groups: Groups, read_local: ReadLocal) -> dict[str, Any]:
    own = [word for word in words.overrides if key_of(word) not in ("ablation", *_OF_THE_RUN)]
    content = _content([f"+ablation={ablation}", *own], words, groups, read_local)
    if content["sweep"]["parts"]:
        raise RequestError(f"sweep.parts: {ablation} has parts itself, name those instead")
    return content


def _content(overrides: Sequence[str], words: SplitOverrides, groups: Groups, read_local: ReadLocal) -> dict[str, Any]:
    """The composed content of overrides with the remaining axes, and models and machines on them as nodes."""
    keys = {key_of(word): word.partition("=")[2] for word in words.overrides}
    is_whole = _simulates_alone(keys, words.lists) and "model.layers" not in keys

    def composed(own: Sequence[str]) -> dict[str, Any]:
        content = _compose_once(own, groups, read_local)
        if is_whole:  # ablations cut models to what can be measured here
            content["model"]["layers"] = None
        return content

    @cache
    def node_of(group: str, name: str) -> Any:
        others = [word for word in overrides if key_of(word) != group]
        return composed([*others, f"{group}={name}"])[group]

    return with_nodes(overridden(composed(overrides), keys, words.lists), node_of)


def _simulates_alone(values: Mapping[str, str], lists: Lists) -> bool:
    """Whether a command line names described machines, and not this one."""
    machines = lists.get("machine") or [values.get("machine", HERE)]
    return HERE not in machines


def _is_for_parts(word: str) -> bool:
    return word.startswith("sweep.") and key_of(word) not in _OF_THE_RUN


def _compose_once(overrides: Sequence[str], groups: Groups, read_local: ReadLocal) -> dict[str, Any]:
    """Plain content of the composed configuration, with the machine as it is without overrides as `machine.preset`.

    Raises RequestError in one line for an override that does not parse, an unknown group option or an unknown key.
    """
    words = prepared([normal(word) for word in overrides], groups, read_local)
    with in_one_line(words):
        return deepcopy(_shipped(tuple(words))) if _is_shipped(words) else _composed(words)


def prepared(words: Sequence[str], groups: Groups, read_local: ReadLocal) -> list[str]:
    """The words as Hydra composes them: files that they name are checked and registered as options.

    Raises RequestError in one line for an unknown group option, and for a file that cannot be read.
    """
    register_defaults()
    for word in words:
        _check_group(word, groups)
    with in_one_line(words):
        words = register_files(words, read_local)
        read_options(words)
    return [_WITHOUT.get(word, word) for word in words]


@contextmanager
def in_one_line(words: Sequence[str]) -> Iterator[None]:
    """Inside, what Hydra and specs refuse in the words is a RequestError, which names an unknown key."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, RecursionError) as error:
        raise RequestError(_one_line(error, words)) from None
    except ValueError as error:
        raise RequestError(str(error)) from None


def _is_shipped(words: Sequence[str]) -> bool:
    """Whether what is composed is the same whenever it is asked for; files of the user's own may have changed."""
    return not any(word.endswith(f"={USER_FILE}") or key_of(word) == SEARCHPATH for word in words)


def composed_yaml(overrides: Sequence[str], read_local: ReadLocal = no_local) -> str:
    """What Hydra keeps of a job as `config.yaml`, of the overrides of a run; lists of values are axes of its sweep."""
    overrides = [*map(with_letters, overrides)]
    groups = group_options(overrides)
    words = split_lists(overrides, groups)
    named = prepared([normal(word) for word in words.overrides], groups, read_local)
    with in_one_line(named):
        config, _ = _merged(named)
        if words.lists:
            keys = {key_of(word) for word in words.overrides}
            plain: Any = OmegaConf.to_container(config)
            axes = overridden(plain, keys, words.lists)["sweep"]["axes"]
            OmegaConf.update(config, "sweep.axes", axes, force_add=True)
        return OmegaConf.to_yaml(config)


@cache
def _shipped(words: tuple[str, ...]) -> dict[str, Any]:
    return _composed(words)


def _composed(words: Sequence[str]) -> dict[str, Any]:
    """Plain content of what Hydra composes, resolved."""
    config, machine = _merged(words)
    content: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    for key in _MAPPINGS:
        found = content.get(key)  # an ablation may take a group away
        if not isinstance(found, dict):
            raise ValueError(f"{key}={found}: must be a mapping, set its keys as {key}.KEY=VALUE")
    return content | {"machine": content["machine"] | {"preset": preset(machine, own_folders(words))}}


def _merged(words: Sequence[str]) -> tuple[DictConfig, str]:
    """What Hydra composes of the options of groups, with the values of the other words set in it; and the machine.

    Options are composed once, as that takes a hundred times as long.
    """
    values = {word: override for word in words if (override := _sets_value(word)) is not None}
    options = tuple(word for word in words if word not in values)
    config, machine = deepcopy((_of_shipped_options if _is_shipped(options) else _of_options)(options))
    for override in values.values():
        key = override.key_or_group
        OmegaConf.update(config, key, override.value(), merge=True, force_add=key.startswith("engine.own"))
    return config, machine


def _sets_value(word: str) -> Override | None:
    """The override of a word that sets a key in what is composed; None for one that decides what that is."""
    key, equals, _ = word.partition("=")
    if not equals or not key.replace(".", "_").isidentifier():
        return None  # for Hydra to judge
    is_known = not key.startswith("hydra.") if "." in key else key in known_keys() and not group_folder(key).is_dir()
    override = parsed(word) if is_known else None
    return override if override and not override.is_sweep_override() else None


@cache
def _of_shipped_options(words: tuple[str, ...]) -> tuple[DictConfig, str]:
    return _of_options(words)


def _of_options(words: tuple[str, ...]) -> tuple[DictConfig, str]:
    """What Hydra composes of options, and the name of the machine."""
    with initialize_config_dir(str(data_folder("conf").resolve()), version_base="1.3"):
        composed = hydra_compose("config", [*words], return_hydra_config=True)
    machine = composed.hydra.runtime.choices.machine
    with open_dict(composed):
        del composed["hydra"]
    return composed, machine


def normal(word: str) -> str:
    """`ablation=x` is accepted for Hydra's `+ablation=x`, the other way round for suites; `peers.x` for `peer.x`."""
    if word.startswith("peers."):
        return word.replace("peers.", "peer.", 1)
    if word.startswith("ablation="):
        return f"+{word}"
    return word[1:] if word.startswith("+suite=") else word


def _check_group(word: str, groups: Groups) -> None:
    key, equals, value = word.partition("=")
    group = key.lstrip("+")
    if not equals or key.startswith("~"):
        raise RequestError(f"override {word!r}: expected KEY=VALUE")
    if is_launching(word):
        raise RequestError(f"{word}: only `sweep` uses launchers, leave it out")
    if group.startswith(("hydra.", "hydra/")) and group != SEARCHPATH:
        raise RequestError(
            f"{word}: has no effect: runs are kept below runs/ (run_name=NAME); of Hydra's own keys {SEARCHPATH} is "
            "read, with --cfg and --info all are"
        )
    if len(group) > _LONGEST_KEY or (key.startswith("+") and group not in groups):
        raise RequestError(f"{shown(group)}: unknown key{did_you_mean(group, known_keys())}")
    options = list(groups.get(group, []))
    is_described = {"machine": is_own, "suite": _is_suite, "ablation": is_file}.get(group)
    if options and value not in options and not (is_described and is_described(value)):
        others = _BESIDE.get(group, "")
        listing = f"ktbench list {group}s" if group in _LISTED else ""
        raise RequestError(f"{group}={shown(value)}: unknown{instead(value, options, listing)}{others}")


def _is_suite(value: str) -> bool:
    return is_file(value) or is_registered_task(value)


def _one_line(error: Exception, words: Sequence[str]) -> str:
    for word in words:
        if unknown := _unknown_key(word, words):
            return unknown
    return " ".join(str(error).split())


# The commands in reports of earlier versions name features by their letters.
_FORMER_KEYS = {f"engine.{one.letter}": f", it is now {one.key}" for one in FEATURES if one.letter}


def _unknown_key(word: str, words: Sequence[str]) -> str:
    """Why the key of an override does not exist; empty where it does."""
    override = parsed(word)
    if override.is_add() or key_of(word).startswith("hydra.") or override.get_key_element() in group_options(words):
        return ""
    known = known_keys()
    key = override.key_or_group
    return "" if key in known else f"{key}: unknown key{_FORMER_KEYS.get(key) or did_you_mean(key, known)}"
