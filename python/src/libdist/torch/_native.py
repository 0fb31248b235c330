"""The functions of the C library that the back end calls, and torch's types and operators in C.

This module has its own handle of the library, so that its argument types do not depend on those
of the rest of the package. All functions release the interpreter lock.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)

import torch
from torch.distributed import ReduceOp

from . import _package

OK = 0
IN_PROGRESS = 1
INVALID_ARGUMENT = -1
NOT_FOUND = -6
QUEUE_EMPTY = -7
NOT_A_NUMBER = -8
TIMEOUT = -100
PEER_FAILED = -101
CONNECTION = -104
ERROR_SYSTEM = -201
UNSUPPORTED = -5

FIELD_RANK = 1
FIELD_DEVICE = 8
CALL_CANONICAL = 1
CALL_DEVICE = 8
ANY_SOURCE = -1
CULPRIT_NONE = 0
CULPRIT_LATE = 5
NO_WAIT = -2
WAIT_FOREVER = -1
DEVICE_HOST = -1


class CallOptions(Structure):
    """dist_call_options_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout_ms", c_int64),
        ("premul_scale", c_double),
        ("algorithm", c_char_p),
        ("flags", c_uint64),
        ("stream", c_void_p),
        ("device", c_int32),
        ("reserved", c_int32),
        ("label", c_char_p),
    ]


class GroupOptions(Structure):
    """dist_group_options_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("fields", c_uint64),
        ("store", c_void_p),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("backend", c_char_p),
        ("name", c_char_p),
        ("timeout_ms", c_int64),
        ("connect_timeout_ms", c_int64),
        ("backend_options", c_char_p),
        ("global_ranks", POINTER(c_int32)),
        ("n_global_ranks", c_size_t),
        ("device", c_int32),
        ("reserved", c_int32),
    ]


class ShrinkOptions(Structure):
    """dist_shrink_options_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout_ms", c_int64),
        ("connect_timeout_ms", c_int64),
    ]


class Culprit(Structure):
    """dist_culprit_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("kind", c_int32),
        ("pid", c_int64),
        ("host", c_char * 256),
    ]


class TcpStoreOptions(Structure):
    """dist_store_tcp_options_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("fields", c_uint64),
        ("host", c_char_p),
        ("port", c_int32),
        ("is_server", c_int32),
        ("world_size", c_int32),
        ("wait_for_workers", c_int32),
        ("listen_fd", c_int32),
        ("multi_tenant", c_int32),
        ("timeout_ms", c_int64),
        ("bind_address", c_char_p),
        ("secret", c_void_p),
        ("secret_len_bytes", c_size_t),
    ]


SINK = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)
_SET = ctypes.CFUNCTYPE(c_int32, c_void_p, c_char_p, c_void_p, c_size_t, c_int64)
_GET = ctypes.CFUNCTYPE(c_int32, c_void_p, c_char_p, SINK, c_void_p, c_int64)
_ADD = ctypes.CFUNCTYPE(c_int32, c_void_p, c_char_p, c_int64, POINTER(c_int64), c_int64)
_WAIT = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_char_p), c_size_t, c_int64)
_CHECK = ctypes.CFUNCTYPE(
    c_int32, c_void_p, POINTER(c_char_p), c_size_t, POINTER(c_int32), c_int64
)
_DELETE = ctypes.CFUNCTYPE(c_int32, c_void_p, c_char_p, POINTER(c_int32), c_int64)
_DESTROY = ctypes.CFUNCTYPE(None, c_void_p)
_COMPARE_SET = ctypes.CFUNCTYPE(
    c_int32, c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, SINK, c_void_p, c_int64
)


