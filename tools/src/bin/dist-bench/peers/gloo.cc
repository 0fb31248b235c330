/*
 * A rank of Gloo, called from C++.
 *
 *     gloo RANK RANKS PREFIX
 *
 * The ranks connect through files in a folder, so that no port can be in use by another process.
 * Gloo only has an older reduce_scatter with one fixed order of blocks. This program does not
 * support reduce_scatter.
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

enum : uint64_t { PING_PONG_SLOT = 1000, SYNC_SLOT }; /* slots that no collective uses */

static std::shared_ptr<gloo::rendezvous::Context> world;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    _exit(1);
}

template <typename T> static Reduction reduction(const request *request)
{
    return request->redop == MIN ? static_cast<Reduction>(&gloo::min<T>)
           : request->redop == MAX ? static_cast<Reduction>(&gloo::max<T>)
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

static void ping_pong(const request *request, buffers *buffers)
{
    size_t bytes = request->count * request->dtype->size;
    int peer = rank == ROOT ? 1 : ROOT;
    if (rank == ROOT) {
        send(buffers->first, bytes, peer, PING_PONG_SLOT);
    }
    receive(buffers->second, bytes, peer, PING_PONG_SLOT);
    if (rank != ROOT) {
        send(buffers->first, bytes, peer, PING_PONG_SLOT);
    }
}

template <typename T> static void all_reduce(const request *request, T *input, T *output)
{
    gloo::AllreduceOptions options(world);
    if (!request->in_place) {
        options.setInput(input, request->count);
    }
    options.setOutput(output, request->count);
    options.setReduceFunction(reduction<T>(request));
    gloo::allreduce(options);
}

/* Only the root has a result, but Gloo needs an output buffer on every rank and writes to it. */
template <typename T> static void reduce(const request *request, T *input, T *output)
{
    gloo::ReduceOptions options(world);
    if (!request->in_place && rank == ROOT) {
        options.setInput(input, request->count);
    } else {
        output = input;
    }
    options.setOutput(output, request->count);
    options.setReduceFunction(reduction<T>(request));
    options.setRoot(ROOT);
    gloo::reduce(options);
}

template <typename T> static void scatter(const request *request, T *input, T *output)
{
    gloo::ScatterOptions options(world);
    if (rank == ROOT) {
        std::vector<T *> blocks;
        for (int to = 0; to < ranks; to++) {
            blocks.push_back(input + static_cast<size_t>(to) * request->block);
        }
        options.setInputs(blocks, request->block);
    }
    options.setOutput(rank == ROOT && !request->in_place ? output : input, request->block);
    options.setRoot(ROOT);
    gloo::scatter(options);
}

template <typename T> static void gather(const request *request, T *input, T *output)
{
    gloo::GatherOptions options(world);
    options.setInput(input, request->block);
    if (rank == ROOT) {
        options.setOutput(request->in_place ? input : output, static_cast<size_t>(request->count));
    }
    options.setRoot(ROOT);
    gloo::gather(options);
}

template <typename T> static void all_gather(const request *request, T *input, T *output)
{
    gloo::AllgatherOptions options(world);
    if (!request->in_place) {
        options.setInput(input, request->block);
    }
    options.setOutput(request->in_place ? input : output, static_cast<size_t>(request->count));
    gloo::allgather(options);
}

template <typename T> static int call_typed(const request *request, buffers *buffers)
{
    T *a = reinterpret_cast<T *>(buffers->first), *b = reinterpret_cast<T *>(buffers->second);
    size_t count = static_cast<size_t>(request->count);
    switch (request->op) {
    case ALL_REDUCE:
        all_reduce(request, a, request->in_place ? a : b);
        break;
    case REDUCE:
        reduce(request, a, b);
        break;
    case BROADCAST: {
        gloo::BroadcastOptions options(world);
        options.setOutput(a, count);
        options.setRoot(ROOT);
        gloo::broadcast(options);
        break;
    }
    case ALL_GATHER:
        all_gather(request, a, b);
        break;
    case ALL_TO_ALL: {
        gloo::AlltoallOptions options(world);
        options.setInput(a, count);
        options.setOutput(b, count);
        gloo::alltoall(options);
        break;
    }
    case BARRIER:
        sync_all();
        break;
    case GATHER:
        gather(request, a, b);
        break;
    case SCATTER:
        scatter(request, a, b);
        break;
    case SENDRECV:
        ping_pong(request, buffers);
        break;
    default:
        return 0;
    }
    return 1;
}

static int call(const request *request, buffers *buffers)
{
    switch (request->dtype->kind) {
    case I8:
        return call_typed<int8_t>(request, buffers);
    case U8:
        return call_typed<uint8_t>(request, buffers);
    case I16:
        return call_typed<int16_t>(request, buffers);
    case U16:
        return call_typed<uint16_t>(request, buffers);
    case I32:
        return call_typed<int32_t>(request, buffers);
    case U32:
        return call_typed<uint32_t>(request, buffers);
    case I64:
        return call_typed<int64_t>(request, buffers);
    case U64:
        return call_typed<uint64_t>(request, buffers);
    case F32:
        return call_typed<float>(request, buffers);
    default:
        return call_typed<double>(request, buffers);
    }
}

static void sync_participants(const request *request)
{
    char byte = 0;
    if (request->op != SENDRECV) {
        sync_all();
    } else if (rank == ROOT) {
        receive(&byte, 1, 1, SYNC_SLOT);
    } else {
        send(&byte, 1, ROOT, SYNC_SLOT);
    }
}

static void sync_all(void)
{
    gloo::BarrierOptions options(world);
    gloo::barrier(options);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fail("only dist-bench starts this program: gloo RANK RANKS PREFIX");
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
