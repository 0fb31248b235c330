/*
 * A rank of Gloo, called from C++.
 *
 *     gloo RANK RANKS PLACE
 *
 * The ranks connect through files in a folder, so that no port can be in use by another process.
 * Gloo has reduce_scatter only in an older form with one fixed order of blocks. This program does
 * not support it.
 */
#include "rank.h"
#include <exception>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <vector>

using Reduction = void (*)(void *, const void *, const void *, size_t);

enum : uint64_t { BALL = 1000, WHISTLE }; /* slots that no collective uses */

static std::shared_ptr<gloo::rendezvous::Context> world;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    _exit(1);
}

template <typename T> static Reduction reduction(const order *order)
{
    return order->redop == MIN ? static_cast<Reduction>(&gloo::min<T>)
           : order->redop == MAX ? static_cast<Reduction>(&gloo::max<T>)
                                 : static_cast<Reduction>(&gloo::sum<T>);
}

static void send(const void *from, size_t bytes, int to, uint64_t slot)
{
    auto buffer = world->createUnboundBuffer(const_cast<void *>(from), bytes);
    buffer->send(to, slot);
    buffer->waitSend();
}

static void receive(void *into, size_t bytes, int from, uint64_t slot)
{
    auto buffer = world->createUnboundBuffer(into, bytes);
    buffer->recv(from, slot);
    buffer->waitRecv();
}

static void ping_pong(const order *order, buffers *buffers)
{
    size_t bytes = order->count * order->dtype->size;
    int peer = rank == ROOT ? 1 : ROOT;
    if (rank == ROOT) {
        send(buffers->first, bytes, peer, BALL);
    }
    receive(buffers->second, bytes, peer, BALL);
    if (rank != ROOT) {
        send(buffers->first, bytes, peer, BALL);
    }
}

template <typename T> static void all_reduce(const order *order, T *input, T *output)
{
    gloo::AllreduceOptions options(world);
    if (!order->in_place) {
        options.setInput(input, order->count);
    }
    options.setOutput(output, order->count);
    options.setReduceFunction(reduction<T>(order));
    gloo::allreduce(options);
}

/* Only the root has a result, but Gloo needs an output buffer on every rank and writes to it. */
template <typename T> static void reduce(const order *order, T *input, T *output)
{
    gloo::ReduceOptions options(world);
    if (!order->in_place && rank == ROOT) {
        options.setInput(input, order->count);
    } else {
        output = input;
    }
    options.setOutput(output, order->count);
    options.setReduceFunction(reduction<T>(order));
    options.setRoot(ROOT);
    gloo::reduce(options);
}

template <typename T> static void scatter(const order *order, T *input, T *output)
{
    gloo::ScatterOptions options(world);
    if (rank == ROOT) {
        std::vector<T *> blocks;
        for (int to = 0; to < ranks; to++) {
            blocks.push_back(input + static_cast<size_t>(to) * order->block);
        }
        options.setInputs(blocks, order->block);
    }
    options.setOutput(rank == ROOT && !order->in_place ? output : input, order->block);
    options.setRoot(ROOT);
    gloo::scatter(options);
}

template <typename T> static void gather(const order *order, T *input, T *output)
{
    gloo::GatherOptions options(world);
    options.setInput(input, order->block);
    if (rank == ROOT) {
        options.setOutput(order->in_place ? input : output, static_cast<size_t>(order->count));
    }
    options.setRoot(ROOT);
    gloo::gather(options);
}

template <typename T> static void all_gather(const order *order, T *input, T *output)
{
    gloo::AllgatherOptions options(world);
    if (!order->in_place) {
        options.setInput(input, order->block);
    }
    options.setOutput(order->in_place ? input : output, static_cast<size_t>(order->count));
    gloo::allgather(options);
}

template <typename T> static int call_typed(const order *order, buffers *buffers)
{
    T *a = reinterpret_cast<T *>(buffers->first), *b = reinterpret_cast<T *>(buffers->second);
    size_t count = static_cast<size_t>(order->count);
    switch (order->op) {
    case ALL_REDUCE:
        all_reduce(order, a, order->in_place ? a : b);
        break;
    case REDUCE:
        reduce(order, a, b);
        break;
    case BROADCAST: {
        gloo::BroadcastOptions options(world);
        options.setOutput(a, count);
        options.setRoot(ROOT);
        gloo::broadcast(options);
        break;
    }
    case ALL_GATHER:
        all_gather(order, a, b);
        break;
    case ALL_TO_ALL: {
        gloo::AlltoallOptions options(world);
        options.setInput(a, count);
        options.setOutput(b, count);
        gloo::alltoall(options);
        break;
    }
    case BARRIER:
        meet_all();
        break;
    case GATHER:
        gather(order, a, b);
        break;
    case SCATTER:
        scatter(order, a, b);
        break;
    case SENDRECV:
        ping_pong(order, buffers);
        break;
    default:
        return 0;
    }
    return 1;
}

static int call(const order *order, buffers *buffers)
{
    switch (order->dtype->kind) {
    case I8:
        return call_typed<int8_t>(order, buffers);
    case U8:
        return call_typed<uint8_t>(order, buffers);
    case I16:
        return call_typed<int16_t>(order, buffers);
    case U16:
        return call_typed<uint16_t>(order, buffers);
    case I32:
        return call_typed<int32_t>(order, buffers);
    case U32:
        return call_typed<uint32_t>(order, buffers);
    case I64:
        return call_typed<int64_t>(order, buffers);
    case U64:
        return call_typed<uint64_t>(order, buffers);
    case F32:
        return call_typed<float>(order, buffers);
    default:
        return call_typed<double>(order, buffers);
    }
}

static void meet(const order *order)
{
    char byte = 0;
    if (order->op != SENDRECV) {
        meet_all();
    } else if (rank == ROOT) {
        receive(&byte, 1, 1, WHISTLE);
    } else {
        send(&byte, 1, ROOT, WHISTLE);
    }
}

static void meet_all(void)
{
    gloo::BarrierOptions options(world);
    gloo::barrier(options);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fail("this program is started by dist-bench");
    }
    rank = atoi(argv[1]);
    ranks = atoi(argv[2]);
    try {
        std::string folder = std::string(argv[3]) + ".store";
        mkdir(folder.c_str(), 0700);
        gloo::transport::tcp::attr loopback;
        loopback.iface = "lo";
        auto device = gloo::transport::tcp::CreateDevice(loopback);
        gloo::rendezvous::FileStore store(folder);
        world = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
        world->connectFullMesh(store, device);
        serve(argv[3]);
    } catch (const std::exception &error) {
        fail(error.what());
    }
    return 0;
}
