"""The memory of tensors, as the library uses it."""

from __future__ import annotations

import ctypes

import torch

from .. import _abi
from ._types import DTYPES


def is_plain(tensor) -> bool:
    """Returns whether the memory of a tensor has its elements in order."""
    if not tensor.is_contiguous() or tensor.is_neg():
        return False
    return not (tensor.is_complex() and tensor.is_conj())


def readable(tensor):
    """Returns a tensor with the same elements in order."""
    if tensor.layout != torch.strided:
        raise ValueError("libdist needs dense tensors, except for all_reduce")
    if is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def writable(tensor, moves):
    """Returns a tensor that the library can write; `moves` gets what to copy afterwards."""
    if tensor.layout != torch.strided:
        raise ValueError("libdist needs dense tensors, except for all_reduce")
    if is_plain(tensor):
        return tensor
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    moves.append((tensor, buffer))
    return buffer


def finisher(moves):
    if not moves:
        return None

    def finish(_work):
        for tensor, buffer in moves:
            tensor.copy_(buffer)

    return finish


def moved(tensor):
    """Returns the C type and the number of elements of a tensor whose bytes are only moved."""
    known = DTYPES.get(tensor.dtype)
    if known is not None:
        return known, tensor.numel()
    return _abi.DIST_U8, tensor.numel() * tensor.element_size()


def reduced(tensor):
    known = DTYPES.get(tensor.dtype)
    if known is None:
        raise TypeError(f"Invalid scalar type: libdist does not reduce {tensor.dtype}")
    return known, tensor.numel()


def check_same_kind(tensors, what: str) -> None:
    first = tensors[0]
    for tensor in tensors:
        if tensor.dtype != first.dtype or tensor.device.type != first.device.type:
            raise ValueError(f"{what}: the tensors have different types or devices")


def addresses_of(tensors):
    return (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])


def counts_of(tensors, dtype):
    if dtype == _abi.DIST_U8:
        return (ctypes.c_size_t * len(tensors))(*[t.numel() * t.element_size() for t in tensors])
    return (ctypes.c_size_t * len(tensors))(*[t.numel() for t in tensors])


def span_of(tensor):
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.element_size()


def apart(tensor, others, allowed=None):
    """Returns the tensor, or a copy if its memory overlaps others in a place that is not allowed."""
    begin, end = span_of(tensor)
    if begin == end or begin == allowed:
        return tensor
    for other in others:
        other_begin, other_end = span_of(other)
        if begin < other_end and other_begin < end:
            return tensor.clone()
    return tensor


def only(tensors, what: str):
    if len(tensors) != 1:
        raise ValueError(f"{what} takes one tensor for each rank, not {len(tensors)}")
    return tensors[0]


def split_rows(tensor, sizes, ranks, width):
    """Returns the addresses and the lengths of the parts of a tensor along its first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % ranks:
            raise ValueError("Tensor's dim 0 does not divide equally across group size")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise ValueError("Split sizes don't match total dim 0 size")
    row = tensor.numel() // rows if rows else 0
    pointers = (ctypes.c_void_p * ranks)()
    counts = (ctypes.c_size_t * ranks)()
    address = tensor.data_ptr()
    for index, length in enumerate(sizes):
        pointers[index] = address
        counts[index] = length * row * width
        address += length * row * tensor.element_size()
    return pointers, counts


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8).reshape(-1).cpu()


def sparse_sum(strings, own):
    """Adds the sparse tensors whose indices and values are in byte strings."""
    sparse_dims = own.sparse_dim()
    dense_shape = own.values().shape[1:]
    element = own.values().element_size()
    for length in dense_shape:
        element *= length
    entry = 8 * sparse_dims + element
    indices, values = [], []
    for text in strings:
        count = len(text) // entry
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else _EMPTY
        cut = 8 * sparse_dims * count
        indices.append(data[:cut].view(torch.int64).reshape(sparse_dims, count))
        values.append(data[cut:].clone().view(own.dtype).reshape(count, *dense_shape))
    total = torch.sparse_coo_tensor(
        torch.cat(indices, 1), torch.cat(values), own.shape, dtype=own.dtype
    )
    return total.coalesce().to(own.device)


_EMPTY = torch.empty(0, dtype=torch.uint8)
