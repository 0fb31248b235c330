// libdist for C++: collective communication between the processes of a training job.
//
//     #include <dist.hpp>
//
//     int main() {
//       dist::runtime runtime;                            // dist_init; dist_finalize at the end
//       dist::group_ref world = runtime.world();
//       std::vector<float> gradients(1000, 1.0F);
//       world.all_reduce(gradients, dist::sum);           // in place, on every rank
//     }
//
// The interface is header only and needs C++17. It has no state of its own: each call becomes one call
// of dist.h, whose comments describe the operations. docs/cpp.md is the guide. These rules hold everywhere:
//
//   Errors     A function throws dist::error, which is a std::system_error. With dist::nothrow as its last
//              argument it returns dist::result<T> instead. Without exceptions (-fno-exceptions) every
//              function returns dist::result<T>.
//   Buffers    Any contiguous range of trivially copyable elements, or one such element. The size of the
//              range is the count of the call.
//   Works      Functions whose names end in _async return a work. Its destructor waits, so that no buffer
//              is freed while the library uses it. An lvalue is lent to the work. An rvalue is moved into
//              the work, and take() returns it.
//   Ownership  group_ref is a view of a group. group, work, store, message, blob, batch and runtime own
//              their objects; they can be moved and not copied.
//   Time-outs  Any std::chrono duration, dist::forever, or nothing for the default.
//   Threads    As in dist.h. One object of a class that owns something is for one thread at a time.
#ifndef DIST_HPP
#define DIST_HPP

#include "dist/batch.hpp"
#include "dist/blob.hpp"
#include "dist/buffer.hpp"
#include "dist/collectives.hpp"
#include "dist/coroutine.hpp"
#include "dist/custom_store.hpp"
#include "dist/diagnostics.hpp"
#include "dist/error.hpp"
#include "dist/group.hpp"
#include "dist/lists.hpp"
#include "dist/memory.hpp"
#include "dist/messages.hpp"
#include "dist/op.hpp"
#include "dist/options.hpp"
#include "dist/outer.hpp"
#include "dist/reducer.hpp"
#include "dist/runtime.hpp"
#include "dist/sampler.hpp"
#include "dist/shard.hpp"
#include "dist/store.hpp"
#include "dist/types.hpp"
#include "dist/vectors.hpp"
#include "dist/work.hpp"

#endif  // DIST_HPP
