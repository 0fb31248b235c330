//! Ranks that are threads, each with its own group object over a shared store.

use crate::cases::{Case, Expected, Inputs, Prepared};
use dist::api::{Call, CallOptions, Group, GroupOptions};
use dist::base::buffer::{Dst, Src};
use dist::base::error::Result;
use dist::store::HashStore;
use dist::transport::OpKind;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// What lies before and after every output.
const GUARD: [u8; 32] = [0xa5; 32];

/// One rank of a running group.
pub(crate) struct RankUnderTest<'a> {
    group: Group,
    shared: &'a Shared,
    /// How many cases it has checked; all ranks check the same ones in the same order.
    checked: Cell<usize>,
}

/// The cases that some ranks have checked and others not yet, by number, with how many have.
#[derive(Default)]
struct Shared {
    cases: Mutex<HashMap<usize, (usize, Lazy)>>,
}

/// Prepared by whichever rank comes first.
type Lazy = Arc<OnceLock<Prepared>>;

impl Shared {
    /// The case with this number.
    fn prepared(&self, number: usize, case: &Case, size: usize) -> Lazy {
        let entry = {
            let mut cases = self.cases.lock().unwrap();
            let (uses, entry) = cases.entry(number).or_default();
            *uses += 1;
            let entry = Arc::clone(entry);
            if *uses == size {
                cases.remove(&number);
            }
            entry
        };
        entry.get_or_init(|| Prepared::new(case, size));
        entry
    }
}

/// Runs `body` on every rank of a group of `size` ranks.
pub(crate) fn run(options: &str, size: usize, body: impl Fn(&RankUnderTest<'_>) + Sync) {
    run_with(|_| options.to_owned(), size, body);
}

/// The same, with options for each rank.
pub(crate) fn run_with(
    options: impl Fn(usize) -> String,
    size: usize,
    body: impl Fn(&RankUnderTest<'_>) + Sync,
) {
    let store = Arc::new(HashStore::new());
    let shared = Shared::default();
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (store, body, shared) = (Arc::clone(&store), &body, &shared);
            let backend_options = options(rank);
            scope.spawn(move || {
                let group = Group::create(GroupOptions {
                    store,
                    rank,
                    size,
                    backend: None,
                    backend_options,
                    name: "conformance".into(),
                    timeout_ms: 60_000,
                    connect_timeout_ms: 60_000,
                    global_ranks: None,
                })
                .unwrap();
                body(&RankUnderTest { group, shared, checked: Cell::new(0) });
            });
        }
    });
}

impl RankUnderTest<'_> {
    /// The group, for calls that are no cases.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Makes one call and compares what it leaves with the oracle.
    pub(crate) fn check(&self, case: &Case) {
        let (rank, size) = (self.group.rank(), self.group.size());
        let number = self.checked.replace(self.checked.get() + 1);
        let prepared = self.shared.prepared(number, case, size);
        let prepared = prepared.get().unwrap();
        let (inputs, root) = (&prepared.inputs, prepared.root);
        let mut output = Guarded::new(inputs, case, rank, size, root);
        let options = CallOptions {
            premul_scale: Inputs::factor(rank),
            algorithm: case.algorithm.map(str::to_owned),
            ..CallOptions::default()
        };
        self.call(case, inputs, &mut output, root, &options)
            .unwrap_or_else(|error| panic!("{case:?} on rank {rank} of {size}: {error}"));
        output.compare(&prepared.expected(case, rank), || {
            format!("{case:?} on rank {rank} of {size}, root {root}")
        });
    }

    fn call(
        &self,
        case: &Case,
        inputs: &Inputs,
        output: &mut Guarded,
        root: usize,
        options: &CallOptions,
    ) -> Result<()> {
        let Case { kind, dtype, op, in_place, .. } = *case;
        let (rank, size) = (self.group.rank(), self.group.size());
        let own = inputs.of(rank);
        let recv = output.view();
        let block = case.bytes();
        let send = match kind {
            _ if !in_place || recv.is_empty() => Src::from(own),
            OpKind::AllGather => recv.as_src().slice(rank * block, block),
            _ => recv.as_src(),
        };
        let call = match (kind, op) {
            (OpKind::AllReduce, Some(op)) => Call::all_reduce(send, recv, dtype, op),
            (OpKind::Reduce, Some(op)) => {
                let recv = if rank == root { recv } else { Dst::empty() };
                Call::reduce(send, recv, dtype, op, root)
            }
            (OpKind::ReduceScatter, Some(op)) => {
                let recv = if in_place { recv.slice(rank * block, block) } else { recv };
                assert_eq!(send.len(), size * block);
                Call::reduce_scatter(send, recv, dtype, op)
            }
            (OpKind::Broadcast, _) => Call::broadcast(recv, dtype, root, rank),
            (OpKind::AllGather, _) => Call::all_gather(send, recv, dtype),
            _ => panic!("{case:?} is no test case"),
        };
        self.group.run(call, options)
    }
}

/// An output between guard bytes, at an address that is aligned for nothing.
struct Guarded {
    bytes: Vec<u8>,
    len: usize,
}

impl Guarded {
    /// The output as the call finds it: in place it holds the input, else rubbish.
    fn new(inputs: &Inputs, case: &Case, rank: usize, size: usize, root: usize) -> Self {
        let own = inputs.of(rank);
        let block = case.bytes();
        let content = match case.kind {
            OpKind::Broadcast if rank == root => own.to_vec(),
            OpKind::AllGather => {
                let mut content = vec![0x77; size * block];
                if case.in_place {
                    content[rank * block..][..block].copy_from_slice(own);
                }
                content
            }
            OpKind::ReduceScatter if !case.in_place => vec![0x77; block],
            OpKind::Broadcast => vec![0x77; block],
            _ if case.in_place => own.to_vec(),
            _ => vec![0x77; block],
        };
        let len = content.len();
        let bytes = [GUARD.as_slice(), content.as_slice(), GUARD.as_slice()].concat();
        Self { bytes, len }
    }

    fn view(&mut self) -> Dst<'_> {
        let len = self.len;
        Dst::from(&mut self.bytes[GUARD.len()..][..len])
    }

    fn compare(&self, expected: &Expected<'_>, what: impl Fn() -> String) {
        let (before, rest) = self.bytes.split_at(GUARD.len());
        let (content, after) = rest.split_at(self.len);
        assert!(before == GUARD && after == GUARD, "{}: wrote outside the buffer", what());
        let got = &content[expected.offset..][..expected.bytes.len()];
        if got != expected.bytes {
            let at = got.iter().zip(expected.bytes).position(|(a, b)| a != b);
            panic!("{}: first wrong byte at {at:?} of {}", what(), got.len());
        }
    }
}
