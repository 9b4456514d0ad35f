"""What was measured, beside what is wanted."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

_WIDTHS: Final = (8, 7, 8, 44, 12, 12)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number; `at_most` and `at_least` say what is wanted of it, where something is."""

    case: str
    nodes: int
    queue: int
    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_met(self) -> bool | None:
        """None where nothing is wanted."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    def wanted(self) -> str:
        if self.at_most is not None:
            return f"<= {self.at_most:,g}"
        return "" if self.at_least is None else f">= {self.at_least:,g}"


@dataclass(eq=False)
class Board:
    """Collects figures and tells each as it comes."""

    tell: Callable[[str], object]
    figures: list[Figure] = field(default_factory=list)

    def head(self) -> None:
        words = ("case", "nodes", "queue", "figure", "measured", "wanted")
        self.tell(self._line(*words, ""))

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        value = f"{figure.value:,.1f} {figure.unit}"
        verdict = {None: "", True: "ok", False: "MISSED"}[figure.is_met]
        nodes, queue = f"{figure.nodes:,}", f"{figure.queue:,}"
        self.tell(self._line(figure.case, nodes, queue, figure.name, value, figure.wanted(), verdict))

    @staticmethod
    def _line(*words: str) -> str:
        return "  ".join(word.ljust(width) for word, width in zip(words, (*_WIDTHS, 0), strict=True)).rstrip()

    def as_json(self) -> list[dict[str, Any]]:
        return [{**asdict(figure), "is_met": figure.is_met} for figure in self.figures]
