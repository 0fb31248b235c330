"""The memory of arguments: address, number of elements and element type, without a copy.

A call accepts numpy arrays (also of ml_dtypes), torch tensors, JAX arrays, and all objects with
the buffer protocol, `__array_interface__` or DLPack. The elements must be contiguous, in C order.
A `Buffer` keeps its memory alive.
"""

from __future__ import annotations

import ctypes
from math import prod

from . import _abi, _dtypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class Buffer:
    """The memory of one argument. `device` is None for host memory."""

    __slots__ = ("address", "count", "device", "dtype", "is_writable", "keep", "shape", "source")

    def __init__(
        self,
        source: Any,
        address: int,
        shape: tuple[int, ...],
        dtype: int,
        is_writable: bool = True,
        device: int | None = None,
        keep: Any = None,
    ) -> None:
        self.source = source
        self.address = address
        self.shape = shape
        self.count = prod(shape)
        self.dtype = dtype
        self.is_writable = is_writable
        self.device = device
        self.keep = keep

    @property
    def nbytes(self) -> int:
        return self.count * _dtypes.SIZES[self.dtype]


def read(source: Any, name: str = "the argument") -> Buffer:
    """Returns the memory of an argument that a call reads."""
    kind = type(source)
    reader = _READERS.get(kind)
    if reader is None:
        reader = _READERS[kind] = _reader_of(source, name)
    return reader(source, name)


def write(source: Any, name: str = "the argument") -> Buffer:
    """Returns the memory of an argument that a call writes."""
    buffer = read(source, name)
    if not buffer.is_writable:
        what = "a JAX array cannot change" if is_jax(source) else "it is read-only"
        raise ValueError(f"{name} ({kind_name(source)}) receives the result, but {what}: pass out=")
    return buffer


def kind_name(source: Any) -> str:
    kind = type(source)
    return f"{kind.__module__}.{kind.__qualname__}"


def is_jax(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] in ("jax", "jaxlib")


def is_torch(source: Any) -> bool:
    return hasattr(source, "data_ptr") and hasattr(source, "is_contiguous")


def _reader_of(source: Any, name: str) -> Callable[[Any, str], Buffer]:
    """Chooses how the memory of this type of object is read."""
    if type(source).__module__ == "numpy" and hasattr(source, "__array_interface__"):
        return _read_array_interface
    if is_torch(source):
        return _read_torch
    if is_jax(source) and hasattr(source, "__dlpack__"):
        return _read_dlpack
    try:
        memoryview(source)
        return _read_buffer_protocol
    except TypeError:
        pass
    if hasattr(source, "__array_interface__"):
        return _read_array_interface
    if hasattr(source, "__dlpack__"):
        return _read_dlpack
    raise TypeError(
        f"{name} is a {kind_name(source)}, which gives no access to its memory: pass an array of "
        "numpy, torch or JAX, or an object with the buffer protocol such as bytearray or array"
    )


# The reader of each type of object that was an argument before.
_READERS: dict[type, Callable[[Any, str], Buffer]] = {}


def _not_contiguous(source: Any, name: str, advice: str) -> ValueError:
    return ValueError(
        f"{name} ({kind_name(source)}) is not contiguous in C order, and the library makes no "
        f"hidden copies: pass {advice}"
    )


# The element types of numpy's dtypes that were used before.
_NUMPY_TYPES: dict[Any, int] = {}


def _read_array_interface(source: Any, name: str) -> Buffer:
    interface = source.__array_interface__
    dtype = getattr(source, "dtype", None)
    number = _NUMPY_TYPES.get(dtype) if dtype is not None else None
    if number is None:
        typestr = interface["typestr"]
        # Big-endian numbers. On such a machine the native order is "<" for numpy, too.
        if typestr[0] == ">":
            raise TypeError(f"{name} has the foreign byte order {typestr!r}: pass a converted copy")
        number = _array_interface_type(typestr, dtype, name)
        if dtype is not None:
            _NUMPY_TYPES[dtype] = number
    shape = interface["shape"]
    strides = interface.get("strides")
    if strides is not None and not _is_c_order(shape, strides, _dtypes.SIZES[number]):
        raise _not_contiguous(source, name, "numpy.ascontiguousarray(x)")
    data = interface.get("data")
    if data is None:
        # The memory is that of the buffer protocol.
        return _read_buffer_protocol(source, name)
    address, is_read_only = data
    return Buffer(source, address, shape, number, not is_read_only)


def _array_interface_type(typestr: str, dtype: Any, name: str) -> int:
    kinds = {"i": "int", "u": "uint", "f": "float", "c": "complex", "b": "bool"}
    kind = typestr[1]
    text = getattr(dtype, "name", None)
    if text is None and kind in kinds:
        size = int(typestr[2:])
        text = "bool" if kind == "b" else f"{kinds[kind]}{size * 8}"
    number = _dtypes.BY_NAME.get(text or "")
    if number is None:
        raise TypeError(f"{name} has elements of type {text or typestr}, which no call supports")
    return number