class StoreFunctions(Structure):
    """dist_store_vtable_t; the optional functions that this package does not set are pointers."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("set", _SET),
        ("get", _GET),
        ("add", _ADD),
        ("wait", _WAIT),
        ("check", _CHECK),
        ("delete_key", _DELETE),
        ("destroy", _DESTROY),
        ("compare_set", _COMPARE_SET),
        ("append", c_void_p),
        ("num_keys", c_void_p),
        ("list_keys", c_void_p),
        ("queue_push", c_void_p),
        ("queue_pop", c_void_p),
        ("queue_len", c_void_p),
    ]


WORK_FUNCTION = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)

_V = c_void_p
_N = c_size_t
_I = c_int32
_TAIL = (_V, _V)  # options, work

_SIGNATURES = {
    "dist_last_error": (c_char_p, ()),
    "dist_group_create": (_I, (_V, _V)),
    "dist_group_release": (_I, (_V,)),
    "dist_group_abort": (_I, (_V, c_char_p)),
    "dist_group_shrink": (_I, (_V, _V, _V)),
    "dist_group_culprit": (_I, (_V, _V)),
    "dist_group_error": (_N, (_V, _V, _N)),
    "dist_group_describe": (_I, (_V, _V)),
    "dist_group_set_timeout": (_I, (_V, c_int64)),
    "dist_group_ranks": (_N, (_V, _V, _N)),
    "dist_get_rank": (_I, (_V,)),
    "dist_get_world_size": (_I, (_V,)),
    "dist_flight_recorder_dump": (_I, (_V, _V)),
    "dist_blob_count": (_N, (_V,)),
    "dist_blob_data": (_I, (_V, _N, _V, _V)),
    "dist_blob_release": (_I, (_V,)),
    "dist_all_reduce": (_I, (_V, _V, _V, _N, _I, _I, *_TAIL)),
    "dist_reduce": (_I, (_V, _V, _V, _N, _I, _I, _I, *_TAIL)),
    "dist_broadcast": (_I, (_V, _V, _N, _I, _I, *_TAIL)),
    "dist_all_gather": (_I, (_V, _V, _V, _N, _I, *_TAIL)),
    "dist_all_gather_v": (_I, (_V, _V, _V, _V, _I, *_TAIL)),
    "dist_all_gather_bytes": (_I, (_V, _V, _N, _V, *_TAIL)),
    "dist_reduce_scatter": (_I, (_V, _V, _V, _N, _I, _I, *_TAIL)),
    "dist_reduce_scatter_v": (_I, (_V, _V, _V, _V, _I, _I, *_TAIL)),
    "dist_gather": (_I, (_V, _V, _V, _N, _I, _I, *_TAIL)),
    "dist_gather_v": (_I, (_V, _V, _N, _V, _V, _I, _I, *_TAIL)),
    "dist_scatter_v": (_I, (_V, _V, _V, _V, _N, _I, _I, *_TAIL)),
    "dist_all_to_all": (_I, (_V, _V, _V, _N, _I, *_TAIL)),
    "dist_all_to_all_v": (_I, (_V, _V, _V, _V, _V, _I, *_TAIL)),
    "dist_barrier": (_I, (_V, *_TAIL)),
    "dist_monitored_barrier": (_I, (_V, c_int64, _I, _V, _V)),
    "dist_send": (_I, (_V, _V, _N, _I, _I, _I, *_TAIL)),
    "dist_recv": (_I, (_V, _V, _N, _I, _I, _I, _V, *_TAIL)),
    "dist_batch_begin": (_I, (_V, _N)),
    "dist_batch_end": (_I, (_V,)),
    "dist_work_wait": (_I, (_V, c_int64)),
    "dist_work_test": (_I, (_V, _V)),
    "dist_work_error": (_N, (_V, _V, _N)),
    "dist_work_culprit": (_I, (_V, _V)),
    "dist_work_source": (_I, (_V,)),
    "dist_work_elapsed_ns": (c_uint64, (_V,)),
    "dist_work_release": (_I, (_V,)),
    "dist_work_on_complete": (_I, (_V, WORK_FUNCTION, _V)),
    "dist_callbacks_stop": (_I, (c_int64,)),
    "dist_callbacks_start": (_I, ()),
    "dist_store_tcp_create": (_I, (_V, _V)),
    "dist_store_prefix_create": (_I, (c_char_p, _V, _V)),
    "dist_store_custom_create": (_I, (_V, _V, _V)),
    "dist_store_release": (_I, (_V,)),
    "dist_mem_alloc": (_I, (_V, _N, _I, _V)),
    "dist_mem_free": (_I, (_V,)),
    "dist_set_debug_level": (_I, (_I,)),
}


def _load() -> ctypes.CDLL:
    """Loads the library of the package and declares the functions above."""
    library = ctypes.CDLL(_package.library_path())
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


lib = _load()


def last_error() -> str:
    """Returns the message of the last failed call of this thread."""
    text = lib.dist_last_error()
    return text.decode("utf-8", "replace") if text else ""


def copied_text(function, handle) -> str:
    """Returns the text that a function copies into a buffer of the caller."""
    size = function(handle, None, 0)
    if size == 0:
        return ""
    buffer = ctypes.create_string_buffer(size)
    function(handle, buffer, size)
    return buffer.value.decode("utf-8", "replace")


def blob_strings(blob) -> list[bytes]:
    """Returns the byte strings of a blob and releases the blob."""
    strings = []
    data = c_void_p()
    size = c_size_t()
    for index in range(lib.dist_blob_count(blob)):
        if lib.dist_blob_data(blob, index, ctypes.byref(data), ctypes.byref(size)) != OK:
            raise RuntimeError(last_error())
        strings.append(ctypes.string_at(data, size.value) if size.value else b"")
    lib.dist_blob_release(blob)
    return strings


def _dtypes() -> dict[torch.dtype, tuple[int, int]]:
    """Returns the number of the C type and the size of an element for each type of torch."""
    numbers = {
        "int8": 256,
        "uint8": 257,
        "int16": 258,
        "uint16": 259,
        "int32": 260,
        "uint32": 261,
        "int64": 262,
        "uint64": 263,
        "float16": 264,
        "bfloat16": 265,
        "float32": 266,
        "float64": 267,
        "complex64": 268,
        "complex128": 269,
        "bool": 270,
        "float8_e4m3fn": 271,
        "float8_e5m2": 272,
    }
    known = {}
    for name, number in numbers.items():
        dtype = getattr(torch, name, None)
        if dtype is not None:
            known[dtype] = (number, torch.empty(0, dtype=dtype).element_size())
    return known


DTYPES = _dtypes()
U8 = 257

OPERATORS = {
    ReduceOp.SUM: 512,
    ReduceOp.PRODUCT: 513,
    ReduceOp.MIN: 514,
    ReduceOp.MAX: 515,
    ReduceOp.AVG: 516,
    ReduceOp.BAND: 517,
    ReduceOp.BOR: 518,
    ReduceOp.BXOR: 519,
    ReduceOp.PREMUL_SUM: 520,
}
PREMUL_SUM = 520
