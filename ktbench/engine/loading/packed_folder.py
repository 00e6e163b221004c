"""Packed weights kept in a folder (`model.packed`): saved layer by layer as they are packed, mapped the next time.

`FOLDER/experts-int8` and `FOLDER/linear-bf16` hold one file for each layer or matrix, and a `manifest.json` that is
written last: without it, files are as if they were not there.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ktbench.engine.loading.weights_id import content_digest, weights_id
from ktbench.engine.protocol import Unsupported
from ktbench.files import NotWritten, append_to, sync_folder, write_whole
from ktbench.spec.errors import error_text
from ktbench.spec.inject import InjectSpec
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.weights import Precision
from ktbench.spec.wire import to_plain

if TYPE_CHECKING:
    from ktbench._kernels import PackedExperts, PackedMatrix

Kind = Literal["experts", "linear"]
P = TypeVar("P", "PackedExperts", "PackedMatrix")
_GIB = 2**30
_VERSION = 1
_MANIFEST, _LOCK, _SUFFIX = "manifest.json", "lock", ".packed"
_FILES = "files"
# What must agree, in the order in which it is compared, and what a message calls it.
_WORDS = {
    "version": "version of the manifest",
    "layout": "version of the packed layout",
    "precision": "precision",
    "domains": "number of domains",
    "layers": "number of layers",
    "weights": "weights",
    "rules": "injection rules",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedPart:
    """Packed weights of one kind and precision in a folder; `identity` is what they depend on, by keys of `_WORDS`."""

    packed: str
    kind: Kind
    identity: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return Path(self.packed, f"{self.kind}-{self.identity['precision']}")

    def is_whole(self) -> bool:
        """Whether the folder has it; False where it has to be packed first.

        Raises ValueError in one line where the folder has that of another model, layout or file.
        """
        if not (file := self.folder / _MANIFEST).is_file():
            return False
        held = self._read(file)
        if key := next((key for key in _WORDS if held.get(key) != self.identity.get(key)), None):
            raise self._refusal(f"differs in its {_WORDS[key]} ({held.get(key)} there, {self.identity.get(key)} here)")
        for name, nbytes in held[_FILES].items():
            if not (found := self.folder / name).is_file() or found.stat().st_size != nbytes:
                raise self._refusal(f"lacks {name}, or has it in another size")
        return True

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            held = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            held = None
        if not isinstance(held, dict) or not isinstance(held.get(_FILES), dict):
            raise self._refusal(f"has no manifest that can be read in {_MANIFEST}")
        return held

    def _refusal(self, why: str) -> ValueError:
        return ValueError(
            f"model.packed={self.packed}: {self.folder.name} {why}; "
            "name another folder, or delete this one to have it packed anew"
        )


def packed_parts(
    model: ModelSpec, *, experts: Precision | None, linear: Precision | None, rules: InjectSpec
) -> tuple[PackedPart, ...]:
    """What `model.packed` keeps of experts and linear layers in these precisions; None: they are not packed."""
    assert model.packed is not None
    found: dict[Kind, dict[str, Any]] = {}
    if experts is not None:
        found["experts"] = {"precision": experts, "domains": 1}
    if linear is not None:
        found["linear"] = {"precision": linear, "rules": content_digest(to_plain(rules.rules))}
    same = {"version": _VERSION, "layers": model.shape.layers, "weights": weights_id(model)}
    return tuple(
        PackedPart(packed=model.packed, kind=kind, identity=same | {"layout": _layout(kind)} | identity)
        for kind, identity in found.items()
    )


def require_room(packed: str, nbytes: int) -> None:
    """Raise ValueError in one line where so many bytes cannot be saved in the folder."""
    above = next(folder for folder in (Path(packed).absolute(), *Path(packed).absolute().parents) if folder.exists())
    if nbytes and not (above.is_dir() and os.access(above, os.W_OK)):
        raise ValueError(f"model.packed={packed}: {above} is no folder that can be written")
    if (free := disk_usage(above).free) < nbytes:
        raise ValueError(
            f"model.packed={packed}: packed weights take {nbytes / _GIB:.1f} GiB, there are {free / _GIB:.1f} free; "
            "name a folder on another disk, or leave it out"
        )


def split_experts(packed: str) -> str:
    """Why experts that are split over domains cannot be kept: their parts lie on NUMA nodes, a file on none."""
    return f"model.packed={packed}: keeps no experts that are split over domains, leave out engine.domains"


def _layout(kind: Kind) -> int:
    from ktbench._kernels import PackedExperts, PackedMatrix

    return PackedExperts.file_version if kind == "experts" else PackedMatrix.file_version


@dataclass(kw_only=True)
class PackedFiles:
    """The files of one part while a network is built: those that are there, or those that are being saved."""

    part: PackedPart
    is_whole: bool
    _saved: dict[str, int] = field(default_factory=dict)

    def take(self, name: str, kind: type[P], pack: Callable[[], P]) -> P:
        """Packed weights, mapped; packed and saved before where the folder does not have them.

        Raises Unsupported in one line for what cannot be saved or mapped; what was saved until then is deleted.
        """
        file = self.part.folder / f"{name}{_SUFFIX}"
        if not self.is_whole:
            self._save(pack(), file)
        try:
            return kind.map(str(file))
        except (OSError, RuntimeError) as error:
            raise Unsupported(f"model.packed={self.part.packed}: {error}; delete {self.part.folder}") from None

    def _save(self, packed: PackedExperts | PackedMatrix, file: Path) -> None:
        try:
            packed.save(str(file))
        except OSError as error:
            raise self._not_kept(str(error)) from None
        self._saved[file.name] = file.stat().st_size

    def finish(self) -> None:
        """Write the manifest of what was saved. Raises Unsupported in one line."""
        if self.is_whole:
            return
        sync_folder(self.part.folder)  # what the manifest lists comes first
        text = json.dumps(self.part.identity | {_FILES: self._saved}, indent=1)
        try:
            write_whole(self.part.folder / _MANIFEST, text, synced=True)
        except NotWritten as error:
            raise self._not_kept(f"{error.path}: {error.reason}") from None

    def _not_kept(self, why: str) -> Unsupported:
        _clear(self.part.folder)
        return Unsupported(
            f"model.packed={self.part.packed}: {why}; nothing was kept, name another folder or leave it out"
        )


# The files of experts and of linear layers; neither without `model.packed`.
PackedFolder = dict[Kind, PackedFiles]


@contextmanager
def open_packed(parts: Sequence[PackedPart]) -> Iterator[PackedFolder]:
    """The parts of a folder, whole at the end unless an exception leaves the block.

    Raises ValueError as `PackedPart.is_whole`, and Unsupported where a part cannot be saved or another process is
    saving it.
    """
    with ExitStack() as locks:
        files: PackedFolder = {part.kind: _open(part, locks) for part in parts}
        yield files
        for file in files.values():
            file.finish()


def _open(part: PackedPart, locks: ExitStack) -> PackedFiles:
    if not part.is_whole():
        locks.enter_context(_saving(part))
    return PackedFiles(part=part, is_whole=part.is_whole())


@contextmanager
def _saving(part: PackedPart) -> Iterator[None]:
    """Saving a part, alone and from the beginning: what an interrupted attempt left is deleted."""
    try:
        part.folder.mkdir(parents=True, exist_ok=True)
        lock = append_to(part.folder / _LOCK)
    except OSError as error:
        raise Unsupported(f"model.packed={part.packed}: {error_text(error)}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unsupported(f"model.packed={part.packed}: another process is packing {part.folder.name}") from None
        if not part.is_whole():
            _clear(part.folder)
        yield


def _clear(folder: Path) -> None:
    for file in folder.glob(f"*{_SUFFIX}*"):
        file.unlink()
