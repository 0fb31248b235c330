"""Runs a function on several ranks, which are forks of this process, for the tests of torch."""

import atexit
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback

LIMIT_S = 120


def free_port():
    """Returns a port that no process uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def layout_variables(layout, rank, ranks):
    """Returns the environment variables that place a rank, in all its groups."""
    if layout == "tcp":
        return {"DIST_TRANSPORT": "tcp"}
    if layout == "hosts":
        return {"DIST_HOST_ID": f"host{rank * 2 // ranks}"}
    return {}


def init(layout="host", name="libdist", timeout_s=60):
    """Creates the default group of torch in a rank."""
    import datetime

    import torch.distributed as dist

    # An old torch does not look for back ends itself.
    import libdist.torch  # noqa: F401

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.update(layout_variables(layout, rank, ranks))
    dist.init_process_group(name, timeout=datetime.timedelta(seconds=timeout_s))


def temporary_folder(purpose):
    """Creates a folder that is removed when this process ends."""
    folder, owner = tempfile.mkdtemp(prefix=f"torch-{purpose}-"), os.getpid()

    def remove():
        # The ranks are forked from this process.
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def start(function, ranks, arguments=()):
    """Starts the ranks; returns their process ids and the folder of their results."""
    folder = temporary_folder("ranks")
    port = free_port()
    children = []
    sys.stdout.flush()
    sys.stderr.flush()
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            _run(function, rank, ranks, port, folder, arguments)
        children.append(child)
    return children, folder


def _run(function, rank, ranks, port, folder, arguments):
    """Runs the function in a rank, and ends the process as an interpreter ends."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    try:
        result = ("result", function(*arguments))
    except BaseException as error:  # noqa: BLE001 - the parent reports it
        result = (
            "error",
            f"rank {rank}: {type(error).__name__}: {error}\n{traceback.format_exc()}",
        )
    with open(os.path.join(folder, str(rank)), "wb") as file:
        pickle.dump(result, file)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0 if result[0] == "result" else 1)


def join(children, limit_s=LIMIT_S):
    """Waits for the ranks, and returns their exit statuses; kills ranks that do not end."""
    end = time.monotonic() + limit_s
    statuses = {}
    while len(statuses) < len(children):
        for child in children:
            if child in statuses:
                continue
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                statuses[child] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            late = [child for child in children if child not in statuses]
            for child in late:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            raise TimeoutError(f"ranks {[children.index(c) for c in late]} did not end")
        time.sleep(0.002)
    return [statuses[child] for child in children]


def results(folder, ranks, statuses=()):
    """Returns what the ranks have returned; raises the errors of all ranks together.

    The rank with the first error is rarely the one that caused it.
    """
    values, errors = [], []
    for rank in range(ranks):
        try:
            with open(os.path.join(folder, str(rank)), "rb") as file:
                kind, value = pickle.load(file)
        except (FileNotFoundError, EOFError):
            kind, value = "error", f"rank {rank} has ended without a result"
        values.append(value)
        if kind == "error":
            errors.append(value)
    if errors:
        raise AssertionError("\n".join([*errors, f"exit statuses {list(statuses)}"]))
    return values


def run(function, ranks, *arguments):
    """Runs a function on several ranks, and returns their results."""
    children, folder = start(function, ranks, arguments)
    statuses = join(children)
    values = results(folder, ranks, statuses)
    if any(statuses):
        raise AssertionError(f"{function.__name__}: exit statuses {statuses}")
    return values
