"""What an import knows of the site, and what it answers.

Pure. A job is answered as the fields of a JobRequest, not yet checked: who asks may still add what is missing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, Literal

Severity = Literal["understood", "ignored", "refused"]

MAX_TEXT: Final = 1_000_000  # characters of a script or of manifests
MAX_JOBS: Final = 100  # jobs that one text may mean
MAX_NOTES: Final = 1000


class Unreadable(ValueError):
    """The text as a whole cannot be read, so there is nothing to say of its parts.

    Attributes:
        line: Where, from 1; None if it is nowhere in particular.
    """

    def __init__(self, message: str, *, line: int | None = None, code: str = "unreadable") -> None:
        super().__init__(message)
        self.line, self.code = line, code


@dataclass(frozen=True, slots=True)
class Site:
    """The names that a text may mean here, and the time it is read at.

    Attributes:
        now: An aware instant, for times such as `now+1hour`.
        zone: In which a time without a zone is meant.
    """

    now: datetime
    zone: tzinfo = UTC
    accelerators: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """What became of one option.

    Attributes:
        severity: `refused` if the job would not be the one that was meant, so that nothing may be submitted.
        where: `line 3` of a script, or the path in a manifest: `Job/train: spec.template.spec.volumes`.
        option: As it was written, without its value.
        what: What it became, or what does not happen.
        field: Of the job, where it became one.
    """

    severity: Severity
    where: str
    option: str
    what: str
    why: str = ""
    line: int | None = None
    field: str = ""
    job: int = 0


@dataclass(slots=True)
class Imported:
    """The jobs that a text means, and a note for everything that was said in it."""

    format: Literal["sbatch", "kubernetes"]
    jobs: list[dict[str, Any]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        return any(note.severity == "refused" for note in self.notes)


_VENDOR_WORDS: Final = frozenset(
    {
        "nvidia",
        "amd",
        "intel",
        "tesla",
        "instinct",
        "geforce",
        "gpu",
        "pcie",
        "sxm",
        "nvl",
        "oam",
        "hbm2",
        "hbm3",
        "hbm3e",
    }
)
_MEMORY: Final = re.compile(r"\d+g(b|ib)?")


def _words(name: str) -> frozenset[str]:
    """The telling parts of a device's name: `NVIDIA-H100-80GB-HBM3` is h100 and 80g."""
    words = set()
    for word in re.findall(r"[a-z0-9]+", name.lower()):
        # The socket is told apart where it hangs on (v100sxm2), and is no part of the type here.
        bare = re.sub(r"sxm\d?$", "", word)
        if _MEMORY.fullmatch(bare):
            words.add(bare.rstrip("bi"))
        elif bare and bare not in _VENDOR_WORDS:
            words.add(bare)
    return frozenset(words)


def matching_types(wanted: str, known: Iterable[str]) -> list[str]:
    """The accelerator types that a name from elsewhere stands for, by its words; one of that very name alone."""
    known = sorted(known)
    same = [name for name in known if name.lower() == wanted.lower()]
    if same:
        return same
    asked = _words(wanted)
    found = []
    for name in known:
        has = _words(name)
        shared = asked & has
        # One of the two says no more than the other, and what they share is a model, not only a size of memory.
        if shared in (asked, has) and any(
            not _MEMORY.fullmatch(word) and not word.isdigit() for word in shared
        ):
            found.append(name)
    return found


def listed(names: Iterable[str]) -> str:
    """Names in a sentence, some of them where there are many."""
    names = list(names)
    said = ", ".join(names[:8])
    return f"{said} and {len(names) - 8} more" if len(names) > 8 else said or "none"


def plain(number: float) -> int | float:
    """Whole where it is whole, since a count must be."""
    return int(number) if number == int(number) else number
