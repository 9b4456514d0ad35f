"""Keeps one line of the solver out of the site's output."""

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final

STDOUT: Final = 1
CHATTER: Final = b"HighsMipSolverData::"
_LIBC: Final = ctypes.CDLL(None)
_ONE: Final = Lock()  # the descriptor belongs to the whole process


@contextmanager
def without_chatter() -> Iterator[None]:
    """Standard output without the lines that HiGHS prints past its own log settings.

    HiGHS says by a bare `printf` that it looks again at a solution, whatever `disp` is, and that breaks output that a
    program reads. So for as long as the solver runs the descriptor leads to a file; all
    else that was written meanwhile, by other threads as well, is passed on afterwards.
    """
    with _ONE, tempfile.TemporaryFile() as kept:
        _flush()
        try:
            real = os.dup(STDOUT)
        except OSError:
            real = STDOUT
        if STDOUT in (real, kept.fileno()):  # it was closed, as of a daemon: nobody reads it
            yield
            if real != STDOUT:
                os.close(real)
            return
        try:
            os.dup2(kept.fileno(), STDOUT)
            try:
                yield
            finally:
                _flush()
                os.dup2(real, STDOUT)
        finally:
            os.close(real)
            kept.seek(0)
            for line in kept:
                if not line.startswith(CHATTER):
                    os.write(STDOUT, line)


def _flush() -> None:
    with suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    _LIBC.fflush(None)  # what the solver printed stands in the buffer of C
