//! Every collective against a naive oracle, bit for bit, on every rank: ranks are threads that share
//! nothing but a hash store, over both transports of one host, and on several nodes.
//!
//! The oracle of the kernels' own tests computes one element at a time; here it computes what each rank
//! must hold at the end of a call. Every output lies between guard bytes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
mod moves;
mod nodes;
mod ranks;
mod trouble;

/// Shared with the kernels' unit tests.
#[path = "../../../src/kernel/tests/oracle.rs"]
mod oracle;

// Where the oracle, written inside the library, finds its types.
use dist::base;

use base::dtype::DataType;
use base::nodes::Nodes;
use base::op::ReduceOp;
use cases::Case;
use dist::algo::Shape;
use dist::transport::OpKind;

/// The operators that are defined for a type.
fn defined(dtype: DataType) -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(move |op| op.is_defined_for(dtype))
}

/// The whole table of types and operators, on ranks that are threads.
fn inproc(size: usize) {
    ranks::run("transport=inproc;slot_bytes=4096", size, |rank| {
        for dtype in DataType::ALL {
            for count in [0, 1, 3, 17, 1023] {
                for in_place in [false, true] {
                    for kind in [OpKind::Broadcast, OpKind::AllGather] {
                        rank.check(&Case {
                            kind,
                            dtype,
                            op: None,
                            count,
                            in_place,
                            algorithm: None,
                            exact: false,
                        });
                    }
                    for op in defined(dtype) {
                        for kind in [OpKind::AllReduce, OpKind::Reduce, OpKind::ReduceScatter] {
                            let op = Some(op);
                            rank.check(&Case {
                                kind,
                                dtype,
                                op,
                                count,
                                in_place,
                                algorithm: None,
                                exact: false,
                            });
                        }
                    }
                }
            }
        }
    });
}

/// Some types and operators at all interesting sizes, in a segment as processes share it.
fn shm(size: usize, slot_bytes: usize, counts: &[usize]) {
    let options = format!("transport=shm;slot_bytes={slot_bytes}");
    ranks::run(&options, size, |rank| {
        for dtype in [DataType::F32, DataType::Bf16, DataType::I32, DataType::C64] {
            for &count in counts {
                for in_place in [false, true] {
                    for kind in [OpKind::Broadcast, OpKind::AllGather] {
                        rank.check(&Case {
                            kind,
                            dtype,
                            op: None,
                            count,
                            in_place,
                            algorithm: None,
                            exact: false,
                        });
                    }
                    let ops = [ReduceOp::Sum, ReduceOp::Max];
                    for op in ops.into_iter().filter(|op| op.is_defined_for(dtype)) {
                        for kind in [OpKind::AllReduce, OpKind::Reduce, OpKind::ReduceScatter] {
                            let op = Some(op);
                            rank.check(&Case {
                                kind,
                                dtype,
                                op,
                                count,
                                in_place,
                                algorithm: None,
                                exact: false,
                            });
                        }
                    }
                }
            }
        }
    });
}

/// Sizes around an inline payload, a slot of 4096 bytes, and several of them, for each element size.
const AROUND_SLOTS: &[usize] =
    &[0, 1, 3, 6, 7, 12, 13, 17, 24, 25, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 10_007];

macro_rules! tests {
    ($($inproc:ident, $shm:ident, $size:literal;)+) => {
        $(
            #[test]
            fn $inproc() {
                inproc($size);
            }

            #[test]
            fn $shm() {
                shm($size, 4096, AROUND_SLOTS);
            }
        )+
    };
}

tests! {
    inproc_1, shm_1, 1;
    inproc_2, shm_2, 2;
    inproc_3, shm_3, 3;
    inproc_4, shm_4, 4;
    inproc_5, shm_5, 5;
    inproc_8, shm_8, 8;
}

#[test]
fn shm_large() {
    for size in [2, 3, 5] {
        shm(size, 256 << 10, &[65_536, 1_000_003]);
    }
}

#[test]
fn every_algorithm_by_name() {
    for transport in ["inproc", "shm"] {
        for size in [2, 3, 5] {
            let options = format!("transport={transport};slot_bytes=4096");
            let shape = Shape::of(&Nodes::by_label(&vec![0; size]), false);
            ranks::run(&options, size, |rank| {
                for kind in Case::KINDS {
                    let op = match kind {
                        OpKind::Broadcast | OpKind::AllGather => None,
                        _ => Some(ReduceOp::Sum),
                    };
                    for algorithm in dist::algo::algorithms(kind) {
                        for count in [0, 1, 5, 12, 100, 1024, 5000] {
                            let dtype = DataType::F32;
                            if !algorithm.can(count * dtype.size(), &shape) {
                                continue;
                            }
                            let algorithm = Some(algorithm.name);
                            rank.check(&Case {
                                kind,
                                dtype,
                                op,
                                count,
                                in_place: true,
                                algorithm,
                                exact: false,
                            });
                        }
                    }
                }
            });
        }
    }
}

#[test]
fn premultiplied_and_repeated_calls_agree() {
    // Run to run: the same bits again, whatever the timing.
    ranks::run("transport=shm", 4, |rank| {
        let case = Case {
            kind: OpKind::AllReduce,
            dtype: DataType::F32,
            op: Some(ReduceOp::PremulSum),
            count: 70_001,
            in_place: false,
            algorithm: None,
            exact: false,
        };
        (0..10).for_each(|_| rank.check(&case));
    });
}
