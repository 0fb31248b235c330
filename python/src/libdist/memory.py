"""Arrays in memory that other ranks of the host access without a copy."""

from __future__ import annotations

import ctypes
import weakref
from math import prod

from . import _abi, _dtypes
from ._library import check, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .group import Group


def empty(shape: Any, dtype: Any = "f32", *, group: Group | None = None) -> Any:
    """Allocates an array, whose contents are undefined, in the arena of a group (the world).

    The array is a numpy array; bf16 and f8 need the package ml_dtypes. Collectives on such arrays
    need no staging between the ranks of a host. The memory is freed with the array.
    """
    if group is None:
        from .process import world

        group = world()
    import numpy

    number = _dtypes.dtype_number(dtype)
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    bytes_ = prod(extents) * _dtypes.SIZES[number]
    element = _dtypes.numpy_dtype(number)
    if bytes_ == 0:
        return numpy.empty(extents, element)
    memory = _allocate(group, bytes_)
    return numpy.frombuffer(memory, numpy.uint8).view(element).reshape(extents)


def _allocate(group: Group, size: int) -> Any:
    """Returns an object of ctypes over new memory, which frees the memory at its end."""
    address = ctypes.c_void_p()
    status = lib.dist_mem_alloc(group._handle, size, _abi.DIST_DEVICE_HOST, ctypes.byref(address))
    check(status, "empty", group._handle)
    assert address.value is not None
    memory = (ctypes.c_char * size).from_address(address.value)
    finalizer = weakref.finalize(memory, lib.dist_mem_free, address.value)
    # At the end of the process the system frees the memory. Operations may still use it.
    finalizer.atexit = False
    return memory
