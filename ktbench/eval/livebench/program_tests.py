"""The tests of a coding question: as lists, or as LiveBench packs them."""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib

from ktbench.eval.livebench import fields
from ktbench.eval.livebench.fields import Row
from ktbench.eval.livebench.question import ProgramTest

LIMIT_BYTES = 64 * 2**20  # of one question's tests, unpacked


def read_tests(row: Row) -> tuple[ProgramTest, ...]:
    """The tests of a row: `tests` with `test_type`, or public_test_cases and private_test_cases. Raises ValueError."""
    kind = fields.text(row, "test_type")
    plain = [_test(case, kind, "tests") for case in fields.listed(row, "tests")]
    packed = [
        _test(case, "", name) for name in ("public_test_cases", "private_test_cases") for case in _cases(row, name)
    ]
    return (*plain, *packed)


def func_name(row: Row) -> str:
    """The function that functional tests call: the row's own, or the one of original_json.metadata. '' for none."""
    own = fields.text(row, "func_name")
    return own or fields.text(_inner(_inner(row, "original_json"), "metadata"), "func_name")


def _inner(row: Row, name: str) -> Row:
    """An object within a row, given as such or as text."""
    value = row.get(name)
    if isinstance(value, dict):
        return value
    said = fields.text(row, name)
    return fields.read_object(said) if said else {}


def _test(case: object, kind: str, name: str) -> ProgramTest:
    if not isinstance(case, dict):
        raise ValueError(f"{name}: each must be an object with input and output")
    return ProgramTest(
        given=_side(case, "input", name),
        wanted=_side(case, "output", name),
        functional=(kind or fields.text(case, "testtype")) == "functional",
    )


def _side(case: Row, side: str, name: str) -> str:
    if not isinstance(value := case.get(side), str):
        raise ValueError(f"{name}: each must have a text as {side}")
    return value


def _cases(row: Row, name: str) -> list[object]:
    """The cases of a field of upstream's rows: a list, its JSON, or its JSON pickled, compressed and in base64."""
    value = row.get(name)
    if isinstance(value, list):
        return value
    said = fields.text(row, name)
    if not said:
        return []
    try:
        cases = json.loads(said if said.lstrip().startswith("[") else _unpacked(said))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: neither JSON nor packed JSON: {error}") from None
    if not isinstance(cases, list):
        raise ValueError(f"{name}: must be a list of cases")
    return cases


def _unpacked(said: str) -> str:
    """The text that was pickled, compressed and put into base64. The pickle is read as data and never run."""
    try:
        unpacker = zlib.decompressobj()
        pickle = unpacker.decompress(base64.b64decode(said), LIMIT_BYTES)
        if unpacker.unconsumed_tail:
            raise ValueError(f"more than {LIMIT_BYTES} bytes")
        texts = [held for _, held, _ in pickletools.genops(pickle) if isinstance(held, str)]
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(texts) != 1:
        raise ValueError("the pickle holds something else than one text")
    return texts[0]
