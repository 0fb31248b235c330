"""Threads that settle works, so that callbacks of futures may wait for other works.

The library has one thread for completion callbacks. torch runs the callbacks of a future on the
thread that resolves it, and some communication hooks wait in them. Therefore each settled work
gets a thread of its own until its callbacks have returned; idle threads are used again.
"""

from __future__ import annotations

import collections
import os
import threading


class Threads:
    """Threads that run functions in the order of `submit`."""

    def __init__(self):
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self):
        self._changed = threading.Condition(threading.Lock())
        self._queue = collections.deque()
        self._idle = 0

    def submit(self, function, *arguments):
        """Runs a function on an idle thread, or on a new one."""
        with self._changed:
            self._queue.append((function, arguments))
            if self._idle >= len(self._queue):
                self._changed.notify()
                return
        threading.Thread(target=self._run, name="libdist-futures", daemon=True).start()

    def _run(self):
        while True:
            with self._changed:
                self._idle += 1
                # The interpreter ends daemon threads, so the wait needs no limit.
                while not self._queue:
                    self._changed.wait()
                self._idle -= 1
                function, arguments = self._queue.popleft()
            function(*arguments)
            del function, arguments
