"""What jobs wrote while they ran."""

from apps.core.errors import InvalidInput
from apps.execution.backends.base import LogChunk, Stream
from apps.execution.backends.choice import backend_of
from apps.jobs.models import Allocation

MOST_BYTES = 1024 * 1024
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


def read_log(*, allocation: Allocation, rank: int, stream: str, offset: int, limit: int) -> LogChunk:
    """A piece of what one replica of an attempt wrote. Who may read it is for the caller to ask.

    Args:
        rank: Which replica, from 0.
        stream: stdout or stderr.
        offset: Bytes from the beginning; behind the end, `next_offset` tells where that is.
        limit: Most bytes to read; at most a MiB is.

    Raises:
        InvalidInput: if an argument is out of its range.
        OutsideError: if the backend does not answer.
    """
    known = next((name for name in STREAMS if name == stream), None)
    if known is None:
        raise InvalidInput.of("stream", f"must be one of {', '.join(STREAMS)}", "not_a_choice")
    for name, value, least in (("rank", rank, 0), ("offset", offset, 0), ("limit", limit, 1)):
        if not least <= value < 2**62:
            raise InvalidInput.of(name, f"must be {least} or more", "out_of_range")
    backend = backend_of(allocation.cluster)
    return backend.read_log(
        allocation.pk, rank=rank, stream=known, offset=offset, limit=min(limit, MOST_BYTES)
    )
