//! Tests another back end by name: the operations that it reports as supported, against the same
//! oracle. `cargo xtask conformance --backend` runs it. The ordinary tests run a covering selection
//! for the C example.
//!
//! The environment sets the options: `CONFORMANCE_BACKEND`, `CONFORMANCE_PLUGIN` (a path to load),
//! `CONFORMANCE_OPTIONS`, `CONFORMANCE_RANKS` (`1,2,3,4`), `CONFORMANCE_CALLS` (the maximum per
//! number of ranks), `CONFORMANCE_KIND`, `CONFORMANCE_MINUTES`.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]
#![allow(clippy::print_stdout, reason = "what has been done of what there is")]

use crate::input_values::mix_bits;
use crate::matrix::{
    AlgorithmChoice, CallScene, CallVariant, LAYOUTS, NodeLayout, Transport, VectorSize,
    has_in_place, scenes,
};
use crate::matrix_runner::{BackendUnderTest, MatrixRun};
use crate::run_monitor::RunMonitor;
use crate::toolchain::{Compiler, EXAMPLE_BACKEND_FILES};
use dist::api::{Group, GroupOptions};
use dist::base::error::ErrorKind;
use dist::base::op::ReduceOp;
use dist::ffi::backend::dist_backend_load;
use dist::ffi::runtime::dist_last_error;
use dist::store::HashStore;
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::time::Duration;

/// The number of calls per number of ranks in the ordinary tests.
const DEFAULT_CALLS: usize = 600;

/// A call with its variant.
pub(crate) type BackendCase = (CallScene, CallVariant);

/// Returns the layout with each rank on its own host, since the reduction order of the back end is
/// unknown.
pub(crate) fn one_rank_per_node() -> NodeLayout {
    *LAYOUTS.iter().find(|layout| layout.transport == Transport::Tcp).unwrap()
}

pub(crate) fn load(path: &str) {
    let path = CString::new(path).unwrap();
    // SAFETY: the argument is a terminated string.
    let status = unsafe { dist_backend_load(path.as_ptr()) };
    // SAFETY: the call takes no arguments.
    let text = unsafe { dist_last_error() };
    // SAFETY: the text is terminated and valid until the next failing call of this thread.
    let text = unsafe { CStr::from_ptr(text) };
    assert_eq!(status, 0, "{}", text.to_string_lossy());
}

/// Creates a group of one rank, for queries about the back end.
fn single_rank_group(served: &BackendUnderTest) -> Group {
    Group::create(GroupOptions {
        store: Arc::new(HashStore::new()),
        rank: 0,
        size: 1,
        backend: Some(served.name.clone()),
        backend_options: served.options.clone(),
        device: None,
        name: "asked".into(),
        timeout_ms: 0,
        connect_timeout_ms: 0,
        global_ranks: None,
        job_secret: None,
    })
    .unwrap()
}

/// Returns all cases for `ranks` ranks that the back end supports, and the number of unsupported
/// ones.
pub(crate) fn supported_cases(
    served: &BackendUnderTest,
    ranks: usize,
    sizes: impl Fn(VectorSize) -> bool,
) -> (Vec<BackendCase>, usize) {
    let group = single_rank_group(served);
    let is_done = |scene: &CallScene| {
        let op = scene.op.map_or(0, ReduceOp::number);
        match group.supports(scene.kind as i32, scene.dtype.number(), op, -1) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.message().contains(&served.name), "{error}");
                false
            }
        }
    };
    let selected: Vec<CallScene> =
        scenes(ranks).into_iter().filter(|scene| sizes(scene.size)).collect();
    let all = selected.len();
    let done: Vec<CallScene> = selected.into_iter().filter(is_done).collect();
    let refused = all - done.len();
    let variants = |scene: CallScene| {
        let in_place_values = if has_in_place(scene.kind) { &[false, true][..] } else { &[false] };
        let variant = |&in_place| CallVariant {
            layout: one_rank_per_node(),
            in_place,
            choice: AlgorithmChoice::Automatic,
        };
        in_place_values.iter().map(variant).map(|variant| (scene, variant)).collect::<Vec<_>>()
    };
    (done.into_iter().flat_map(variants).collect(), refused)
}

