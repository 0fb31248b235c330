"""A store over functions of Python, for example over etcd or Redis."""

from __future__ import annotations

import ctypes

from . import _abi, errors
from ._library import check, lib
from .store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OPTIONAL = ("compare_set", "append", "num_keys", "list_keys", "queue_push", "queue_pop",
             "queue_len", "clone", "interrupt")


class CustomStore(Store):
    """A store over an object of Python.

    The object has the methods `set(key, value, timeout)`, `get(key, timeout)`,
    `add(key, amount, timeout)`, `wait(keys, timeout)`, `check(keys, timeout)` and
    `delete_key(key, timeout)`, and optionally `compare_set(key, expected, desired, timeout)`,
    `append(key, value, timeout)`, `num_keys(timeout)`, `list_keys(timeout)`,
    `queue_push(queue, item, timeout)`, `queue_pop(queue, block, timeout)` and
    `queue_len(queue, timeout)`. Keys are texts, values are bytes, time-outs are seconds or None.
    A method raises `TimeoutError` if the time has passed. Several threads of the library call the
    methods at the same time.

    With the optional method `clone(timeout)`, which returns another such object, a wait through one
    object does not block calls through the other. With `interrupt()`, too, the library ends the
    wait of another thread: `wait` then raises `InterruptedError`, also if it begins later.
    """

    def __init__(self, functions: Any) -> None:
        self.error: BaseException | None = None
        table = _abi.dist_store_vtable_t(struct_size=ctypes.sizeof(_abi.dist_store_vtable_t))
        calls = _Calls(self, functions)
        names = ["set", "get", "add", "wait", "check", "delete_key"]
        names += [name for name in _OPTIONAL if hasattr(functions, name)]
        if "clone" in names:
            names.append("destroy")
        fields: dict[str, Any] = {it[0]: it[1] for it in _abi.dist_store_vtable_t._fields_}
        # The library calls these objects as long as it uses the store.
        self._functions = []
        for name in names:
            function = fields[name](getattr(calls, name))
            self._functions.append(function)
            setattr(table, name, function)
        out = ctypes.c_void_p()
        check(lib.dist_store_custom_create(ctypes.byref(table), None, ctypes.byref(out)),
              "CustomStore")
        assert out.value is not None
        super().__init__(out.value)


def _seconds(timeout_ms: int) -> float | None:
    return None if timeout_ms == _abi.DIST_WAIT_FOREVER else timeout_ms / 1000


def _bytes(address: int | None, length: int) -> bytes:
    return ctypes.string_at(address, length) if address and length else b""


