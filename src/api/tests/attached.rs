//! Buffers that are read in the memory of their ranks, and those that cannot be.

use super::ranks;
use crate::api::{Call, CallOptions, Group};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use std::sync::Arc;

const PLACES: [&str; 2] = ["transport=inproc", "transport=shm"];
const COUNT: usize = 64;
const BLOCK: usize = 16;

/// Memory that this process can read, and others cannot: the kernel's pages with the time.
#[allow(unsafe_code, reason = "memory that is found in the list of maps")]
fn unreadable() -> Src<'static> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let vvar = maps.lines().find(|line| line.ends_with("[vvar]")).unwrap();
    let start = usize::from_str_radix(vvar.split('-').next().unwrap(), 16).unwrap();
    // SAFETY: mapped for reading as long as the process lives.
    unsafe { Src::new(std::ptr::with_exposed_provenance(start), COUNT) }
}

/// Whether ranks of this machine read each other's memory; a sandbox may forbid that.
fn is_attached(group: &Arc<Group>) -> bool {
    group.describe()["native"]["cma_read"] == true
}

fn options(algorithm: &str) -> CallOptions {
    CallOptions { algorithm: Some(algorithm.into()), ..CallOptions::default() }
}

#[test]
fn a_buffer_that_nobody_can_read_goes_through_slots() {
    for (place, way) in
        PLACES.into_iter().flat_map(|place| [(place, "cma_read"), (place, "cma_write")])
    {
        ranks::run(place, 3, |group| {
            if !is_attached(group) {
                return;
            }
            let me = u8::try_from(group.rank()).unwrap();
            let own = [me; COUNT];
            let mut all = [0xff; 3 * COUNT];
            for round in 0..3 {
                let hides = group.rank() == round;
                let send = if hides { unreadable() } else { Src::from(&own[..]) };
                let call = Call::all_gather(send, Dst::from(&mut all[..]), DataType::U8);
                group.run(call, &options(way)).unwrap();
                for rank in (0..3).filter(|&rank| rank != round) {
                    let expected = [u8::try_from(rank).unwrap(); COUNT];
                    assert_eq!(all[rank * COUNT..][..COUNT], expected, "round {round}");
                }
                let mut blocks = [0xff; 3 * BLOCK];
                let send = send.slice(0, blocks.len());
                let call = Call::all_to_all(send, Dst::from(&mut blocks[..]), DataType::U8, 3);
                group.run(call, &options(way)).unwrap();
                for rank in (0..3).filter(|&rank| rank != round) {
                    let expected = [u8::try_from(rank).unwrap(); BLOCK];
                    assert_eq!(blocks[rank * BLOCK..][..BLOCK], expected, "round {round}");
                }
            }
        });
    }
}

#[test]
fn whoever_may_not_be_read_keeps_all_from_reading() {
    ranks::run("transport=shm;cma=0", 2, |group| {
        assert!(!is_attached(group));
        let (own, mut sum) = ([1_u8; COUNT], [0; COUNT]);
        let recv = Dst::from(&mut sum[..]);
        let call = Call::all_reduce(Src::from(&own[..]), recv, DataType::U8, ReduceOp::Sum);
        let refused = group.run(call.clone(), &options("cma_read")).unwrap_err();
        assert!(refused.message().contains("there are:"), "{refused}");
        group.run(call, &CallOptions::default()).unwrap();
        assert_eq!(sum, [2; COUNT]);
    });
}
