"""Failures of groups, and groups of the remaining ranks."""

from __future__ import annotations

import contextlib
import ctypes
import socket
from datetime import timedelta

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d as state

from .._library import blob_list, check, lib, new_handle
from ..errors import Error, Unsupported
from ._cxx import owner_of
from ._lifecycle import Lifecycle

# The time that a store gets to prove that it still works.
_PROBE = timedelta(seconds=2)


def backend_of(group=None):
    """Returns what owns the libdist group behind a group of torch.

    It raises TypeError if the group has another back end.
    """
    group = group or state._get_default_group()
    if isinstance(group, Lifecycle):
        return group
    for device in group._device_types:
        backend = group._get_backend(device)
        wrapper = getattr(c10d, "_ProcessGroupWrapper", None)
        while wrapper is not None and isinstance(backend, wrapper):
            backend = backend.wrapped_pg
        owner = backend if isinstance(backend, Lifecycle) else owner_of(backend)
        if owner is not None:
            return owner
    raise TypeError("the group does not use the back end libdist")


def failure(group=None):
    """Returns the error that failed a group, or None.

    The error is an exception of libdist: `PeerFailed`, `Timeout` and so on. It names the guilty
    rank in `rank`, `pid` and `host`.
    """
    return backend_of(group).native_group().failure


@contextlib.contextmanager
def typed_errors(group=None):
    """Raises the group's own error in place of a RuntimeError of torch.

    An operation that torch's C++ code waits for, for example in `backward` of DDP, may raise a
    RuntimeError that has only the text of the error.
    """
    try:
        yield
    except Error:
        raise
    except RuntimeError as error:
        found = failure(group)
        if found is None:
            raise
        raise found from error


def shrink(group=None, timeout: timedelta | None = None):
    """Creates a group of the ranks that remain of a failed group.

    Each remaining rank calls this. The new group replaces the default group, if the failed group
    was the default group; then all other groups end too. The ranks are numbered from 0 in the
    order of the old ranks.
    """
    if not hasattr(state, "_register_pg_in_world"):
        raise Unsupported("libdist.torch.shrink needs torch 2.10 or later")
    old = group or state._get_default_group()
    is_default = old == state._get_default_group()
    backend = backend_of(old)
    native = backend.native_group().shrink(timeout)
    new_backend = backend.backend_over(native, backend.store, backend.uid)
    remaining = set(native.global_ranks())
    old_ranks = dist.get_process_group_ranks(old)
    global_ranks = [
        rank
        for rank, outer in zip(old_ranks, backend.native_group().global_ranks(), strict=True)
        if outer in remaining
    ]
    name, old_store = state._world.pg_map[old]
    config = state._world.pg_backend_config.get(old, "")
    old_name = state._world.pg_names[old]
    devices = list(old._device_types)
    store = _common_store(native, old_store, old_name)
    if is_default:
        state._destroy_all_other_groups(exclude_group=old)
        global_ranks = list(range(native.size))
    dist.destroy_process_group(old)
    state._cleanup_process_group_global_state(old)

    new_name = f"{old_name}#{native.size}"
    new = dist.ProcessGroup(dist.PrefixStore(f"{new_name}/", store), native.rank, native.size)
    for device in devices:
        new._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, new_backend)
    new._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    new._set_group_name(new_name)
    new._set_group_desc(f"{old_name}:shrunk")
    if is_default:
        state._update_default_pg(new)
    state._register_pg_in_world(
        pg=new,
        backend_name=name,
        store=store,
        group_name=new_name,
        backend_config=config,
        rank_mapping={rank: index for index, rank in enumerate(global_ranks)},
    )
    return new


def _common_store(native, store, name):
    """Returns a store that all ranks of a new group can use.

    If a rank cannot use the store of the old group, because its server was in a process that has
    ended, rank 0 of the new group starts a server.
    """
    prefix = f"{name}/shrunk/{native.size}"
    usable = b"1" if _works(store, f"{prefix}/{native.rank}") else b"0"
    if all(answer == b"1" for answer in _exchange(native, usable)):
        return dist.PrefixStore(prefix, store)
    address = b""
    server = None
    if native.rank == 0:
        host = "127.0.0.1"
        if lib.dist_group_host_count(native.handle) > 1:
            host = socket.gethostname()
        server = dist.TCPStore(host, 0, None, True, wait_for_workers=False)
        address = f"{host} {server.port}".encode()
    host, port = _exchange(native, address)[0].decode().split()
    return server or dist.TCPStore(host, int(port), None, False, wait_for_workers=False)


def _works(store, key) -> bool:
    try:
        store.set(key, "1")
        store.wait([key], _PROBE)
    except RuntimeError:
        return False
    return True


def _exchange(native, value: bytes) -> list[bytes]:
    """Returns the byte strings of all ranks of a group."""
    out = new_handle()
    check(
        lib.dist_all_gather_bytes(
            native.handle, value or None, len(value), ctypes.byref(out), None, None
        ),
        "shrink",
        native.handle,
    )
    return blob_list(out)
