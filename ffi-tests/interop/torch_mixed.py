"""The torch side of a job of two processes, of which the other is `client.c`, section mixed.

    torch_mixed.py PORT libuv|legacy
"""

import datetime
import sys

import torch.distributed as dist

LIMIT = datetime.timedelta(seconds=40)


def expect(actual, expected):
    assert actual == expected, f"{actual!r} instead of {expected!r}"


def main():
    port, has_queues = int(sys.argv[1]), sys.argv[2] == "libuv"
    store = dist.TCPStore(
        "127.0.0.1", port, 2, is_master=False, timeout=LIMIT, wait_for_workers=False
    )
    store.set("from torch", "hello from torch")
    expect(store.get("from dist"), b"hello from dist")

    for _ in range(200):
        store.add("together", 1)
        store.append("marks", "t")
    store.barrier("counted", 2)
    expect(store.get("together"), b"400")
    expect(store.get("marks").count(b"t"), 200)
    expect(len(store.get("marks")), 400)

    winner = store.compare_set("winner", "", "torch")
    store.set("winner to torch", winner)
    expect(store.get("winner to dist"), winner)

    if has_queues:
        for item in ("one", "two", "three"):
            store.queue_push("to dist", item)
        expect([store.queue_pop("to torch") for _ in range(3)], [b"1", b"2", b"3"])

    met = dist.PrefixStore("outer", dist.PrefixStore("inner", store))
    met.barrier("met", 2)
    expect(store.get("inner/outer/met/num_members"), b"2")
    expect(store.get("inner/outer/met/last_member"), b"1")

    assert "from dist" in store.list_keys()
    store.barrier("end", 2)
    print("all as expected", flush=True)


main()
