"""Key-value stores, through which ranks find each other; programs may use them, too."""

from __future__ import annotations

import ctypes
import os

from . import _abi, _buffers
from ._call import blocking, call_status
from ._library import blob_bytes, blob_list, c_array, copied_text, lib, milliseconds, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence, Union

    Key = Union[str, bytes]


def _key(key: Key) -> bytes:
    return key if isinstance(key, bytes) else key.encode("utf-8")


def _keys(keys: Sequence[Key]) -> tuple[Any, Any, int]:
    listed = [_key(it) for it in keys]
    lengths = c_array(ctypes.c_size_t, [len(it) for it in listed])
    return c_array(ctypes.c_char_p, listed), lengths, len(listed)


class Store:
    """A key-value store. Values are bytes; a text as a value is stored as UTF-8.

    The classes `TcpStore`, `FileStore`, `HashStore`, `PrefixStore` and `CustomStore` create stores.
    """

    _handle: int = 0
    # The store of which this one is a clone.
    _origin: Store | None = None

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def set(self, key: Key, value: Any) -> None:
        """Stores a value, and replaces an earlier one."""
        name = _key(key)
        address, length, keep = _value(value)
        call_status("set", None, lib.dist_store_set(self._handle, name, len(name), address, length))
        del keep

    def get(self, key: Key) -> bytes:
        """Returns the value of a key, and waits until the key exists."""
        name = _key(key)
        return self._blob("get", lib.dist_store_get, self._handle, name, len(name))

    def _blob(self, name: str, function: Any, *arguments: Any) -> bytes:
        out = ctypes.c_void_p()
        blocking(name, None, function, *arguments, ctypes.byref(out),
                 discard=lambda _: blob_bytes(out.value))
        return blob_bytes(out.value)

    def add(self, key: Key, amount: int = 1) -> int:
        """Adds to a counter, and returns the sum."""
        name, out = _key(key), ctypes.c_int64()
        status = lib.dist_store_add(self._handle, name, len(name), amount, ctypes.byref(out))
        call_status("add", None, status)
        return out.value

    def compare_set(self, key: Key, expected: Any, desired: Any) -> bytes:
        """Stores `desired` if the value is `expected`, and returns the value after the call."""
        name, out = _key(key), ctypes.c_void_p()
        old, old_length, keep_old = _value(expected)
        new, new_length, keep_new = _value(desired)
        status = lib.dist_store_compare_set(self._handle, name, len(name), old, old_length, new,
                                            new_length, ctypes.byref(out))
        del keep_old, keep_new
        call_status("compare_set", None, status)
        return blob_bytes(out.value)

    def wait(self, keys: Sequence[Key], timeout: float | None = None) -> None:
        """Waits until all keys exist."""
        names, lengths, count = _keys(keys)
        blocking("wait", None, lib.dist_store_wait, self._handle, names, lengths, count,
                 milliseconds(timeout))

    def check(self, keys: Sequence[Key]) -> bool:
        """Returns whether all keys exist now."""
        names, lengths, count = _keys(keys)
        out = ctypes.c_int32()
        status = lib.dist_store_check(self._handle, names, lengths, count, ctypes.byref(out))
        call_status("check", None, status)
        return bool(out.value)

    def num_keys(self) -> int:
        """Returns the number of keys of the whole store, under all prefixes."""
        out = ctypes.c_int64()
        call_status("num_keys", None, lib.dist_store_num_keys(self._handle, ctypes.byref(out)))
        return out.value

    def list_keys(self) -> list[bytes]:
        """Returns all keys, in no particular order."""
        out = ctypes.c_void_p()
        call_status("list_keys", None, lib.dist_store_list_keys(self._handle, ctypes.byref(out)))
        return blob_list(out.value)

    def delete_key(self, key: Key) -> bool:
        """Removes a key, and returns whether it existed."""
        name, out = _key(key), ctypes.c_int32()
        status = lib.dist_store_delete_key(self._handle, name, len(name), ctypes.byref(out))
        call_status("delete_key", None, status)
        return bool(out.value)

    def append(self, key: Key, value: Any) -> None:
        """Appends bytes to a value, or creates a missing value."""
        name = _key(key)
        address, length, keep = _value(value)
        status = lib.dist_store_append(self._handle, name, len(name), address, length)
        del keep
        call_status("append", None, status)

    def multi_get(self, keys: Sequence[Key]) -> list[bytes]:
        """Returns the values of several keys, and waits until all keys exist."""
        names, lengths, count = _keys(keys)
        out = ctypes.c_void_p()
        blocking("multi_get", None, lib.dist_store_multi_get, self._handle, names, lengths, count,
                 ctypes.byref(out), discard=lambda _: blob_list(out.value))
        return blob_list(out.value)

    def multi_set(self, values: Mapping[Key, Any]) -> None:
        """Stores several values in one call."""
        names, lengths, count = _keys(list(values))
        held = [_value(it) for it in values.values()]
        addresses = c_array(ctypes.c_void_p, [it[0] for it in held])
        sizes = c_array(ctypes.c_size_t, [it[1] for it in held])
        status = lib.dist_store_multi_set(self._handle, names, lengths, addresses, sizes, count)
        del held
        call_status("multi_set", None, status)

    def queue_push(self, queue: Key, value: Any) -> None:
        """Appends an item to a queue."""
        name = _key(queue)
        address, length, keep = _value(value)
        status = lib.dist_store_queue_push(self._handle, name, len(name), address, length)
        del keep
        call_status("queue_push", None, status)

    def queue_pop(self, queue: Key, block: bool = True) -> bytes:
        """Takes the first item of a queue; without `block`, an empty queue raises `QueueEmpty`."""
        name = _key(queue)
        return self._blob("queue_pop", lib.dist_store_queue_pop, self._handle, name, len(name),
                          int(block))

    def queue_len(self, queue: Key) -> int:
        """Returns the number of items in a queue."""
        name, out = _key(queue), ctypes.c_int64()
        status = lib.dist_store_queue_len(self._handle, name, len(name), ctypes.byref(out))
        call_status("queue_len", None, status)
        return out.value

    def barrier(self, key: Key, size: int, timeout: float | None = None) -> None:
        """Waits until `size` callers have called the barrier with this key."""
        name = _key(key)
        blocking("barrier", None, lib.dist_store_barrier, self._handle, name, len(name), size,
                 milliseconds(timeout))

    def clone(self) -> Store:
        """Returns a second object for the same store, with a time-out of its own."""
        out = ctypes.c_void_p()
        call_status("clone", None, lib.dist_store_clone(self._handle, ctypes.byref(out)))
        assert out.value is not None
        copy = Store(out.value)
        # A custom store owns the functions that the library calls for its clones.
        copy._origin = self
        return copy

    def prefix(self, prefix: Key) -> PrefixStore:
        """Returns a store that puts a prefix and "/" before every key."""
        return PrefixStore(prefix, self)

    @property
    def timeout(self) -> float | None:
        """The time-out of calls in seconds; None for no limit, 0 for no wait."""
        value = lib.dist_store_get_timeout(self._handle)
        if value == _abi.DIST_WAIT_FOREVER:
            return None
        return 0.0 if value == _abi.DIST_NO_WAIT else value / 1000

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        value = _abi.DIST_WAIT_FOREVER if seconds is None else milliseconds(seconds)
        call_status("timeout", None, lib.dist_store_set_timeout(self._handle, value))

    @property
    def port(self) -> int | None:
        """The port of a TCP store."""
        value = lib.dist_store_port(self._handle)
        return None if value < 0 else value

    @property
    def host(self) -> str | None:
        """The host of a TCP store."""
        return copied_text(lib.dist_store_host, self._handle) or None

    def release(self) -> None:
        """Leaves the store. The store ends when its last user is gone."""
        handle, self._handle = self._handle, 0
        if handle:
            call_status("release", None, lib.dist_store_release(handle))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def __del__(self, release: Any = lib.dist_store_release) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            release(handle)


