"""Tests every method of torch's store client against a server of libdist.

    torch_client.py PORT basics|waits|queues|names|prefixes
    torch_client.py PORT member RANK SIZE
"""

import datetime
import sys
import threading
import time

import torch.distributed as dist

LIMIT = datetime.timedelta(seconds=40)
# The timeout of calls that cannot succeed. All other calls have LIMIT, since the machine may be busy.
SHORT = datetime.timedelta(milliseconds=300)


def connect(port, world_size=None):
    return dist.TCPStore(
        "127.0.0.1", port, world_size, is_master=False, timeout=LIMIT, wait_for_workers=False
    )


def expect(actual, expected):
    assert actual == expected, f"{actual!r} instead of {expected!r}"


def expect_error(call, error, *words):
    """Checks that the call raises this error, and that its message contains the words."""
    try:
        call()
    except error as raised:
        for word in words:
            assert word in str(raised), f"{word!r} is not in {raised!s}"
    else:
        raise AssertionError(f"{error.__name__} was expected")


def check_basics(store):
    store.set("key", "value")
    expect(store.get("key"), b"value")
    store.set("key", "another")
    expect(store.get("key"), b"another")
    store.set("empty", "")
    expect(store.get("empty"), b"")
    large = "x" * (1 << 20)
    store.set("large", large)
    expect(store.get("large"), large.encode())

    expect(store.add("counter", 5), 5)
    expect(store.add("counter", -7), -2)
    expect(store.get("counter"), b"-2")
    expect(store.add("counter", (1 << 63) - 1), (1 << 63) - 3)
    expect(store.add("counter", 3), -(1 << 63))

    expect(store.compare_set("swap", "", "one"), b"one")
    expect(store.compare_set("swap", "one", "two"), b"two")
    expect(store.compare_set("swap", "one", "three"), b"two")
    expect(store.compare_set("no such key", "expected", "new"), b"expected")
    expect(store.check(["no such key"]), False)

    expect(store.check([]), True)
    expect(store.check(["key", "empty"]), True)
    expect(store.check(["key", "missing"]), False)

    before = store.num_keys()
    store.set("one more", "")
    expect(store.num_keys(), before + 1)
    expect(store.delete_key("one more"), True)
    expect(store.delete_key("one more"), False)
    expect(store.num_keys(), before)

    store.append("text", "ab")
    store.append("text", "cd")
    expect(store.get("text"), b"abcd")
    store.multi_set(["first", "second", "third"], ["1", "", "333"])
    expect(store.multi_get(["third", "first", "second"]), [b"333", b"1", b""])
    expect(store.multi_get([]), [])
    assert store.has_extended_api()

    twin = store.clone()
    expect(twin.get("key"), b"another")
    twin.set("key", "by the twin")
    expect(store.get("key"), b"by the twin")

    # torch's protocol has no other answer to a sum that cannot be made than the end of the connection.
    store.set("words", "no number")
    expect_error(lambda: twin.add("words", 1), dist.DistError)
    expect(store.get("words"), b"no number")


def check_waits(store):
    store.set("present", "")
    store.wait(["present"])
    store.wait([])
    began = time.monotonic()
    expect_error(lambda: store.wait(["present", "absent"], SHORT), dist.DistStoreError, "absent")
    assert time.monotonic() - began >= SHORT.total_seconds()
    store.set("absent", "late")
    store.wait(["present", "absent"], LIMIT)
    expect(store.get("absent"), b"late")

    hasty = store.clone()
    hasty.set_timeout(SHORT)
    expect_error(lambda: hasty.get("nobody sets this"), dist.DistStoreError)
    expect_error(lambda: hasty.multi_get(["present", "nobody sets this"]), dist.DistStoreError)
    hasty.set_timeout(LIMIT)
    expect(hasty.get("present"), b"")
    expect(hasty.add("after time-outs", 1), 1)

    for name, change in (
        ("by set", lambda s: s.set("by set", "x")),
        ("by add", lambda s: s.add("by add", 1)),
        ("by append", lambda s: s.append("by append", "x")),
        ("by compare_set", lambda s: s.compare_set("by compare_set", "", "x")),
        ("by multi_set", lambda s: s.multi_set(["other", "by multi_set"], ["", "x"])),
    ):
        run_while_waiting(store, lambda s, name=name: s.wait([name]), change)


def run_while_waiting(store, waiting, changing):
    """A call that waits in one thread returns because of what another does."""
    problems = []

    def run():
        try:
            waiting(store.clone())
        except Exception as raised:  # the main thread re-raises it
            problems.append(raised)

    thread = threading.Thread(target=run)
    thread.start()
    changing(store)
    thread.join(LIMIT.total_seconds())
    assert not thread.is_alive(), "the waiting call has not returned"
    assert not problems, problems


