//! The numbers of operations in the C interface.
//!
//! Numbers are never reused.

use crate::api::supports;

/// dist_all_reduce.
pub const DIST_KIND_ALL_REDUCE: i32 = 0;
/// dist_reduce.
pub const DIST_KIND_REDUCE: i32 = 1;
/// dist_broadcast.
pub const DIST_KIND_BROADCAST: i32 = 2;
/// dist_all_gather.
pub const DIST_KIND_ALL_GATHER: i32 = 3;
/// dist_reduce_scatter.
pub const DIST_KIND_REDUCE_SCATTER: i32 = 4;
/// dist_barrier.
pub const DIST_KIND_BARRIER: i32 = 5;
/// dist_gather.
pub const DIST_KIND_GATHER: i32 = 6;
/// dist_scatter.
pub const DIST_KIND_SCATTER: i32 = 7;
/// dist_all_to_all.
pub const DIST_KIND_ALL_TO_ALL: i32 = 8;
/// dist_all_gather_v.
pub const DIST_KIND_ALL_GATHER_V: i32 = 9;
/// dist_gather_v.
pub const DIST_KIND_GATHER_V: i32 = 10;
/// dist_scatter_v.
pub const DIST_KIND_SCATTER_V: i32 = 11;
/// dist_reduce_scatter_v.
pub const DIST_KIND_REDUCE_SCATTER_V: i32 = 12;
/// dist_all_to_all_v.
pub const DIST_KIND_ALL_TO_ALL_V: i32 = 13;
/// dist_send.
pub const DIST_KIND_SEND: i32 = 64;
/// dist_recv.
pub const DIST_KIND_RECV: i32 = 65;

/// Host memory, in place of the number of a GPU.
pub const DIST_DEVICE_HOST: i32 = -1;

const _: () = assert!(
    DIST_KIND_SEND == supports::SEND
        && DIST_KIND_RECV == supports::RECV
        && DIST_DEVICE_HOST == supports::HOST
);
