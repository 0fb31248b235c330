"""`init_process_group` in a job with a secret.

The store of such a job, for example that of distrun, accepts only clients that prove that they know
the secret. torch's client cannot do so. Therefore libdist's client is the store of torch there.
"""

from __future__ import annotations

import functools
import importlib
import os
import stat
from datetime import timedelta
from urllib.parse import parse_qsl, urlparse

from torch.distributed import Store

from ..store import TcpStore

# The name in `torch.distributed` belongs to the module's function.
torch_rendezvous = importlib.import_module("torch.distributed.rendezvous")

_MAX_SECRET_BYTES = 4096

# torch keeps the C++ part of a store only, and calls the Python part through it.
_alive: list[SecretStore] = []


class SecretStore(Store):
    """A TCP store with a secret, as a store of torch."""

    def __init__(self, host: str, port: int, secret: bytes, **options):
        super().__init__()
        self.host = host
        self.port = port
        self.secret = secret
        self._inner = TcpStore(host, port, secret=secret, **options)
        _alive.append(self)

    def clone(self):
        """Returns another connection to the store."""
        copy = SecretStore(self.host, self.port, self.secret, wait_for_workers=False)
        copy.set_timeout(self.timeout)
        return copy

    def set_timeout(self, timeout: timedelta):
        """Sets the time-out of `get` and `wait`."""
        super().set_timeout(timeout)
        self._inner.timeout = timeout.total_seconds()

    def set(self, key, value):
        """Stores a value."""
        self._inner.set(key, value)

    def get(self, key):
        """Returns the value of a key, and waits until the key exists."""
        return self._inner.get(key)

    def add(self, key, amount):
        """Adds to a counter, and returns the sum."""
        return self._inner.add(key, amount)

    def compare_set(self, key, expected, desired):
        """Stores `desired` if the value is `expected`, and returns the value after the call."""
        return self._inner.compare_set(key, expected, desired)

    def wait(self, keys, timeout=None):
        """Waits until all keys exist."""
        self._inner.wait(keys, (self.timeout if timeout is None else timeout).total_seconds())

    def check(self, keys):
        """Returns whether all keys exist now."""
        return self._inner.check(keys)

    def delete_key(self, key):
        """Removes a key, and returns whether it existed."""
        return self._inner.delete_key(key)

    def num_keys(self):
        """Returns the number of keys."""
        return self._inner.num_keys()

    # The names by which the C++ part calls these functions.
    deleteKey = delete_key
    getNumKeys = num_keys

    def has_extended_api(self):
        """The store has `append`, `multi_get` and `multi_set`."""
        return True

    def append(self, key, value):
        """Appends to a value."""
        self._inner.append(key, value)

    def multi_get(self, keys):
        """Returns the values of several keys, and waits until they exist."""
        return self._inner.multi_get(keys)

    def multi_set(self, keys, values):
        """Stores several values."""
        self._inner.multi_set(dict(zip(keys, values)))


def job_secret() -> bytes | None:
    """Returns the secret of the job, or None if it has none."""
    inherited = os.environ.get("DIST_STORE_SECRET_FD")
    path = os.environ.get("DIST_STORE_SECRET_FILE")
    if inherited:
        # The position belongs to all processes that have inherited the descriptor.
        text = os.pread(int(inherited), _MAX_SECRET_BYTES + 2, 0)
    elif path:
        with open(path, "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            text = file.read(_MAX_SECRET_BYTES + 2)
    else:
        return None
    secret = text.removesuffix(b"\n")
    if not 1 <= len(secret) <= _MAX_SECRET_BYTES:
        raise ValueError(f"libdist: the secret of the job has not 1 to {_MAX_SECRET_BYTES} bytes")
    return secret


def _check_owner(path: str, found: os.stat_result) -> None:
    """Refuses a file to which other users have access, as the library does."""
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"libdist: {path} is not a regular file")
    if found.st_uid not in (0, os.getuid()):
        raise ValueError(f"libdist: {path} must belong to this user or to root")
    if found.st_mode & 0o077:
        raise ValueError(f"libdist: {path} gives other users access; run chmod 600 {path}")


def _meet(url: str, secret: bytes, timeout: timedelta):
    """Returns the job's store, the rank, and the number of ranks."""
    query = dict(parse_qsl(urlparse(url).query))
    needed = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    for name in ("RANK", "WORLD_SIZE"):
        if name.lower() not in query and not os.environ.get(name):
            needed.append(name)
    if needed:
        raise ValueError(f"env:// rendezvous: {' and '.join(needed)} not set in the environment")
    rank = int(query.get("rank") or os.environ["RANK"])
    size = int(query.get("world_size") or os.environ["WORLD_SIZE"])
    # The launcher says so if it serves the store itself.
    is_served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = SecretStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        secret,
        size=size,
        is_server=not is_served and rank == 0,
        wait_for_workers=False,
        multi_tenant=True,
        timeout=timeout.total_seconds(),
    )
    return store, rank, size


def install() -> None:
    """Lets `env://` of torch use the job's secret, if there is one."""
    handlers = getattr(torch_rendezvous, "_rendezvous_handlers", {})
    known = handlers.get("env")
    if known is None or hasattr(known, "libdist_original"):
        return

    @functools.wraps(known)
    def handler(url, timeout=torch_rendezvous.default_pg_timeout, **options):
        secret = job_secret()
        if secret is None:
            yield from known(url, timeout=timeout, **options)
            return
        yield _meet(url, secret, timeout)
        raise RuntimeError("a second rendezvous by env:// is not possible")

    handler.libdist_original = known
    handlers["env"] = handler
