"""A process group of torchft over libdist, in place of `torchft.ProcessGroupGloo`.

    import torchft
    from libdist.torchft import ProcessGroupLibdist

    manager = torchft.Manager(pg=ProcessGroupLibdist(timeout=timedelta(seconds=10)), ...)

After a failure, `errored` returns an exception that names the failed replica.
"""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from .torch import Settings, backend_of
from .torch._backend import create

_CUSTOM = dist.ProcessGroup.BackendType.CUSTOM
_DEFAULT_TIMEOUT = timedelta(seconds=60)


class ProcessGroupLibdist(ProcessGroupWrapper):
    """A process group whose ranks meet again, in a new group of libdist, for each quorum.

    `timeout` is the time for the ranks to meet, and for each operation. `settings` are the options
    of the back end.
    """

    def __init__(self, timeout: timedelta = _DEFAULT_TIMEOUT,
                 settings: Settings | None = None) -> None:
        super().__init__(timeout)
        self._settings = settings or Settings()

    def getBackendName(self) -> str:
        """Returns the name of the back end."""
        return "torchft-libdist"

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        backend = create(
            SimpleNamespace(
                store=store,
                group_rank=rank,
                group_size=world_size,
                group_id=f"torchft_quorum_{self._quorum_id}",
                timeout=self._timeout,
                global_ranks_in_group=self._global_ranks or (),
            ),
            self._settings,
        )
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(_CUSTOM)
        group._register_backend(torch.device("cpu"), _CUSTOM, backend)
        if torch.cuda.is_available():
            group._register_backend(torch.device("cuda"), _CUSTOM, backend)
        return group

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time-out of later operations."""
        super().set_timeout(timeout)
        if self._pg is not None:
            backend_of(self._pg).set_timeout(timeout)

    def errored(self) -> Exception | None:
        """Returns the error that failed the group; it names the guilty rank."""
        return None if self._pg is None else backend_of(self._pg).native_group().failure

    def abort(self, errored: bool = True) -> None:
        """Ends the group, and fails the operations of its other ranks if `errored`.

        A group that ends for a new quorum does not fail: other replicas may still be finishing the
        last step.
        """
        group = self._pg
        if group is not None and errored:
            backend_of(group).abort()
        self.shutdown()

    def shutdown(self) -> None:
        """Leaves the group."""
        group, self._pg = self._pg, None
        if group is not None:
            backend_of(group).shutdown()
