"""Errors that the user can mend, checks shared by specs, and messages of one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_type_hints

from msgspec import Meta


def at_least(key: str, value: float | None, least: float) -> None:
    """Raises ValueError where `value` is below `least`; None is allowed."""
    if value is not None and value < least:
        raise ValueError(f"{key}={value}: must be at least {least}")


def field_meta(hint: Any) -> Meta:
    """What a field says of itself: `Annotated[int, Meta(ge=1, description=…)]`, also of what may be None."""
    return next(_metas(hint), Meta())


def _metas(hint: Any) -> Iterator[Meta]:
    yield from (one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Meta))
    for part in get_args(hint):
        yield from _metas(part)


@cache
def _limits(kind: type[Any]) -> tuple[tuple[str, Meta], ...]:
    """The fields of a dataclass that have a limit."""
    found = ((name, field_meta(hint)) for name, hint in get_type_hints(kind, include_extras=True).items())
    return tuple((name, meta) for name, meta in found if (meta.ge, meta.gt) != (None, None))


def check_ranges(spec: Any, key: str) -> None:
    """Raises ValueError for a number below the limit that its field has; words and None are allowed."""
    for name, meta in _limits(type(spec)):  # type: ignore[arg-type]  # classes are hashable
        value = getattr(spec, name)
        if isinstance(value, int | float) and (why := below_limit(value, meta)):
            raise ValueError(f"{key}.{name}={value}: {why}")


def below_limit(value: float, meta: Meta) -> str:
    """Why a number is refused; empty where it is at or above its limit."""
    if meta.ge is not None and not value >= meta.ge:
        return f"must be at least {meta.ge}"
    return f"must be above {meta.gt}" if meta.gt is not None and not value > meta.gt else ""


_MOST_CHARACTERS = 100  # of the name of a file or folder, to which endings are added
_MOST_NUMBER = 1e100


def number_at_least(key: str, value: float | None, least: float) -> None:
    """Raises ValueError where `value` is below `least`, or no number to compute with; None is allowed."""
    if value is not None and not least <= value <= _MOST_NUMBER:
        raise ValueError(f"{key}={value}: must be at least {least:g}, and below {_MOST_NUMBER:g}")


def fields_at_least(of: object, least: float, *names: str) -> None:
    """As `number_at_least` for attributes of an object, which its class names."""
    for name in names:
        number_at_least(f"{type(of).__name__}.{name}", getattr(of, name), least)


def require_name(key: str, name: str) -> None:
    """Raises ValueError for what cannot be the name of a new file or folder where it is made, and of no other."""
    if name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"{key}={shown(repr(name))}: must be a name without folders, of printable characters")
    if not 1 <= len(name.encode()) <= _MOST_CHARACTERS or name.startswith("."):
        raise ValueError(
            f"{key}={shown(repr(name))}: must have 1 to {_MOST_CHARACTERS} characters, of which the first is no dot"
        )


def is_utf8(text: str) -> bool:
    """Whether a text has no half of a character, as names of files that are not UTF-8 give."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def repeated(names: Sequence[str]) -> str | None:
    """The first name that is there more than once; None where all differ."""
    return next((name for name in names if names.count(name) > 1), None)


_MOST_LISTED = 13  # names in a message
_LEAST_WITHIN = 4  # characters of a word that is looked for within names


def did_you_mean(word: object, names: Iterable[str], cutoff: float = 0.5) -> str:
    """`, did you mean X?` with the closest of the names, or one that has the word in it; empty where none is close."""
    text, known = str(word), list(names)
    within = [name for name in known if len(text) >= _LEAST_WITHIN and text in name]
    close = get_close_matches(text, known, n=1, cutoff=cutoff) or within
    return f", did you mean {close[0]}?" if close else ""


def instead(word: object, names: Iterable[str], listing: str = "", cutoff: float = 0.6) -> str:
    """What follows the refusal of a word that is none of the names: the closest of them, and what there is.

    Many names are not listed beside a close one, and in part without one; `listing` is the command that prints all.
    """
    known = list(names)
    near = did_you_mean(word, known, cutoff)
    if not known:
        return "; there is none"
    if len(known) <= _MOST_LISTED:
        return f"{near}; allowed are {', '.join(known)}"
    if near:
        return near + f" (`{listing}` has all)" * bool(listing)
    all_of = f"{len(known)} in all" + f": `{listing}`" * bool(listing)
    return f"; allowed are {', '.join(known[:_MOST_LISTED])}, … ({all_of})"


# Exit codes of a command, and of a process that carries out a part of one.
BAD_REQUEST, FAILED, INTERRUPTED = 2, 4, 130


class RequestError(ValueError):
    """The request cannot be carried out as written: one line that says what, where and what is allowed."""


@contextmanager
def refusing() -> Iterator[None]:
    """Inside, and inside a function that it decorates, a ValueError is a request that cannot be carried out."""
    try:
        yield
    except ValueError as error:
        raise RequestError(str(error)) from None


_MOST_SHOWN = 80  # characters of a value in a message


def shown(value: object) -> str:
    """A value in a message: of a long one its beginning."""
    text = str(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text):,} characters)"


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """A text of several lines for a terminal: control characters, which could move its cursor, as escapes."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    """A text for a place that a newline would end, such as a comment: newlines and tabs as escapes, too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


_LONGEST, _ENDING = 2000, 300  # characters of a message, and of its end


def bounded(text: str) -> str:
    """A message that fits a screen: of a long one its beginning, which names what is wrong, and its end."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - _ENDING]} ... {text[-_ENDING:]}"


def error_text(error: Exception) -> str:
    """The message of an error; of a system call the system's own, with the file that it is about."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
