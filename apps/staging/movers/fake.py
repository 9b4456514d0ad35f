"""A mover for tests of what stands above: it does as it is told, and remembers what it was asked."""

from datetime import datetime

from apps.core.errors import OutsideError
from apps.staging.movers.base import MoveOrder, MoveState, Progress


class FakeMover:
    """The contract, kept in memory. `say` sets what the next looks see; `is_away`, that it cannot be reached."""

    is_simulated = False

    def __init__(self) -> None:
        self.started: list[MoveOrder] = []
        self.cancelled: list[str] = []
        self.is_away = False
        self._seen: dict[str, Progress] = {}

    def say(self, state: MoveState, **more: object) -> None:
        """Of whatever was started last."""
        self._seen[self.started[-1].key] = Progress(state=state, **more)  # type: ignore[arg-type]  # a test's word

    def handle_of(self, key: str) -> str:
        return key

    def start(self, order: MoveOrder, *, at: datetime) -> str:
        self._reach()
        state = self._seen.get(order.key, Progress(state=MoveState.UNKNOWN)).state
        if state not in (MoveState.DONE, MoveState.CANCELLED, MoveState.RUNNING):
            self.started.append(order)
            self._seen[order.key] = Progress(state=MoveState.RUNNING)
        return order.key

    def poll(self, handle: str, *, at: datetime) -> Progress:
        self._reach()
        return self._seen.get(handle, Progress(state=MoveState.UNKNOWN))

    def cancel(self, handle: str, *, at: datetime) -> None:
        self._reach()
        self.cancelled.append(handle)
        if self.poll(handle, at=at).state != MoveState.DONE:
            self._seen[handle] = Progress(state=MoveState.CANCELLED)

    def _reach(self) -> None:
        if self.is_away:
            raise OutsideError("It cannot be reached.")
