"""Numbers in a form of many: each is a cell that knows what is stored, what was typed, and what is wrong with it."""

from dataclasses import dataclass
from typing import Final

MOST: Final = 1_000_000


@dataclass
class Cell:
    """One number of the form: what is stored, what was typed, and what is wrong with it."""

    name: str
    stored: str
    typed: str
    label: str
    error: str = ""
    was: str = ""

    @property
    def is_changed(self) -> bool:
        return self.typed != self.stored

    def number(self) -> int | None:
        """The count that was typed; None, with the error set, where it is none."""
        if self.typed.isascii() and self.typed.isdigit() and int(self.typed) <= MOST:
            return int(self.typed)
        self.error = f"must be a whole number from 0 to {MOST:,}".replace(",", "\u202f")
        return None
