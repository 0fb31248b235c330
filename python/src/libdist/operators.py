"""Operators of the program, for every collective that reduces."""

from __future__ import annotations

import ctypes
import sys

from . import _abi, _dtypes
from ._library import check, lib, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class Operator:
    """An operator made from a function of Python.

        def larger_norm(lower, inout):
            numpy.copyto(inout, lower, where=abs(lower) > abs(inout))

        op = dist.Operator("larger norm", larger_norm, "f64", commutative=True)
        world.all_reduce(x, op)

    `function` gets two numpy arrays, and leaves the result in the second one; `lower` comes from
    lower ranks. It must be associative, and must not call the library. The library calls it on
    several threads. All ranks use an operator of the same name.
    """

    number: int = 0

    def __init__(self, name: str, function: Callable[[Any, Any], None], dtype: Any, *,
                 commutative: bool = False) -> None:
        import numpy

        element = _dtypes.numpy_dtype(_dtypes.dtype_number(dtype))

        def call(lower: int, inout: int, count: int, size: int, _user: int) -> None:
            try:
                bytes_ = count * size
                memory: Any = ctypes.c_char * bytes_
                function(*(numpy.frombuffer(memory.from_address(it), element)
                           for it in (lower, inout)))
            except BaseException:
                # The library takes no error from an operator; the hook prints it.
                sys.excepthook(*sys.exc_info())

        self.name = name
        # The library calls this object until the operator is released.
        self._function = _abi.dist_op_fn(call)
        out = ctypes.c_int32()
        flags = _abi.DIST_OP_COMMUTATIVE if commutative else 0
        check(lib.dist_op_create(text(name), self._function, element.itemsize, flags, None,
                                 ctypes.byref(out)), "Operator")
        self.number = out.value

    def release(self) -> None:
        """Releases the operator; another one may then use its name."""
        number, self.number = self.number, 0
        if number:
            check(lib.dist_op_release(number), "release")

    def __del__(self, release: Any = lib.dist_op_release) -> None:
        # Works keep their operator alive, so no operation uses it any more.
        if self.number:
            release(self.number)
            self.number = 0
