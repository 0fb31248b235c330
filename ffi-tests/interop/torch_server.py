"""torch's store server for our clients: prints "port N", and ends when its standard input does.

    torch_server.py libuv|legacy
"""

import datetime
import sys

import torch.distributed as dist

LIMIT = datetime.timedelta(seconds=40)


def main() -> None:
    backend = sys.argv[1]
    store = dist.TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        timeout=LIMIT,
        wait_for_workers=False,
        use_libuv=backend == "libuv",
    )
    assert store.libuvBackend == (backend == "libuv")
    print(f"port {store.port}", flush=True)
    sys.stdin.read()


main()