class _Calls:
    """The functions that the library calls. Each returns a status."""

    def __init__(self, store: CustomStore, functions: Any) -> None:
        self._store = store
        # The objects by the pointers that the library passes; None for the first object.
        self._objects: dict[int | None, Any] = {None: functions}
        self._clones = 0

    def _of(self, user: int | None) -> Any:
        return self._objects[user]

    def _call(self, function: Any, *arguments: Any) -> tuple[int, Any]:
        try:
            return _abi.DIST_OK, function(*arguments)
        except errors.Error as error:
            self._store.error = error
            return error.status, None
        except TimeoutError as error:
            self._store.error = error
            return _abi.DIST_ERR_TIMEOUT, None
        except ConnectionError as error:
            self._store.error = error
            return _abi.DIST_ERR_CONNECTION, None
        except InterruptedError:
            return _abi.DIST_ERR_ABORTED, None
        except BaseException as error:
            self._store.error = error
            return _abi.DIST_ERR_BACKEND, None

    def _sink(self, sink: Any, sink_arg: int, outcome: tuple[int, Any]) -> int:
        status, value = outcome
        if status == _abi.DIST_OK:
            data = bytes(value)
            sink(sink_arg, data, len(data))
        return status

    def _number(self, result: Any, outcome: tuple[int, Any]) -> int:
        status, value = outcome
        if status == _abi.DIST_OK:
            result[0] = int(value)
        return status

    def set(self, user: int | None, key: bytes, value: int, length: int, timeout_ms: int) -> int:
        data = _bytes(value, length)
        return self._call(self._of(user).set, key.decode(), data, _seconds(timeout_ms))[0]

    def get(self, user: int | None, key: bytes, sink: Any, sink_arg: int, timeout_ms: int) -> int:
        outcome = self._call(self._of(user).get, key.decode(), _seconds(timeout_ms))
        return self._sink(sink, sink_arg, outcome)

    def add(self, user: int | None, key: bytes, amount: int, result: Any, timeout_ms: int) -> int:
        outcome = self._call(self._of(user).add, key.decode(), amount, _seconds(timeout_ms))
        return self._number(result, outcome)

    def wait(self, user: int | None, keys: Any, count: int, timeout_ms: int) -> int:
        names = [keys[i].decode() for i in range(count)]
        return self._call(self._of(user).wait, names, _seconds(timeout_ms))[0]

    def check(self, user: int | None, keys: Any, count: int, result: Any, timeout_ms: int) -> int:
        names = [keys[i].decode() for i in range(count)]
        return self._number(result, self._call(self._of(user).check, names, _seconds(timeout_ms)))

    def delete_key(self, user: int | None, key: bytes, result: Any, timeout_ms: int) -> int:
        outcome = self._call(self._of(user).delete_key, key.decode(), _seconds(timeout_ms))
        return self._number(result, outcome)

    def compare_set(self, user: int | None, key: bytes, expected: int, expected_length: int,
                    desired: int, desired_length: int, sink: Any, sink_arg: int,
                    timeout_ms: int) -> int:
        outcome = self._call(self._of(user).compare_set, key.decode(),
                             _bytes(expected, expected_length), _bytes(desired, desired_length),
                             _seconds(timeout_ms))
        return self._sink(sink, sink_arg, outcome)

    def append(self, user: int | None, key: bytes, value: int, length: int, timeout_ms: int) -> int:
        data = _bytes(value, length)
        return self._call(self._of(user).append, key.decode(), data, _seconds(timeout_ms))[0]

    def num_keys(self, user: int | None, result: Any, timeout_ms: int) -> int:
        return self._number(result, self._call(self._of(user).num_keys, _seconds(timeout_ms)))

    def list_keys(self, user: int | None, sink: Any, sink_arg: int, timeout_ms: int) -> int:
        status, keys = self._call(self._of(user).list_keys, _seconds(timeout_ms))
        for key in keys or ():
            data = key.encode() if isinstance(key, str) else bytes(key)
            sink(sink_arg, data, len(data))
        return status

    def queue_push(self, user: int | None, queue: bytes, item: int, length: int,
                   timeout_ms: int) -> int:
        data = _bytes(item, length)
        return self._call(self._of(user).queue_push, queue.decode(), data,
                          _seconds(timeout_ms))[0]

    def queue_pop(self, user: int | None, queue: bytes, block: int, sink: Any, sink_arg: int,
                  timeout_ms: int) -> int:
        outcome = self._call(self._of(user).queue_pop, queue.decode(), bool(block),
                             _seconds(timeout_ms))
        return self._sink(sink, sink_arg, outcome)

    def queue_len(self, user: int | None, queue: bytes, result: Any, timeout_ms: int) -> int:
        outcome = self._call(self._of(user).queue_len, queue.decode(), _seconds(timeout_ms))
        return self._number(result, outcome)

    def clone(self, user: int | None, copy: Any, timeout_ms: int) -> int:
        status, other = self._call(self._of(user).clone, _seconds(timeout_ms))
        if status == _abi.DIST_OK:
            self._clones += 1
            self._objects[self._clones] = other
            copy[0] = self._clones
        return status

    def interrupt(self, user: int | None) -> None:
        self._call(self._of(user).interrupt)

    def destroy(self, user: int | None) -> None:
        if user is not None:
            del self._objects[user]