def _is_c_order(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> bool:
    if 0 in shape:
        return True
    expected = size
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


# The element types of torch's dtypes that were used before.
_TORCH_TYPES: dict[Any, int] = {}


def _read_torch(source: Any, name: str) -> Buffer:
    number = _TORCH_TYPES.get(source.dtype)
    if number is None:
        number = _TORCH_TYPES[source.dtype] = _dtypes.dtype_number(source.dtype)
    if str(source.layout) != "torch.strided":
        raise TypeError(f"{name} has the layout {source.layout}; only dense tensors are supported")
    if source.is_conj() or source.is_neg():
        raise ValueError(f"{name} is a lazy conjugate or negation: pass x.resolve_conj()")
    if not source.is_contiguous():
        raise _not_contiguous(source, name, "x.contiguous()")
    device = source.device
    if device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name} is on the device {device}; only cpu and cuda are supported")
    index = None if device.type == "cpu" else device.index
    return Buffer(source, source.data_ptr(), tuple(source.shape), number, True, index)


def _read_dlpack(source: Any, name: str) -> Buffer:
    from . import _dlpack

    tensor = _dlpack.view(source)
    number = _dtypes.DLPACK.get(tensor.code_and_bits)
    if number is None:
        raise TypeError(f"{name} has DLPack's type {tensor.code_and_bits}, which no call supports")
    if not tensor.is_contiguous():
        raise _not_contiguous(source, name, "a contiguous copy")
    writable = not is_jax(source)
    shape, device = tensor.shape, tensor.device
    return Buffer(source, tensor.address, shape, number, writable, device, tensor.capsule)


class _PyBuffer(ctypes.Structure):
    """Py_buffer of Python's C interface."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_is_contiguous = ctypes.pythonapi.PyBuffer_IsContiguous
_is_contiguous.argtypes = (ctypes.POINTER(_PyBuffer), ctypes.c_char)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None

_STRIDES_AND_FORMAT = 0x18 | 0x04


class _HeldBuffer:
    """An acquired view of an object's memory, which is released with this object."""

    __slots__ = ("view",)

    def __init__(self, source: Any) -> None:
        self.view = _PyBuffer()
        _get_buffer(source, ctypes.byref(self.view), _STRIDES_AND_FORMAT)

    def __del__(self, release: Any = _release_buffer, byref: Any = ctypes.byref) -> None:
        release(byref(self.view))


def _read_buffer_protocol(source: Any, name: str) -> Buffer:
    held = _HeldBuffer(source)
    view = held.view
    if not _is_contiguous(ctypes.byref(view), b"C"):
        raise _not_contiguous(source, name, "a contiguous copy")
    number = _format_type((view.format or b"B").decode("ascii", "replace"), name)
    if view.itemsize != _dtypes.SIZES[number]:
        raise TypeError(f"{name} has elements of {view.itemsize} bytes, which no call supports")
    shape = tuple(view.shape[i] for i in range(view.ndim)) if view.ndim else ()
    return Buffer(source, view.buf or 0, shape, number, not view.readonly, None, held)


def _format_type(text: str, name: str) -> int:
    native = "<"
    if text[:1] in ("=", "<", ">", "!"):
        is_foreign = text[0] not in ("=", native)
        number = _dtypes.STANDARD_FORMATS.get(text[1:])
    else:
        is_foreign = False
        number = _dtypes.FORMATS.get(text.lstrip("@"))
    if number is None or is_foreign:
        raise TypeError(f"{name} has elements of the format {text!r}, which no call supports")
    return number


def bytes_buffer(source: Any, name: str = "data") -> tuple[int, int, Any]:
    """Returns address and length in bytes of an argument of bytes, and the object to keep."""
    buffer = read(source, name)
    return buffer.address, buffer.nbytes, buffer


def new_like(source: Any, shape: tuple[int, ...], dtype: int | None = None) -> Any:
    """Returns new memory for a result, of the same kind as an argument.

    The kind is torch for a torch tensor, and numpy for an array of numpy or JAX. Other objects
    give a memoryview. `as_result` converts the memory for JAX.
    """
    if is_torch(source):
        return source.new_empty(shape)
    if hasattr(source, "__array_interface__") or hasattr(source, "__dlpack__"):
        import numpy

        number = read(source).dtype if dtype is None else dtype
        return numpy.empty(shape, _dtypes.numpy_dtype(number))
    number = read(source).dtype if dtype is None else dtype
    view = memoryview(bytearray(prod(shape) * _dtypes.SIZES[number]))
    format_ = next((text for text, it in _dtypes.FORMATS.items() if it == number), None)
    return view if format_ in (None, "B", "c") or len(format_) > 1 else view.cast(format_)


def as_result(source: Any, memory: Any) -> Any:
    """Converts the memory of `new_like` to the kind of the argument."""
    if is_jax(source):
        import jax.numpy

        return jax.numpy.asarray(memory)
    return memory


DEVICE_HOST = _abi.DIST_DEVICE_HOST
