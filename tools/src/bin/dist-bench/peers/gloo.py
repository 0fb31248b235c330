"""A rank of Gloo through PyTorch. It executes requests until the driver ends it, like `rank.h`.

    gloo.py RANK RANKS PREFIX

The rank reads requests, one per line, from the pipe PREFIX.RANK.orders (format: request.rs). It
writes responses to the pipe PREFIX.answers, and the stamps of each request to the file
PREFIX.RANK.sample. The values are those of values.rs. The ranks connect through a file, so that no
port can be in use by another process.

torch has all_reduce, reduce and broadcast only in place, and the other operations only with
separate result buffers. So the program does not support the former out of place. For the latter it
uses a separate result buffer for every request, as every caller of torch must.
"""

import gc
import os
import re
import struct
import sys
import time

import torch
import torch.distributed as dist

ROOT = 0
POISON = 0xA5
WORD = 8
PAGE = 4096

PING_PONG_TAG, SYNC_TAG = 0, 1  # tags

# The number of elements that are generated or compared at once, to bound the temporary memory.
PIECE = 1 << 20

TYPES = {
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}

REDOPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}

# The errors of torch for an operation or element type that Gloo does not support.
REFUSALS = re.compile("invalid scalar type|unsupported|not support|not implement", re.IGNORECASE)


class UnsupportedRequest(Exception):
    """The library does not support the request. All ranks raise it for the same requests."""


class Request:
    """One parsed request of the driver."""

    def __init__(self, line, ranks):
        words = line.split()
        self.offsets = (0, 0)
        if words[-1].startswith("@"):
            self.offsets = tuple(int(word) for word in words.pop()[1:].split(","))
        if len(words) != 13 or words[0] != "run":
            raise ValueError(f"not a valid request: {line}")
        self.op, self.type, self.redop = words[1:4]
        numbers = [int(word) for word in words[4:]]
        self.count, self.warm_up, self.calls, self.rewrite, self.barrier, self.in_place = numbers[:6]
        self.verify = numbers[8]
        self.block = self.count // ranks


class World:
    """The connected ranks."""

    def __init__(self, rank, ranks, path_prefix):
        self.rank, self.ranks = rank, ranks
        self.is_root = rank == ROOT
        store = dist.FileStore(f"{path_prefix}.store", ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)

    def sync_participants(self, request):
        """Synchronises the ranks that take part: all ranks, or the two ranks of a ping-pong."""
        if request.op != "sendrecv":
            dist.barrier()
        elif self.is_root:
            dist.recv(torch.empty(1, dtype=torch.uint8), 1, tag=SYNC_TAG)
        else:
            dist.send(torch.zeros(1, dtype=torch.uint8), ROOT, tag=SYNC_TAG)

    def call(self, request, buffers):
        """Returns a function that makes one call with prepared arguments."""
        a, b, redop = buffers.first, buffers.second, REDOPS.get(request.redop)
        if request.op in ("all_reduce", "reduce") and not request.in_place:
            raise UnsupportedRequest
        # In an operation with a root, only the root has a result.
        parts = [list(whole.chunk(self.ranks)) if self.is_root else None for whole in (a, b)]
        return {
            "all_reduce": lambda: dist.all_reduce(a, redop),
            "reduce": lambda: dist.reduce(a, ROOT, redop),
            "broadcast": lambda: dist.broadcast(a, ROOT),
            "all_gather": lambda: dist.all_gather_into_tensor(b, a),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(b, a, redop),
            "all_to_all": lambda: dist.all_to_all_single(b, a),
            "barrier": lambda: dist.barrier(),
            "gather": lambda: dist.gather(a, parts[1], ROOT),
            "scatter": lambda: dist.scatter(b, parts[0], ROOT),
            "sendrecv": self.root_ping_pong(a, b) if self.is_root else self.peer_ping_pong(a, b),
        }[request.op]

    def root_ping_pong(self, a, b):
        def ping_pong():
            dist.send(a, 1, tag=PING_PONG_TAG)
            dist.recv(b, 1, tag=PING_PONG_TAG)

        return ping_pong

    def peer_ping_pong(self, a, b):
        def ping_pong():
            dist.recv(b, ROOT, tag=PING_PONG_TAG)
            dist.send(a, ROOT, tag=PING_PONG_TAG)

        return ping_pong


def shape(request, world):
    """Returns the numbers of elements of both buffers on this rank.

    The input is in the first buffer. The result is in the second buffer, or in the first one if the
    second is empty.
    """
    whole, block = request.count, request.block
    of_root = whole if world.is_root else 0
    return {
        "all_reduce": (whole, 0),
        "reduce": (whole, 0),
        "broadcast": (whole, 0),
        "all_gather": (block, whole),
        "gather": (block, of_root),
        "reduce_scatter": (whole, block),
        "scatter": (of_root, block),
        "all_to_all": (whole, whole),
        "sendrecv": (whole, whole),
        "barrier": (0, 0),
    }[request.op]


