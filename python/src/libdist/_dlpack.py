"""Reads a tensor from a DLPack capsule, without a copy."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class TensorView:
    """A tensor of another library; `capsule` keeps its memory alive."""

    __slots__ = ("address", "capsule", "code_and_bits", "device", "shape", "strides")

    def __init__(self, capsule: Any) -> None:
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype = c_void_p
        get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
        address = get_pointer(capsule, b"dltensor")
        tensor = _Tensor.from_address(address)
        if tensor.lanes != 1:
            raise TypeError("a DLPack tensor of vectors (more than one lane) is not supported")
        dimensions = range(tensor.ndim)
        self.capsule = capsule
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.code_and_bits = (tensor.code, tensor.bits)
        self.shape = tuple(tensor.shape[i] for i in dimensions)
        # Without strides, the elements are contiguous.
        self.strides = tuple(tensor.strides[i] for i in dimensions) if tensor.strides else None
        if tensor.device_type in (CPU, CUDA_HOST):
            self.device: int | None = None
        elif tensor.device_type in (CUDA, CUDA_MANAGED):
            self.device = tensor.device_id
        else:
            raise TypeError(f"DLPack's device type {tensor.device_type} is not supported")

    def is_contiguous(self) -> bool:
        """Returns whether the elements are contiguous, in C order."""
        if self.strides is None:
            return True
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides)):
            if extent == 0:
                return True
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True


def view(source: Any) -> TensorView:
    """Returns the tensor of an object that has `__dlpack__`."""
    return TensorView(source.__dlpack__())
