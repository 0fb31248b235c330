"""Uses the store of a job with a secret as a store of torch."""

import datetime
import sys

import torch
import torch.distributed as dist

from libdist.errors import Timeout

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
innermost = store
while isinstance(innermost, dist.PrefixStore):
    innermost = innermost.underlying_store
assert type(innermost).__name__ == "SecretStore", innermost

for backend in ("libdist", "gloo"):
    group = dist.new_group(backend=backend)
    ones = torch.ones(2)
    dist.all_reduce(ones, group=group)
    assert ones.tolist() == [size] * 2
gathered = [None] * size
dist.all_gather_object(gathered, rank)
assert gathered == list(range(size))

store.set(f"key{rank}", "text")
assert store.get(f"key{(rank + 1) % size}") == b"text"
dist.barrier()
assert store.check([f"key{rank}"]) and not store.check(["absent"])
assert store.num_keys() > size
if rank == 0:
    assert store.add("count", 2) == 2 and store.add("count", 3) == 5
    assert store.compare_set("key0", "text", "other") == b"other"
    assert store.delete_key("key0") and not store.delete_key("key0")
    assert store.has_extended_api()
    store.multi_set(["a", "b"], ["1", "2"])
    store.append("a", "3")
    assert store.multi_get(["a", "b"]) == [b"13", b"2"]
    assert store.clone().get("b") == b"2"
    try:
        store.wait(["absent"], datetime.timedelta(milliseconds=50))
        raise SystemExit("the wait did not end")
    except Timeout:
        pass
dist.barrier()
dist.destroy_process_group()
print("done")
