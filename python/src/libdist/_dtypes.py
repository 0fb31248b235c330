"""Element types and operators: their numbers, and their names in numpy, torch and the library."""

from __future__ import annotations


from . import _abi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .operators import Operator

# Per element type: the library's name, the names in numpy, ml_dtypes and torch, and the size.
_TABLE: tuple[tuple[int, str, tuple[str, ...], int], ...] = (
    (_abi.DIST_I8, "i8", ("int8",), 1),
    (_abi.DIST_U8, "u8", ("uint8",), 1),
    (_abi.DIST_I16, "i16", ("int16",), 2),
    (_abi.DIST_U16, "u16", ("uint16",), 2),
    (_abi.DIST_I32, "i32", ("int32",), 4),
    (_abi.DIST_U32, "u32", ("uint32",), 4),
    (_abi.DIST_I64, "i64", ("int64",), 8),
    (_abi.DIST_U64, "u64", ("uint64",), 8),
    (_abi.DIST_F16, "f16", ("float16", "half"), 2),
    (_abi.DIST_BF16, "bf16", ("bfloat16",), 2),
    (_abi.DIST_F32, "f32", ("float32",), 4),
    (_abi.DIST_F64, "f64", ("float64",), 8),
    (_abi.DIST_C64, "c64", ("complex64",), 8),
    (_abi.DIST_C128, "c128", ("complex128",), 16),
    (_abi.DIST_BOOL, "bool", ("bool",), 1),
    (_abi.DIST_F8E4M3, "f8e4m3", ("float8_e4m3fn",), 1),
    (_abi.DIST_F8E5M2, "f8e5m2", ("float8_e5m2",), 1),
)

SIZES: dict[int, int] = {number: size for number, _, _, size in _TABLE}
NAMES: dict[int, str] = {number: name for number, name, _, _ in _TABLE}
NUMPY_NAMES: dict[int, str] = {number: names[0] for number, _, names, _ in _TABLE}
BY_NAME: dict[str, int] = {
    name: number for number, own, names, _ in _TABLE for name in (own, *names)
}

# The formats of the buffer protocol, with native sizes ("@", or no prefix).
FORMATS: dict[str, int] = {
    "b": _abi.DIST_I8,
    "B": _abi.DIST_U8,
    "c": _abi.DIST_U8,
    "h": _abi.DIST_I16,
    "H": _abi.DIST_U16,
    "i": _abi.DIST_I32,
    "I": _abi.DIST_U32,
    "l": _abi.DIST_I64,
    "L": _abi.DIST_U64,
    "q": _abi.DIST_I64,
    "Q": _abi.DIST_U64,
    "n": _abi.DIST_I64,
    "N": _abi.DIST_U64,
    "e": _abi.DIST_F16,
    "f": _abi.DIST_F32,
    "d": _abi.DIST_F64,
    "Zf": _abi.DIST_C64,
    "Zd": _abi.DIST_C128,
    "?": _abi.DIST_BOOL,
}
# With a prefix of the byte order, "l" and "L" have 4 bytes.
STANDARD_FORMATS: dict[str, int] = {**FORMATS, "l": _abi.DIST_I32, "L": _abi.DIST_U32}

# DLPack: the code and the bits of a type.
DLPACK: dict[tuple[int, int], int] = {
    (0, 8): _abi.DIST_I8,
    (0, 16): _abi.DIST_I16,
    (0, 32): _abi.DIST_I32,
    (0, 64): _abi.DIST_I64,
    (1, 8): _abi.DIST_U8,
    (1, 16): _abi.DIST_U16,
    (1, 32): _abi.DIST_U32,
    (1, 64): _abi.DIST_U64,
    (2, 16): _abi.DIST_F16,
    (2, 32): _abi.DIST_F32,
    (2, 64): _abi.DIST_F64,
    (4, 16): _abi.DIST_BF16,
    (5, 64): _abi.DIST_C64,
    (5, 128): _abi.DIST_C128,
    (6, 8): _abi.DIST_BOOL,
    (10, 8): _abi.DIST_F8E4M3,
    (12, 8): _abi.DIST_F8E5M2,
}

OPERATORS: dict[str, int] = {
    "sum": _abi.DIST_SUM,
    "product": _abi.DIST_PRODUCT,
    "min": _abi.DIST_MIN,
    "max": _abi.DIST_MAX,
    "avg": _abi.DIST_AVG,
    "band": _abi.DIST_BAND,
    "bor": _abi.DIST_BOR,
    "bxor": _abi.DIST_BXOR,
    "premul_sum": _abi.DIST_PREMUL_SUM,
}


def dtype_number(value: Any) -> int:
    """Returns the number of an element type: a constant, a name, or a dtype of numpy or torch."""
    if isinstance(value, int):
        if value not in SIZES:
            raise ValueError(f"{value} is no element type")
        return value
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(name, str):
        # numpy's scalar types have a `__name__`, torch's types only a text such as torch.float32.
        name = getattr(value, "__name__", None) or str(value)
    number = BY_NAME.get(name.rsplit(".", 1)[-1])
    if number is None:
        known = ", ".join(NAMES.values())
        raise TypeError(f"{value!r} is no element type of the library; its types are {known}")
    return number


def numpy_dtype(number: int) -> Any:
    """Returns numpy's dtype of an element type; bf16 and f8 need the package ml_dtypes."""
    import numpy

    name = NUMPY_NAMES[number]
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        try:
            import ml_dtypes
        except ImportError as cause:
            raise ImportError(
                f"numpy has no {name} of its own: install the package ml_dtypes"
            ) from cause
        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)


def operator_number(op: int | str | Operator) -> int:
    """Returns the number of an operator: a constant, a name such as "sum", or an `Operator`."""
    if isinstance(op, int):
        return op
    if isinstance(op, str):
        try:
            return OPERATORS[op.lower()]
        except KeyError:
            known = ", ".join(OPERATORS)
            raise ValueError(f"{op!r} is no operator; the operators are {known}") from None
    return op.number