def _value(value: Any) -> tuple[int, int, Any]:
    return _buffers.bytes_buffer(value.encode("utf-8") if isinstance(value, str) else value,
                                 "the value")


class TcpStore(Store):
    """A store that one process serves, with the protocol of PyTorch's TCPStore."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        is_server: bool = False,
        size: int | None = None,
        wait_for_workers: bool = True,
        timeout: float | None = None,
        bind_address: str | None = None,
        secret: bytes | None = None,
        listen_fd: int | None = None,
        multi_tenant: bool = False,
    ) -> None:
        fields = _abi.DIST_FIELD_WAIT_FOR_WORKERS
        fields |= _abi.DIST_FIELD_LISTEN_FD if listen_fd is not None else 0
        held = ctypes.create_string_buffer(secret, len(secret)) if secret else None
        options = _abi.dist_store_tcp_options_t(
            struct_size=ctypes.sizeof(_abi.dist_store_tcp_options_t),
            fields=fields,
            host=text(host),
            port=port,
            is_server=int(is_server),
            world_size=size or 0,
            wait_for_workers=int(wait_for_workers),
            listen_fd=listen_fd or 0,
            multi_tenant=int(multi_tenant),
            timeout_ms=milliseconds(timeout),
            bind_address=text(bind_address),
            secret=ctypes.addressof(held) if held is not None else None,
            secret_len_bytes=len(secret) if secret else 0,
        )
        out = ctypes.c_void_p()

        def discard(_status: int, _secret: Any = held) -> None:
            lib.dist_store_release(out.value)

        blocking("TcpStore", None, lib.dist_store_tcp_create, ctypes.byref(options),
                 ctypes.byref(out), discard=discard)
        assert out.value is not None
        super().__init__(out.value)


class FileStore(Store):
    """A store in a file that all processes can access."""

    def __init__(self, path: str | os.PathLike[str], size: int = 0, *, job_id: str | None = None,
                 timeout: float | None = None) -> None:
        options = _abi.dist_store_file_options_t(
            struct_size=ctypes.sizeof(_abi.dist_store_file_options_t),
            job_id=text(job_id),
            timeout_ms=milliseconds(timeout),
        )
        out = ctypes.c_void_p()
        blocking("FileStore", None, lib.dist_store_file_create, text(path), size,
                 ctypes.byref(options), ctypes.byref(out),
                 discard=lambda _: lib.dist_store_release(out.value))
        assert out.value is not None
        super().__init__(out.value)


class HashStore(Store):
    """A store in the memory of this process, for ranks that are threads."""

    def __init__(self) -> None:
        out = ctypes.c_void_p()
        call_status("HashStore", None, lib.dist_store_hash_create(ctypes.byref(out)))
        assert out.value is not None
        super().__init__(out.value)


class PrefixStore(Store):
    """A store that puts a prefix and "/" before every key of another store."""

    def __init__(self, prefix: Key, inner: Store) -> None:
        name, out = _key(prefix), ctypes.c_void_p()
        status = lib.dist_store_prefix_create(name, len(name), inner._handle, ctypes.byref(out))
        call_status("PrefixStore", None, status)
        assert out.value is not None
        super().__init__(out.value)
