"""Runs a function in new processes, one for each rank, for programs that have no launcher.

The processes start with the "spawn" method of `multiprocessing`: a new interpreter imports the
module of the function. This process serves the store of their world, and only they know its
secret. `dist_spawn` of the C interface forks, which is unsafe in a process of Python with threads.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
import traceback

from . import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

# The other ranks get this time to fail on their own after the first rank has failed.
_SETTLE = 0.1
# The kernel gets this time to end a killed process.
_KILL = 5.0


def spawn(function: Callable[..., Any], nprocs: int, args: Sequence[Any] = (), *,
          timeout: float | None = None, grace: float = 2.0) -> list[Any]:
    """Runs `function(*args)` in `nprocs` new processes, and returns their results.

    In each process, `dist.init()` creates the world of all of them. The function must be importable
    by its name; a script needs `if __name__ == "__main__":`. If a rank fails, the others get 100 ms
    to fail on their own, then SIGTERM, and SIGKILL after `grace` seconds; then the call raises
    `PeerFailed` with the rank and the traceback. `timeout` limits all processes together.
    """
    import multiprocessing

    from .store import TcpStore

    if nprocs < 1:
        raise ValueError("spawn: nprocs is 1 or more")
    context = multiprocessing.get_context("spawn")
    secret = secrets.token_bytes(32)
    store = TcpStore("127.0.0.1", 0, is_server=True, wait_for_workers=False, secret=secret)
    children: list[_Child] = []
    try:
        for rank in range(nprocs):
            setting = (rank, nprocs, store.port, secret, os.getpid())
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=_run_rank, args=(send, setting, function, args),
                                      name=f"rank {rank}")
            process.start()
            send.close()
            children.append(_Child(rank, process, receive))
        _wait_for_all(children, timeout, grace)
    finally:
        _end(children, grace)
        store.release()
    return [child.result for child in children]


class _Child:
    """One rank: its process, and the pipe for its outcome."""

    def __init__(self, rank: int, process: Any, pipe: Any) -> None:
        self.rank = rank
        self.process = process
        self.pipe = pipe
        self.has_outcome = False
        self.result: Any = None
        self.failure: str | None = None

    def receive(self) -> None:
        """Reads the outcome, if it is there."""
        try:
            if not self.has_outcome and self.pipe.poll():
                is_ok, value = self.pipe.recv()
                self.has_outcome = True
                if is_ok:
                    self.result = value
                else:
                    self.failure = value
        except EOFError:
            self.has_outcome = True

    def how_it_failed(self) -> str | None:
        """Returns how the rank failed; None while it runs and after success."""
        self.receive()
        if self.failure is not None:
            return self.failure
        code = self.process.exitcode
        if code is None or code == 0:
            return None
        return f"ended by signal {-code}" if code < 0 else f"exit status {code}"


def _wait_for_all(children: list[_Child], timeout: float | None, grace: float) -> None:
    from multiprocessing.connection import wait

    end = None if timeout is None else time.monotonic() + timeout
    running = list(children)
    while running:
        left = None if end is None else max(0.0, end - time.monotonic())
        sentinels = [it.process.sentinel for it in running]
        pipes = [it.pipe for it in running if not it.has_outcome]
        wait([*sentinels, *pipes], left)
        ended = [it for it in running if it.process.exitcode is not None]
        for child in running:
            failure = child.how_it_failed()
            if failure is not None:
                first = _first_failure(children, child, failure)
                _end(children, grace)
                raise first
        # A rank that has ended during this loop is looked at once more.
        running = [it for it in running if it not in ended]
        if running and end is not None and time.monotonic() >= end:
            ranks = ", ".join(str(it.rank) for it in running)
            _end(children, grace)
            raise errors.Timeout(f"spawn: the ranks {ranks} still ran after {timeout} s",
                                 operation="spawn")


def _first_failure(children: list[_Child], child: _Child, failure: str) -> errors.PeerFailed:
    """Waits for the other ranks to fail on their own, and returns the exception of the first."""
    end = time.monotonic() + _SETTLE
    while time.monotonic() < end and any(it.process.exitcode is None for it in children):
        time.sleep(0.005)
    message = f"spawn: rank {child.rank} (process {child.process.pid}) failed: {failure}"
    return errors.PeerFailed(message, rank=child.rank, pid=child.process.pid, kind="failed",
                             host=os.uname().nodename, operation="spawn")


def _end(children: list[_Child], grace: float) -> None:
    """Ends the processes that still run, and reads the outcomes of all."""
    for child in children:
        if child.process.exitcode is None:
            child.process.terminate()
    limit = time.monotonic() + grace
    for child in children:
        child.process.join(max(0.0, limit - time.monotonic()))
        if child.process.exitcode is None:
            child.process.kill()
            child.process.join(_KILL)
        child.receive()
        child.pipe.close()


def _run_rank(pipe: Any, setting: tuple[int, int, int, bytes, int], function: Any,
              args: Sequence[Any]) -> None:
    """The main function of a rank."""
    rank, size, port, secret, parent = setting
    _die_with(parent)
    descriptor = os.memfd_create("libdist-secret")
    os.write(descriptor, secret)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.environ.update({
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "DIST_STORE_SECRET_FD": str(descriptor),
    })
    try:
        outcome = (True, function(*args))
        _finalize()
    except SystemExit:
        raise
    except BaseException:
        # The parent prints the traceback of the rank that failed first.
        pipe.send((False, traceback.format_exc()))
        pipe.close()
        sys.stdout.flush()
        sys.stderr.flush()
        # Without the end of the interpreter, so that the peers see the failure at once.
        os._exit(1)
    pipe.send(outcome)
    pipe.close()


def _finalize() -> None:
    """Ends the world here: multiprocessing ends its processes without the functions of atexit."""
    from .process import finalize, is_initialized

    if is_initialized():
        finalize()


def _die_with(parent: int) -> None:
    """Lets the kernel kill this process when its parent dies."""
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
