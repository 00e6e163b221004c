"""YAML that users write: plain content of bounded size, with errors in one line."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from ktbench.spec.errors import is_utf8

# Files of settings have a few KB. What goes beyond takes PyYAML seconds to minutes.
MOST_BYTES = 1 << 18
_MOST_VALUES = 10_000
_MOST_LEVELS = 32
# Raised by PyYAML for a scalar that does not match its tag, and where it takes a value for another type.
_PARSE_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def plain_yaml(text: str, where: str, of: str) -> Any:
    """Content of YAML; a key that is there twice is refused.

    Raises ValueError in one line that begins with `where`: for what is not YAML of `of`, has more than 256 KiB, 10,000
    values with aliases written out, or 32 levels.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"{where}: is longer than {MOST_BYTES // 1024} KiB, no YAML of {of} is")
    try:
        return yaml.load(text, _Bounded)
    except yaml.YAMLError as error:
        raise ValueError(f"{where}: is not YAML of {of}: {' '.join(str(error).split())}") from None
    except _PARSE_ERRORS as error:
        raise ValueError(f"{where}: is not YAML of {of} ({type(error).__name__})") from None


class _Bounded(yaml.SafeLoader):
    """Counts values before any is constructed: an alias stands for all that its anchor has.

    As in OmegaConf, 1e9 is a number and a date a text.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = self._seen = 0
        self._values: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """See `yaml.composer`."""
        self._seen, self._level = self._seen + 1, self._level + 1
        if self._level > _MOST_LEVELS:
            raise yaml.YAMLError(f"nested more than {_MOST_LEVELS} levels deep")
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._level -= 1
        if node is not None:
            self._count(node, is_alias)
        return node

    def _count(self, node: yaml.Node, is_alias: bool) -> None:
        """Note how many values a node stands for."""
        if is_alias:
            if id(node) not in self._values:
                raise yaml.YAMLError("an alias stands inside of its own anchor")
        elif isinstance(node, yaml.ScalarNode):
            self._values[id(node)] = 1
            if not is_utf8(node.value):  # escapes can name halves of characters
                raise yaml.YAMLError("a text is not UTF-8")
        else:
            inner = [one for entry in node.value for one in (entry if isinstance(entry, tuple) else (entry,))]
            self._values[id(node)] = 1 + sum(self._values[id(one)] for one in inner)
        if max(self._seen, self._values[id(node)]) > _MOST_VALUES:
            raise yaml.YAMLError(f"more than {_MOST_VALUES:,} values, with aliases written out")

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """See `yaml.constructor`."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag == "tag:yaml.org,2002:str":
                if key.value in seen:
                    raise yaml.YAMLError(f"the key {key.value} is there twice")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Bounded.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)
