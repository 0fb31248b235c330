"""torch's store as a store of the library.

The library talks to the server of a TCPStore with a client of its own: it needs neither the
interpreter nor the connection of torch's client. Every other store is used through its functions.
So are the TCPStores of an older torch, which lack requests that the library's client makes.
"""

from __future__ import annotations

import ctypes
import secrets
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore

from .. import _abi
from .._library import check, lib, new_handle
from ._rendezvous import SecretStore


class Meeting:
    """The store through which the ranks of one new group meet, and the group's name in it."""

    def __init__(self, store, rank: int, size: int, name: str, timeout: timedelta):
        self._handles = []
        self._functions = None
        # A store may have served an earlier group with the same name. All ranks count their
        # arrivals, so that they agree on the number of earlier groups.
        generation = (store.add("libdist/arrivals", 1) - 1) // size
        base = store
        while isinstance(base, PrefixStore):
            base = base.underlying_store
        is_served = isinstance(base, TCPStore) and hasattr(base, "queue_push")
        if is_served or isinstance(base, SecretStore):
            key = f"libdist/prefix/{generation}"
            if rank == 0:
                store.set(key, f"libdist-{secrets.token_hex(8)}")
            else:
                store.wait([key], timeout)
            self._connect(base, store.get(key), timeout)
        else:
            self._borrow(store)
        self.name = f"{name}#{generation}" if generation else name

    def _connect(self, base, prefix: bytes, timeout: timedelta) -> None:
        secret = getattr(base, "secret", b"")
        held = ctypes.create_string_buffer(secret, len(secret)) if secret else None
        options = _abi.dist_store_tcp_options_t(
            struct_size=ctypes.sizeof(_abi.dist_store_tcp_options_t),
            host=base.host.encode(),
            port=base.port,
            timeout_ms=max(1, int(timeout.total_seconds() * 1000)),
            secret=ctypes.addressof(held) if held is not None else None,
            secret_len_bytes=len(secret),
        )
        client = new_handle()
        check(lib.dist_store_tcp_create(ctypes.byref(options), ctypes.byref(client)))
        self._handles.append(client)
        prefixed = new_handle()
        try:
            check(lib.dist_store_prefix_create(prefix, len(prefix), client, ctypes.byref(prefixed)))
        except BaseException:
            self.release()
            raise
        self._handles.append(prefixed)

    def _borrow(self, store) -> None:
        self._functions = _Functions(store)
        handle = new_handle()
        check(
            lib.dist_store_custom_create(
                ctypes.byref(self._functions.table), None, ctypes.byref(handle)
            )
        )
        self._handles.append(handle)

    @property
    def handle(self):
        """The store of the library."""
        return self._handles[-1]

    def release(self) -> None:
        """Ends the use of the store."""
        for handle in reversed(self._handles):
            lib.dist_store_release(handle)
        self._handles.clear()


def _duration(timeout_ms: int) -> timedelta:
    return timedelta(days=365) if timeout_ms < 0 else timedelta(milliseconds=timeout_ms)


class _Functions:
    """The functions of a custom store over a store of torch."""

    def __init__(self, store):
        # A blocking request must not hold the connection of the program's own requests.
        self._store = _second_client(store)
        kinds = dict(_abi.dist_store_vtable_t._fields_)
        self.table = _abi.dist_store_vtable_t(struct_size=ctypes.sizeof(_abi.dist_store_vtable_t))
        for name in ("set", "get", "add", "wait", "check", "delete_key", "compare_set"):
            # The table keeps the function alive.
            setattr(self.table, name, kinds[name](_guarded(getattr(self, "_" + name))))

    def _set(self, _user, key, value, size, _timeout_ms):
        self._store.set(key.decode(), ctypes.string_at(value, size) if size else b"")
        return _abi.DIST_OK

    def _get(self, _user, key, sink, sink_argument, timeout_ms):
        self._store.wait([key.decode()], _duration(timeout_ms))
        _pour(sink, sink_argument, self._store.get(key.decode()))
        return _abi.DIST_OK

    def _add(self, _user, key, amount, result, _timeout_ms):
        result[0] = self._store.add(key.decode(), amount)
        return _abi.DIST_OK

    def _wait(self, _user, keys, count, timeout_ms):
        self._store.wait([keys[i].decode() for i in range(count)], _duration(timeout_ms))
        return _abi.DIST_OK

    def _check(self, _user, keys, count, present, _timeout_ms):
        present[0] = int(self._store.check([keys[i].decode() for i in range(count)]))
        return _abi.DIST_OK

    def _delete_key(self, _user, key, deleted, _timeout_ms):
        deleted[0] = int(self._store.delete_key(key.decode()))
        return _abi.DIST_OK

    def _compare_set(
        self, _user, key, expected, expected_size, desired, desired_size, sink, argument, _timeout
    ):
        old = ctypes.string_at(expected, expected_size) if expected_size else b""
        new = ctypes.string_at(desired, desired_size) if desired_size else b""
        _pour(sink, argument, self._store.compare_set(key.decode(), old, new))
        return _abi.DIST_OK


def _second_client(store):
    """A client with a connection of its own; the store itself if it has none."""
    clone = getattr(store, "clone", None)
    try:
        return clone() if clone is not None else store
    except (RuntimeError, NotImplementedError):
        return store


def _pour(sink, argument, value: bytes) -> None:
    buffer = ctypes.create_string_buffer(value, len(value)) if value else None
    sink(argument, ctypes.cast(buffer, ctypes.c_void_p) if value else None, len(value))


def _guarded(function):
    """Turns the exceptions of a store into statuses."""

    def guarded(*arguments):
        try:
            return function(*arguments)
        except ValueError:
            return _abi.DIST_ERR_NOT_A_NUMBER
        except Exception as error:  # noqa: BLE001 - a status is the only way to report it
            text = str(error).lower()
            if "timeout" in text or "timed out" in text:
                return _abi.DIST_ERR_TIMEOUT
            return (
                _abi.DIST_ERR_CONNECTION
                if "connect" in text or "socket" in text
                else _abi.DIST_ERR_SYSTEM
            )

    return guarded