def memory(size, offset):
    """Allocates whole words of memory at an offset in a page, like the buffers of all engines."""
    size = -(-size // WORD) * WORD
    room = torch.zeros(size + 2 * PAGE, dtype=torch.uint8)
    start = -room.data_ptr() % PAGE + offset
    return room[start : start + size]


class Buffers:
    """The buffers of one rank. They fit all requests of one kind."""

    def __init__(self, request, world):
        dtype = TYPES.get(request.type)
        if dtype is None:
            raise UnsupportedRequest
        counts = shape(request, world)
        offsets = request.offsets
        if request.op != "sendrecv":
            offsets = [offsets[0] if world.is_root else offsets[1]] * 2
        pairs = zip(counts, offsets)
        self.memories = [memory(count * dtype.itemsize, offset) for count, offset in pairs]
        pairs = zip(self.memories, counts)
        self.first, self.second = [bytes.view(dtype)[:count] for bytes, count in pairs]
        self.words = self.memories[0].view(torch.int64)

    def rewrite(self, word):
        """Overwrites the first buffer, as a program does that computes new values."""
        self.words.fill_(word)

    def fill(self, request, world):
        """Writes known values into the input, and poison everywhere else."""
        for bytes in self.memories:
            bytes.fill_(POISON)
        if request.op == "broadcast" and not world.is_root:
            return
        for low in range(0, len(self.first), PIECE):
            piece = self.first[low : low + PIECE]
            piece.copy_(value(world.rank, torch.arange(low, low + len(piece))))

    def count_wrong(self, request, world):
        """Returns the number of wrong elements in the result."""
        result = self.second if len(self.second) > 0 else self.first
        if request.op in ("reduce", "gather") and not world.is_root:
            return 0
        wrong = 0
        for low in range(0, len(result), PIECE):
            piece = result[low : low + PIECE]
            right = expected(request, world, torch.arange(low, low + len(piece)))
            wrong += int((piece != right.to(piece.dtype)).sum())
        return wrong


def value(rank, at):
    """Returns the input values of a rank at these indices."""
    mask = 0xFFFFFFFF
    return (((((at + 1) * 0x9E3779B1) & mask) ^ (((rank + 1) * 0x85EBCA6B) & mask)) >> 16) % 3


def reduced_value(request, world, at):
    """Returns the reduced values of all ranks at these indices."""
    values = torch.stack([value(rank, at) for rank in range(world.ranks)])
    return {"min": values.amin, "max": values.amax}.get(request.redop, values.sum)(dim=0)


def expected(request, world, at):
    block, own = request.block, world.rank * request.block
    if request.op in ("all_reduce", "reduce"):
        return reduced_value(request, world, at)
    if request.op == "reduce_scatter":
        return reduced_value(request, world, own + at)
    if request.op == "broadcast":
        return value(ROOT, at)
    if request.op == "scatter":
        return value(ROOT, own + at)
    if request.op in ("all_gather", "gather"):
        return value(at // block, at % block)
    if request.op == "all_to_all":
        return value(at // block, own + at % block)
    return value(int(world.is_root), at)


def execute(request, world, cache):
    """Makes the calls. Returns the number of wrong elements, and the stamps."""
    if request.op == "sendrecv" and world.rank > 1:
        return [0]
    kind = (request.op, request.type, request.count, request.offsets)
    if cache.get("kind") != kind:
        # Free the previous buffers before the allocation, because both may not fit in memory.
        cache.clear()
        cache.update(kind=kind, buffers=Buffers(request, world))
    buffers = cache["buffers"]
    call, now = world.call(request, buffers), time.monotonic_ns
    stamps = [0]
    if request.verify:
        buffers.fill(request, world)
        call()
        stamps[0] = buffers.count_wrong(request, world)
    if request.rewrite:
        buffers.rewrite(request.rewrite)
    world.sync_participants(request)
    for number in range(request.warm_up + request.calls):
        if request.rewrite:
            buffers.rewrite(request.rewrite)
        if request.barrier:
            world.sync_participants(request)
        start = now()
        call()
        end = now()
        if number >= request.warm_up:
            stamps += (start, end)
    # After this, the rank sleeps until a request arrives. No other rank may need it then.
    if request.op != "sendrecv":
        dist.barrier()
    return stamps


def execute_and_store(request, world, cache, sample):
    """Executes a request and writes its sample. Returns the response."""
    try:
        stamps = execute(request, world, cache)
    except UnsupportedRequest:
        return "not offered"
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if REFUSALS.search(str(error)):
            return "not offered"
        raise
    with open(sample, "wb") as file:
        file.write(struct.pack(f"<{len(stamps)}Q", *stamps))
    return "ok"


def serve_requests(world, path_prefix, requests, respond):
    cache = {}
    respond("ok")
    for line in requests:
        if line == "quit\n":
            return
        request = Request(line, world.ranks)
        respond(execute_and_store(request, world, cache, f"{path_prefix}.{world.rank}.sample"))


def main():
    rank, ranks, path_prefix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    response_pipe = os.open(f"{path_prefix}.answers", os.O_WRONLY)

    def respond(text):
        os.write(response_pipe, f"{rank} {text}\n".encode())

    try:
        with open(f"{path_prefix}.{rank}.orders") as requests:
            torch.set_num_threads(1)
            world = World(rank, ranks, path_prefix)
            # Pin after the start, and only this thread, like the other engines. Gloo's threads
            # use any core.
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
            gc.disable()
            serve_requests(world, path_prefix, requests, respond)
            dist.destroy_process_group()
    except Exception as error:
        message = " ".join(str(error).split())
        respond(f"{type(error).__name__}: {message[:500]}")
        raise


main()
