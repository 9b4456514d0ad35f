"""YAML documents, bounded: read whole or refused, before anything in them is looked at.

Pure. An alias may stand for as much as it likes only as far as all it stands for, written out, stays within the bound.
"""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from apps.core.strict import path_of
from apps.jobs.imports.facts import Unreadable

MAX_YAML: Final = 256_000  # characters
_DEEPEST: Final = 48
_MAX_NODES: Final = 40_000  # of all documents, aliases written out
_MAX_DOCUMENTS: Final = 200

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Document:
    """One document: its value, and the line at which each path of it begins."""

    def __init__(self, value: Any, lines: dict[str, int], line: int) -> None:
        self.value, self.lines, self.line = value, lines, line


def documents(text: str, *, longest: int = MAX_YAML, most_nodes: int = _MAX_NODES) -> list[Document]:
    """All documents of a text that are not empty.

    Args:
        longest: Characters of the text.
        most_nodes: Of all documents, aliases written out.

    Raises:
        Unreadable: if it is no YAML, holds a name twice or an object of a kind of its own, or is too large or too deep.
    """
    if len(text) > longest:
        raise Unreadable(f"has more than {longest} characters", code="too_long")
    try:
        _measure(text, most_nodes)
        return list(_read(text, most_nodes))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else None
        raise Unreadable(f"is no YAML: {error.problem}", line=line) from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, TypeError, AttributeError) as error:
        if isinstance(error, Unreadable):
            raise
        said = str(error).split("\n", 1)[0]
        raise Unreadable(f"is no YAML: {said[:200]}") from None


def _measure(text: str, most_nodes: int) -> None:
    """By the flat stream of events, which takes no stack: nothing deep is handed to what reads by recursion."""
    depth = n = n_documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        n += isinstance(event, yaml.NodeEvent)
        n_documents += isinstance(event, yaml.DocumentStartEvent)
        line = event.start_mark.line + 1 if event.start_mark is not None else None
        if depth > _DEEPEST:
            raise Unreadable(f"is more than {_DEEPEST} levels deep", line=line, code="too_deep")
        if n > most_nodes or n_documents > _MAX_DOCUMENTS:
            raise Unreadable("holds too much", line=line, code="too_long")


def _read(text: str, most_nodes: int) -> Iterator[Document]:
    loader = _Loader(text)
    n_left = most_nodes
    try:
        while loader.check_node():
            node = loader.get_node()
            n_left -= _weight(node, {}, frozenset(), most_nodes)
            if n_left < 0:
                raise Unreadable("holds too much once its aliases are written out", code="too_long")
            lines: dict[str, int] = {}
            _find_lines(node, (), lines)
            value = loader.construct_document(node)
            if value is not None:
                yield Document(value, lines, node.start_mark.line + 1)
    finally:
        loader.dispose()


def _weight(node: yaml.Node, known: dict[int, int], above: frozenset[int], most: int) -> int:
    """Nodes below this one, each as often as it is stood for."""
    if id(node) in above or len(above) > _DEEPEST:
        raise Unreadable("holds itself, or is too deep", line=node.start_mark.line + 1, code="too_deep")
    if id(node) not in known:
        inside = above | {id(node)}
        below: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            below = node.value
        elif isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
        known[id(node)] = min(1 + sum(_weight(one, known, inside, most) for one in below), 10 * most)
    return known[id(node)]


def _find_lines(node: yaml.Node, steps: tuple[str | int, ...], lines: dict[str, int]) -> None:
    lines.setdefault(path_of(steps), node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, one in enumerate(node.value):
            _find_lines(one, (*steps, index), lines)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, one in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and name in seen and name != "<<":
                raise Unreadable(f"{path_of((*steps, name))} is there twice", line=line, code="duplicate")
            seen.add(name)
            _find_lines(one, (*steps, name), lines)
            lines[path_of((*steps, name))] = line