/// Returns a selection of at most `most` cases that covers as many pairs of values as possible.
pub(crate) fn pairwise_subset(mut all: Vec<BackendCase>, most: usize) -> Vec<BackendCase> {
    let text = |(scene, variant): &BackendCase| format!("{scene}{variant}");
    all.sort_by_cached_key(|case| {
        text(case).bytes().fold(0, |sum, byte| mix_bits(sum ^ u64::from(byte)))
    });
    let mut seen_pairs = HashSet::new();
    let (mut chosen, mut rest) = (Vec::new(), Vec::new());
    for case in all {
        let (scene, variant) = &case;
        let (kind, dtype, op) =
            (scene.kind.name(), scene.dtype.to_string(), format!("{:?}", scene.op));
        let (size, place) = (scene.size.to_string(), variant.in_place.to_string());
        let values = [kind, &dtype, &op, &size, &place];
        let mut news = 0;
        for (one, first) in values.iter().enumerate() {
            for (other, second) in values.iter().enumerate().skip(one + 1) {
                news += usize::from(seen_pairs.insert((one, other, format!("{first} {second}"))));
            }
        }
        if news > 0 { chosen.push(case) } else { rest.push(case) }
    }
    chosen.extend(rest);
    chosen.truncate(most);
    chosen
}

/// Runs the cases for one number of ranks.
fn run(served: &BackendUnderTest, ranks: usize, cases: &[BackendCase], monitor: &RunMonitor) {
    let scenes: Vec<CallScene> = cases.iter().map(|(scene, _)| *scene).collect();
    let variants = |number: usize, _: &CallScene| vec![cases[number].1];
    let served = Some(served);
    MatrixRun { ranks, scenes: &scenes, variants: &variants, monitor, backend: served }.run_all();
}

#[test]
fn covering_part_of_the_example() {
    let Some(compiler) = Compiler::find() else { return };
    let object = compiler.plugin("conformance_plugin", EXAMPLE_BACKEND_FILES, &[]);
    load(&object.display().to_string());
    let small = |size| matches!(size, VectorSize::Exactly(_) | VectorSize::Slot(_));
    // The first run has only native operations; in the other runs the library composes some
    // operations from others.
    for options in ["", "only=0x100000209", "only=0x100000026"] {
        let served = BackendUnderTest { name: "store".into(), options: options.into() };
        for ranks in [1, 2, 3] {
            let (all, refused) = supported_cases(&served, ranks, small);
            assert!(!all.is_empty() && refused > 0, "{options}, {ranks} ranks");
            let most = if options.is_empty() { DEFAULT_CALLS } else { DEFAULT_CALLS / 3 };
            let monitor = RunMonitor::new(None);
            run(&served, ranks, &pairwise_subset(all, most), &monitor);
            let failures = monitor.failures();
            assert!(failures.is_empty(), "{options}: {}", failures.join("\n"));
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the one way to tell a test what to do")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(format!("CONFORMANCE_{name}")).ok()
}

#[test]
#[ignore = "needs a back end: cargo xtask conformance --backend NAME --plugin PATH"]
fn a_back_end_by_name() {
    variable("PLUGIN").iter().for_each(|path| load(path));
    let name = variable("BACKEND").unwrap();
    let served = BackendUnderTest { name, options: variable("OPTIONS").unwrap_or_default() };
    let kind = variable("KIND");
    let calls = variable("CALLS").map_or(usize::MAX, |text| text.parse().unwrap());
    let minutes = variable("MINUTES").map_or(60, |text| text.parse().unwrap());
    let monitor = RunMonitor::new(Some(Duration::from_secs(60 * minutes)));
    let ranks = variable("RANKS").unwrap_or_else(|| "1,2,3,4".into());
    for ranks in ranks.split(',').map(|text| text.parse::<usize>().unwrap()) {
        let (mut all, refused) =
            supported_cases(&served, ranks, |size| size.applies(&one_rank_per_node(), ranks));
        all.retain(|(scene, _)| kind.as_deref().is_none_or(|kind| kind == scene.kind.name()));
        let chosen = if calls < all.len() { pairwise_subset(all, calls) } else { all };
        println!(
            "{ranks} ranks: {} cases; {refused} combinations of operation, type, operator and size are refused",
            chosen.len()
        );
        run(&served, ranks, &chosen, &monitor);
        assert!(!monitor.is_over(), "the time is up");
    }
    println!("{}", monitor.summary());
    let failures = monitor.failures();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