def check_queues(store):
    keys = store.num_keys()
    expect(store.queue_len("queue"), 0)
    expect_error(lambda: store.queue_pop("queue", False), dist.QueueEmptyError)
    for item in ("one", "", "three"):
        store.queue_push("queue", item)
    expect(store.queue_len("queue"), 3)
    expect(store.queue_pop("queue"), b"one")
    expect(store.queue_pop("queue", False), b"")
    expect(store.queue_pop("queue", True), b"three")
    expect(store.queue_len("queue"), 0)
    expect(store.num_keys(), keys)
    hasty = store.clone()
    hasty.set_timeout(SHORT)
    expect_error(lambda: hasty.queue_pop("queue"), dist.DistStoreError)
    actual = []
    run_while_waiting(
        store, lambda s: actual.append(s.queue_pop("queue")), lambda s: s.queue_push("queue", "late")
    )
    expect(actual, [b"late"])


def check_names(store):
    expect(store.list_keys(), [])
    store.set("a", "")
    store.set("b/c", "")
    expect(sorted(store.list_keys()), ["a", "b/c"])
    store.delete_key("a")
    expect(store.list_keys(), ["b/c"])
    expect(store.host, "127.0.0.1")

    store.barrier("alone", 1)
    expect_error(lambda: store.barrier("too few", 2, SHORT), dist.DistStoreError)
    store.barrier("too few", 2, LIMIT)
    run_while_waiting(store, lambda s: s.barrier("two", 2), lambda s: s.barrier("two", 2))


def check_prefixes(store):
    inner = dist.PrefixStore("inner", store)
    outer = dist.PrefixStore("outer", inner)
    inner.set("key", "one")
    outer.set("key", "two")
    expect(store.get("inner/key"), b"one")
    expect(store.get("inner/outer/key"), b"two")
    expect(outer.add("counter", 3), 3)
    expect(outer.compare_set("key", "two", "three"), b"three")
    expect(outer.multi_get(["key", "counter"]), [b"three", b"3"])
    outer.wait(["key"])
    expect_error(lambda: outer.wait(["missing"], SHORT), dist.DistStoreError)
    outer.append("key", "+")
    expect(outer.get("key"), b"three+")
    expect(outer.delete_key("key"), True)
    expect(outer.check(["key"]), False)
    outer.queue_push("queue", "item")
    expect(store.queue_len("inner/outer/queue"), 1)
    expect(outer.queue_pop("queue"), b"item")
    inner.barrier("alone", 1)
    expect(store.multi_get(["inner/alone/num_members", "inner/alone/last_member"]), [b"1", b"1"])
    run_while_waiting(
        store,
        lambda s: dist.PrefixStore("two", s).barrier("meeting", 2),
        lambda s: dist.PrefixStore("two", s).barrier("meeting", 2),
    )


def run_member(store, rank, size):
    """One of several processes that use the store at once."""
    store.set(f"hello/{rank}", str(rank))
    everybody = [f"hello/{other}" for other in range(size)]
    expect(store.multi_get(everybody), [str(other).encode() for other in range(size)])
    for _ in range(500):
        store.add("sum", 1)
        store.append("marks", chr(ord("a") + rank))
    store.barrier("counted", size)
    expect(store.get("sum"), str(500 * size).encode())
    marks = store.get("marks")
    for other in range(size):
        expect(marks.count(b"abcdefgh"[other : other + 1]), 500)

    for number in range(100):
        store.queue_push("items", f"{rank}:{number}")
    mine = [store.queue_pop("items").decode() for _ in range(100)]
    store.set(f"taken/{rank}", ",".join(mine))
    taken = store.multi_get([f"taken/{other}" for other in range(size)])
    taken = sorted(item for items in taken for item in items.decode().split(","))
    expect(taken, sorted(f"{other}:{number}" for other in range(size) for number in range(100)))

    dist.PrefixStore("a", dist.PrefixStore("b", store)).barrier("end", size)
    expect(store.get("b/a/end/num_members"), str(size).encode())


def main():
    port, section = int(sys.argv[1]), sys.argv[2]
    if section == "member":
        rank, size = int(sys.argv[3]), int(sys.argv[4])
        store = connect(port, size)
        run_member(store, rank, size)
    else:
        sections = {
            "basics": check_basics,
            "waits": check_waits,
            "queues": check_queues,
            "names": check_names,
            "prefixes": check_prefixes,
        }
        sections[section](connect(port))
    print("all as expected", flush=True)


main()
