"""What stands around every page: the menu, the site, who is signed in, and the scheduler's pulse."""

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Final

from django.http import HttpRequest
from django.urls import reverse

from apps.core import clock
from apps.inventory import selectors as inventory
from apps.notices import selectors as notices
from apps.power.response import Phase
from apps.scheduling import board
from apps.scheduling import selectors as scheduling
from apps.scheduling.models import Pass
from apps.scheduling.response import selectors as response
from apps.teams import policies
from apps.teams import selectors as teams
from apps.teams.models import User

# The slow beat plans at least once in this time; three missed beats are worth a warning.
_PASS_IS_LATE_AFTER: Final = timedelta(seconds=90)
_MOVING: Final = (Phase.RAMPING, Phase.ACTIVE, Phase.RECOVERING)


@dataclass(frozen=True)
class Link:
    key: str
    label: str
    icon: str
    url: str
    is_current: bool
    short: str = ""


@dataclass(frozen=True)
class Group:
    title: str
    links: tuple[Link, ...]


_MENU: Final = (
    ("Operate", ("overview", "queue", "nodes")),
    ("Capacity", ("reservations", "utilization", "quotas")),
    ("Facility", ("power",)),
    ("Govern", ("passes", "policy", "audit", "settings")),
)
_LABELS: Final = {
    "overview": ("Overview", "layout-dashboard"),
    "queue": ("Queue", "list-details"),
    "nodes": ("Nodes", "server-2"),
    "reservations": ("Reservations", "calendar-event"),
    "utilization": ("Utilization", "gauge"),
    "quotas": ("Quotas", "users-group"),
    "power": ("Power & response", "bolt"),
    "passes": ("Scheduler", "activity"),
    "policy": ("Policy", "adjustments"),
    "audit": ("Audit trail", "history"),
    "settings": ("Settings", "settings"),
}
# Which entry of the menu a page belongs to, where its address does not begin like the entry's.
_BELONGS_TO: Final = {"/jobs/": "queue"}


class Frame:
    """Read when a page is drawn, and only what it uses: a live part needs none of it."""

    def __init__(self, request: HttpRequest) -> None:
        assert isinstance(request.user, User)
        self._request, self._user = request, request.user
        self.now = clock.now()

    def _link(self, key: str) -> Link:
        label, icon = _LABELS[key]
        url = reverse(f"dashboard:{key}")
        path = self._request.path
        owner = next((name for prefix, name in _BELONGS_TO.items() if path.startswith(prefix)), "")
        is_current = owner == key or (path == url if url == "/" else path.startswith(url))
        short = {"reservations": "Reserve", "power": "Power"}.get(key, label)
        return Link(key, label, icon, url, is_current, short)

    @property
    def menu(self) -> tuple[Group, ...]:
        hidden = () if policies.may_see_vtns(self._user) else ("settings",)
        return tuple(
            Group(title, tuple(self._link(key) for key in keys if key not in hidden)) for title, keys in _MENU
        )

    @property
    def tabbar(self) -> tuple[Link, ...]:
        return tuple(self._link(key) for key in ("overview", "queue", "reservations", "power"))

    @cached_property
    def site(self) -> inventory.Site:
        return inventory.site()

    @cached_property
    def n_waiting(self) -> int:
        return board.n_waiting(self._user)

    @cached_property
    def last_pass(self) -> Pass | None:
        # Every page has the pulse and the bell: one query asks for both.
        told = notices.unread_of(self._user)
        found = scheduling.passes().annotate(n_unread=told).order_by("-id").first()
        if found is not None:
            self.n_unread = found.n_unread
        return found

    @property
    def is_pass_late(self) -> bool:
        return self.last_pass is not None and self.now - self.last_pass.started_at > _PASS_IS_LATE_AFTER

    @property
    def pass_ms(self) -> float | None:
        """How long the last pass took, all phases."""
        if self.last_pass is None or not isinstance(self.last_pass.phase_ms, dict):
            return None
        return (
            float(sum(ms for ms in self.last_pass.phase_ms.values() if isinstance(ms, int | float))) or None
        )

    @cached_property
    def _grid_events(self) -> list[response.Standing]:
        return response.events_of_the_hour(self.now)

    @property
    def grid_event(self) -> response.Standing | None:
        """The demand-response event that everybody should know of; one query."""
        return next(iter(self._grid_events), None)

    @property
    def n_grid_events(self) -> int:
        """Of those, how many move loads now."""
        return sum(one.phase in _MOVING for one in self._grid_events)

    @cached_property
    def n_unread(self) -> int:
        """Notices that this person has not seen; 100 stands for that many or more."""
        if self.last_pass is not None:
            return self.n_unread  # which it has brought along
        return notices.n_unread(self._user)

    @property
    def person(self) -> str:
        return self._user.get_full_name() or self._user.get_username()

    @cached_property
    def role(self) -> str:
        return teams.role_words(self._user)


def frame(request: HttpRequest) -> dict[str, object]:
    """Context processor of every page of who is signed in."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {}
    return {"frame": frame_of(request)}


def frame_of(request: HttpRequest) -> Frame:
    """The frame of this request; what a page has read of it already is not read again."""
    known = getattr(request, "frame", None)
    if not isinstance(known, Frame):
        known = Frame(request)
        request.frame = known  # type: ignore[attr-defined]  # kept where the next one looks
    return known
