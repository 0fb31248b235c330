"""torch's element types and operators as numbers of the C interface."""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp

from .. import _abi


def _dtypes() -> dict[torch.dtype, int]:
    names = {
        "int8": _abi.DIST_I8,
        "uint8": _abi.DIST_U8,
        "int16": _abi.DIST_I16,
        "uint16": _abi.DIST_U16,
        "int32": _abi.DIST_I32,
        "uint32": _abi.DIST_U32,
        "int64": _abi.DIST_I64,
        "uint64": _abi.DIST_U64,
        "float16": _abi.DIST_F16,
        "bfloat16": _abi.DIST_BF16,
        "float32": _abi.DIST_F32,
        "float64": _abi.DIST_F64,
        "complex64": _abi.DIST_C64,
        "complex128": _abi.DIST_C128,
        "bool": _abi.DIST_BOOL,
        "float8_e4m3fn": _abi.DIST_F8E4M3,
        "float8_e5m2": _abi.DIST_F8E5M2,
    }
    # An old torch lacks some types.
    return {getattr(torch, name): number for name, number in names.items() if hasattr(torch, name)}


DTYPES = _dtypes()

OPERATORS = {
    ReduceOp.SUM: _abi.DIST_SUM,
    ReduceOp.PRODUCT: _abi.DIST_PRODUCT,
    ReduceOp.MIN: _abi.DIST_MIN,
    ReduceOp.MAX: _abi.DIST_MAX,
    ReduceOp.AVG: _abi.DIST_AVG,
    ReduceOp.BAND: _abi.DIST_BAND,
    ReduceOp.BOR: _abi.DIST_BOR,
    ReduceOp.BXOR: _abi.DIST_BXOR,
    ReduceOp.PREMUL_SUM: _abi.DIST_PREMUL_SUM,
}
