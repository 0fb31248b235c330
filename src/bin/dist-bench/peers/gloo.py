"""A rank of Gloo through PyTorch. It executes requests until the driver ends it, like `rank.h` for peers in C.

    gloo.py RANK RANKS PLACE

The rank reads requests, one per line, from the pipe PLACE.RANK.orders (format: request.rs). It writes
responses to the pipe PLACE.answers, and the stamps of each request to the file PLACE.RANK.sample. The
values are those of values.rs. The ranks connect through a file, so that no port can be in use by
another process.

torch has all_reduce, reduce and broadcast only in place, and the other operations only with separate
result buffers. So the program does not support the former out of place. For the latter it uses a
separate result buffer for every request, as every caller of torch must.
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

BALL, WHISTLE = 0, 1  # tags

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


class NotOffered(Exception):
    """The library has nothing for an order, which all ranks find alike."""


class Order:
    """One order, as the driver writes it."""

    def __init__(self, line, ranks):
        words = line.split()
        if len(words) != 13 or words[0] != "run":
            raise ValueError(f"not an order: {line}")
        self.op, self.type, self.redop = words[1:4]
        numbers = [int(word) for word in words[4:]]
        self.count, self.warm_up, self.calls, self.rewrite, self.barrier, self.in_place = numbers[:6]
        self.verify = numbers[8]
        self.block = self.count // ranks


class World:
    """The ranks, which have come together."""

    def __init__(self, rank, ranks, place):
        self.rank, self.ranks = rank, ranks
        self.is_root = rank == ROOT
        store = dist.FileStore(f"{place}.store", ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)

    def meet(self, order):
        """The ranks that take part come together: for a ping-pong the two of it."""
        if order.op != "sendrecv":
            dist.barrier()
        elif self.is_root:
            dist.recv(torch.empty(1, dtype=torch.uint8), 1, tag=WHISTLE)
        else:
            dist.send(torch.zeros(1, dtype=torch.uint8), ROOT, tag=WHISTLE)

    def call(self, order, buffers):
        """What makes one call, with all that is the same each time."""
        a, b, redop = buffers.first, buffers.second, REDOPS.get(order.redop)
        if order.op in ("all_reduce", "reduce") and not order.in_place:
            raise NotOffered
        # If the operation has a root, only the root has a result.
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
            "sendrecv": self.serve_ball(a, b) if self.is_root else self.return_ball(a, b),
        }[order.op]

    def serve_ball(self, a, b):
        def ping_pong():
            dist.send(a, 1, tag=BALL)
            dist.recv(b, 1, tag=BALL)

        return ping_pong

    def return_ball(self, a, b):
        def ping_pong():
            dist.recv(b, ROOT, tag=BALL)
            dist.send(a, ROOT, tag=BALL)

        return ping_pong


def shape(order, world):
    """The elements of the two buffers on this rank: input in the first, result in the second unless that is empty."""
    whole, block = order.count, order.block
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
    }[order.op]


def memory(size):
    """Bytes that begin where a page does, as all engines' buffers, and are whole words."""
    size = -(-size // WORD) * WORD
    room = torch.zeros(size + PAGE, dtype=torch.uint8)
    start = -room.data_ptr() % PAGE
    return room[start : start + size]


class Buffers:
    """The buffers of one rank for one kind of order."""

    def __init__(self, order, world):
        dtype = TYPES.get(order.type)
        if dtype is None:
            raise NotOffered
        counts = shape(order, world)
        self.memories = [memory(count * dtype.itemsize) for count in counts]
        pairs = zip(self.memories, counts)
        self.first, self.second = [bytes.view(dtype)[:count] for bytes, count in pairs]
        self.words = self.memories[0].view(torch.int64)

    def rewrite(self, word):
        """Writes the whole of the first buffer anew, as a caller does that has new values."""
        self.words.fill_(word)

    def fill(self, order, world):
        """Puts known values where a call reads, and what cannot be a result everywhere else."""
        for bytes in self.memories:
            bytes.fill_(POISON)
        if order.op == "broadcast" and not world.is_root:
            return
        for low in range(0, len(self.first), PIECE):
            piece = self.first[low : low + PIECE]
            piece.copy_(value(world.rank, torch.arange(low, low + len(piece))))

    def count_wrong(self, order, world):
        """How many elements of the result are not what they should be."""
        result = self.second if len(self.second) > 0 else self.first
        if order.op in ("reduce", "gather") and not world.is_root:
            return 0
        wrong = 0
        for low in range(0, len(result), PIECE):
            piece = result[low : low + PIECE]
            right = expected(order, world, torch.arange(low, low + len(piece)))
            wrong += int((piece != right.to(piece.dtype)).sum())
        return wrong


def value(rank, at):
    """What a rank has at a place of its input."""
    mask = 0xFFFFFFFF
    return (((((at + 1) * 0x9E3779B1) & mask) ^ (((rank + 1) * 0x85EBCA6B) & mask)) >> 16) % 3


def folded(order, world, at):
    """What the ranks' values at a place become."""
    values = torch.stack([value(rank, at) for rank in range(world.ranks)])
    return {"min": values.amin, "max": values.amax}.get(order.redop, values.sum)(dim=0)


def expected(order, world, at):
    block, own = order.block, world.rank * order.block
    if order.op in ("all_reduce", "reduce"):
        return folded(order, world, at)
    if order.op == "reduce_scatter":
        return folded(order, world, own + at)
    if order.op == "broadcast":
        return value(ROOT, at)
    if order.op == "scatter":
        return value(ROOT, own + at)
    if order.op in ("all_gather", "gather"):
        return value(at // block, at % block)
    if order.op == "all_to_all":
        return value(at // block, own + at % block)
    return value(int(world.is_root), at)


def carry_out(order, world, kept):
    """Makes the calls: the count of wrong elements, and the stamps."""
    if order.op == "sendrecv" and world.rank > 1:
        return [0]
    kind = (order.op, order.type, order.count)
    if kept.get("kind") != kind:
        # Free the previous buffers first, since both may not fit in memory.
        kept.clear()
        kept.update(kind=kind, buffers=Buffers(order, world))
    buffers = kept["buffers"]
    call, now = world.call(order, buffers), time.monotonic_ns
    stamps = [0]
    if order.verify:
        buffers.fill(order, world)
        call()
        stamps[0] = buffers.count_wrong(order, world)
    if order.rewrite:
        buffers.rewrite(order.rewrite)
    world.meet(order)
    for number in range(order.warm_up + order.calls):
        if order.rewrite:
            buffers.rewrite(order.rewrite)
        if order.barrier:
            world.meet(order)
        start = now()
        call()
        end = now()
        if number >= order.warm_up:
            stamps += (start, end)
    # No rank may sleep while another rank still needs it.
    if order.op != "sendrecv":
        dist.barrier()
    return stamps


def outcome(order, world, kept, sample):
    """Carries out an order; the answer."""
    try:
        stamps = carry_out(order, world, kept)
    except NotOffered:
        return "not offered"
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if REFUSALS.search(str(error)):
            return "not offered"
        raise
    with open(sample, "wb") as file:
        file.write(struct.pack(f"<{len(stamps)}Q", *stamps))
    return "ok"


def obey(world, place, orders, answer):
    kept = {}
    answer("ok")
    for line in orders:
        if line == "quit\n":
            return
        answer(outcome(Order(line, world.ranks), world, kept, f"{place}.{world.rank}.sample"))


def main():
    rank, ranks, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    answers = os.open(f"{place}.answers", os.O_WRONLY)

    def answer(text):
        os.write(answers, f"{rank} {text}\n".encode())

    try:
        with open(f"{place}.{rank}.orders") as orders:
            torch.set_num_threads(1)
            world = World(rank, ranks, place)
            # Pin after the start, and only this thread, like the other engines: Gloo's threads use any core.
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
            gc.disable()
            obey(world, place, orders, answer)
            dist.destroy_process_group()
    except Exception as error:
        said = " ".join(str(error).split())
        answer(f"{type(error).__name__}: {said[:500]}")
        raise


main()
