//! The search for deadlocks: cycles of processes whose calls wait for each other.
//!
//! A call that waits for some time is *blocked* ([`blocked_calls`]). A thread of the library, the
//! *detector*, then examines the oldest blocked call of the process. It runs only while there is a
//! blocked call ([`detector`]).
//!
//! * **Records.** The detector stores a record under `dist/blocked/<host>/<pid>` in the rendezvous
//!   store of the group ([`blocked_record`]). It has the number of the wait. For each group of the
//!   process, it has the number of issued collectives and the exchanged messages.
//! * **Edges.** A call of process P needs process Q if it cannot end before Q makes a certain call:
//!   a collective with a certain sequence number, a send, or a receive ([`needs`]). If Q's record
//!   shows that Q is blocked and had not made this call, there is an edge from the wait of P to the
//!   wait of Q. A receive from any rank has one edge to the waits of all ranks. P adds its edges to
//!   its record.
//! * **Cycles.** A process that has edges follows them through the records of the other processes
//!   ([`wait_graph`]). If they lead back to its own wait, the processes on the way are in a
//!   deadlock.
//!
//! **A cycle is a deadlock even if some of its records are old.** Assume that each process of the
//! cycle makes calls from one thread. Consider the first of the waits to end. It ends because the
//! next process has made a call after it stored its record. But that process stored its record
//! during its wait, and makes no call before its own wait ends. So its wait has ended earlier,
//! which contradicts the assumption. A wait may also end in other ways:
//! * Another thread of the process makes the call, or a completion callback does.
//! * The deadline of the call passes.
//! * The group fails. Then the calls end with this failure.
//!
//! So the calls get no error if several threads of a process have made calls, if callbacks are
//! registered, or if a deadline is near. One line in the log then describes the cycle.
//!
//! **Confirmation.** A deadline may pass after a record was stored. So the processes of a cycle
//! first *confirm* it: each of them repeatedly stores a counter while its deadline is not near. A
//! process that sees all other counters change within a short time fails the group of its call, and
//! stores that it did. The other processes then do the same.
//!
//! **Where needs come from.** The needs of most collectives follow from the descriptor and the
//! counts. Roots and senders wait for other ranks only if buffers are full, so the algorithms
//! report for which ranks they wait ([`awaited_ranks`]). The needs of a message follow from the
//! traffic of the engine. Probes, monitored barriers and creations of groups wait for control
//! messages, and publish their needs ([`BlockedCallGuard::publish`]).
//!
//! **Branches.** A wait for any of several works has edges for each of the works: it is in a
//! deadlock only if all works are.
//!
//! **Messages in device memory.** They never match messages in host memory, so they are counted
//! separately. The staging engine counts as plug-ins do. NCCL matches the k-th send of a pair of
//! ranks with its k-th receive. So the queue of the group counts both when they are issued, and a
//! receive at position k needs that the peer has issued k sends.
//!
//! **Limits.** An operation on a device also waits for the earlier work of its stream, which has no
//! edges. Over NCCL, only sends that do not fit into the buffers have edges.

mod awaited_ranks;
mod blocked_calls;
mod blocked_record;
mod detector;
mod examination;
mod message_memory;
mod needs;
mod own_state;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod wait_graph;

pub(in crate::api) use awaited_ranks::record_awaited_ranks;
pub(in crate::api) use blocked_calls::{
    AwaitedWork, AwaitedWorkKind, BlockedCallGuard, ListedWork, PublishedNeeds,
};
pub(in crate::api) use needs::Need;

use crate::process::thread;
use crate::wait::blocked_thread;

/// Starts to watch the calls of this process.
pub(in crate::api) fn start_watching() {
    blocked_calls::set_detector(detector::run);
    thread::set_end_of_sliced_wait(blocked_calls::end_sliced_wait);
    blocked_thread::set_handlers(blocked_calls::register_current_call, blocked_calls::record_poll);
}
