"""Threads that settle works, so that callbacks of futures may wait for other works.

The library has one thread for completion callbacks. torch runs the callbacks of a future on the
thread that resolves it, and some communication hooks wait in them. Therefore each settled work
gets a thread of its own until its callbacks have returned; idle threads are used again.
"""

from __future__ import annotations

import collections
import os
import threading
import time


class Threads:
    """Threads that run functions in the order of `submit`."""

    def __init__(self):
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self):
        self._changed = threading.Condition(threading.Lock())
        self._queue = collections.deque()
        self._idle = 0
        self._closed = False
        self._living = set()

    def submit(self, function, *arguments):
        """Runs a function on an idle thread, or on a new one."""
        with self._changed:
            if self._closed:
                return
            self._queue.append((function, arguments))
            if self._idle >= len(self._queue):
                self._changed.notify()
                return
            # `close` joins all threads of the set, so a thread enters it only after its start.
            thread = threading.Thread(target=self._run, name="libdist-futures", daemon=True)
            thread.start()
            self._living.add(thread)

    def close(self, limit_s):
        """Ends the threads, after what they were asked to run.

        A thread that is inside torch when the interpreter ends would end the process.
        """
        end = time.monotonic() + limit_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._living)
        for thread in threads:
            thread.join(max(0, end - time.monotonic()))

    def _run(self):
        while True:
            with self._changed:
                self._idle += 1
                # `close` ends the wait, so it needs no limit.
                while not self._queue and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._queue:
                    self._living.discard(threading.current_thread())
                    return
                function, arguments = self._queue.popleft()
            function(*arguments)
            del function, arguments


threads = Threads()
