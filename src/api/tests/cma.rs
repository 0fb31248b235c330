//! Tests of CMA with buffers that peers can read, and with buffers that they cannot read.

use super::ranks;
use crate::api::{Call, CallOptions, Group};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use std::sync::Arc;

const TRANSPORTS: [&str; 2] = ["transport=inproc", "transport=shm"];
const COUNT: usize = 64;
const BLOCK: usize = 16;

/// Returns memory that this process can read and its peers cannot: the kernel's time data in
/// `[vvar]`.
#[allow(unsafe_code, reason = "memory that is found in the list of maps")]
fn memory_unreadable_by_peers() -> Src<'static> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let vvar = maps.lines().find(|line| line.ends_with("[vvar]")).unwrap();
    let start = usize::from_str_radix(vvar.split('-').next().unwrap(), 16).unwrap();
    // SAFETY: the pages are mapped for reading while the process lives.
    unsafe { Src::new(std::ptr::with_exposed_provenance(start), COUNT) }
}

/// Returns whether ranks of this machine can use CMA. A sandbox may forbid it.
fn has_cma(group: &Arc<Group>) -> bool {
    group.describe()["native"]["cma_read"] == true
}

fn options(algorithm: &str) -> CallOptions {
    CallOptions { algorithm: Some(algorithm.into()), ..CallOptions::default() }
}

#[test]
fn unreadable_buffer_falls_back_to_data_slots() {
    for (transport, method) in TRANSPORTS
        .into_iter()
        .flat_map(|transport| [(transport, "cma_read"), (transport, "cma_write")])
    {
        ranks::run(transport, 3, |group| {
            if !has_cma(group) {
                return;
            }
            let me = u8::try_from(group.rank()).unwrap();
            let own = [me; COUNT];
            let mut all = [0xff; 3 * COUNT];
            for round in 0..3 {
                let is_unreadable = group.rank() == round;
                let send =
                    if is_unreadable { memory_unreadable_by_peers() } else { Src::from(&own[..]) };
                let call = Call::all_gather(send, Dst::from(&mut all[..]), DataType::U8);
                group.run(call, &options(method)).unwrap();
                for rank in (0..3).filter(|&rank| rank != round) {
                    let expected = [u8::try_from(rank).unwrap(); COUNT];
                    assert_eq!(all[rank * COUNT..][..COUNT], expected, "round {round}");
                }
                let mut blocks = [0xff; 3 * BLOCK];
                let send = send.slice(0, blocks.len());
                let call = Call::all_to_all(send, Dst::from(&mut blocks[..]), DataType::U8, 3);
                group.run(call, &options(method)).unwrap();
                for rank in (0..3).filter(|&rank| rank != round) {
                    let expected = [u8::try_from(rank).unwrap(); BLOCK];
                    assert_eq!(blocks[rank * BLOCK..][..BLOCK], expected, "round {round}");
                }
            }
        });
    }
}

#[test]
fn rank_without_cma_disables_it_for_all() {
    ranks::run("transport=shm;cma=0", 2, |group| {
        assert!(!has_cma(group));
        let (own, mut sum) = ([1_u8; COUNT], [0; COUNT]);
        let recv = Dst::from(&mut sum[..]);
        let call = Call::all_reduce(Src::from(&own[..]), recv, DataType::U8, ReduceOp::Sum);
        let refused = group.run(call.clone(), &options("cma_read")).unwrap_err();
        assert!(refused.message().contains("usable algorithms:"), "{refused}");
        group.run(call, &CallOptions::default()).unwrap();
        assert_eq!(sum, [2; COUNT]);
    });
}
