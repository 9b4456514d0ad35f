"""Power limits of this machine's NVIDIA devices, through the driver's own library.

Needs nothing but the standard library, since the shepherd loads it by its path. Setting a limit takes root, or the
right that an administrator gave to the service's user; without it the driver says so, and so does the answer here.

Source of names and codes: NVIDIA Management Library (NVML) API reference.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
NAMED_BY = "SWITCHYARD_NVML"  # another file of that library; tests bring their own
_SUCCESS = 0


class NvmlError(Exception):
    """The driver refuses, and why."""


def is_there() -> bool:
    """Whether the driver's library can be loaded here, and knows a device."""
    try:
        with _open() as library:
            n = ctypes.c_uint()
            _require(library, library.nvmlDeviceGetCount_v2(ctypes.byref(n)))
            return n.value > 0
    except (OSError, NvmlError):
        return False


def limits_mw(indices: Sequence[int]) -> list[int]:
    """What these devices are limited to now, in milliwatts."""
    with _open() as library:
        return [_limit_mw(library, _device(library, index)) for index in indices]


def hold(indices: Sequence[int], share: float, most_mw: Sequence[int] = ()) -> float:
    """Limit these devices to a share of their default limit; return the largest share that is set now.

    A device that cannot go so low is set to the lowest it takes. Raises NvmlError; OSError without a driver.

    Args:
        most_mw: By device, what it never gets more than: the limit that somebody had set before.
    """
    largest = 0.0
    with _open() as library:
        for place, index in enumerate(indices):
            device = _device(library, index)
            default = ctypes.c_uint()
            least, most = ctypes.c_uint(), ctypes.c_uint()
            _require(library, library.nvmlDeviceGetPowerManagementDefaultLimit(device, ctypes.byref(default)))
            _require(
                library,
                library.nvmlDeviceGetPowerManagementLimitConstraints(
                    device, ctypes.byref(least), ctypes.byref(most)
                ),
            )
            bound = min(most.value, most_mw[place]) if most_mw else most.value
            wanted = min(max(round(share * default.value), least.value), bound)
            _require(library, library.nvmlDeviceSetPowerManagementLimit(device, ctypes.c_uint(wanted)))
            largest = max(largest, _limit_mw(library, device) / default.value)
    return largest


def _limit_mw(library: Any, device: ctypes.c_void_p) -> int:
    now = ctypes.c_uint()
    _require(library, library.nvmlDeviceGetPowerManagementLimit(device, ctypes.byref(now)))
    return now.value


@contextmanager
def _open() -> Iterator[Any]:
    library = ctypes.CDLL(os.environ.get(NAMED_BY) or LIBRARY)
    library.nvmlErrorString.restype = ctypes.c_char_p
    _require(library, library.nvmlInit_v2())
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _device(library: Any, index: int) -> ctypes.c_void_p:
    device = ctypes.c_void_p()
    _require(library, library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)))
    return device


def _require(library: Any, code: int) -> None:
    if code != _SUCCESS:
        said = library.nvmlErrorString(code) or b""
        raise NvmlError(said.decode(errors="replace") or f"NVML answers {code}")
