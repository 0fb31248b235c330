//! Runs scenes, each in many variants. The ranks are threads; each thread has one group per layout,
//! and all threads execute the same list of calls. The inputs and the expected outputs are computed
//! once for all ranks and variants.
//!
//! Each case runs twice, at an odd and at an aligned address. Its result is compared bit for bit
//! with the oracle, and so with the other ranks and the other run. If the result depends on the
//! reduction order, this comparison uses numbers whose results do not depend on it. A further
//! comparison uses numbers with a known error bound; there all ranks and both runs must have the
//! same bits.

use crate::api_calls::call;
use crate::error_bound;
use crate::expected_results::PreparedScene;
use crate::guarded_memory::{BlockAlignment, GuardedMemory};
use crate::input_values::{InputKind, depends_on_order, factor};
use crate::matrix::{AlgorithmChoice, CallScene, CallVariant, LAYOUTS, NodeLayout};
use crate::processes::ProcessRank;
use crate::ranks::LIMIT_MS;
use crate::run_monitor::RunMonitor;
use dist::api::{CallOptions, Group, GroupOptions};
use dist::store::{HashStore, Store};
use dist::transport::OpKind;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// The scenes to run with one number of ranks.
pub(crate) struct MatrixRun<'a> {
    pub(crate) ranks: usize,
    pub(crate) scenes: &'a [CallScene],
    /// Returns the variants of a scene to run; the result must be the same for every rank.
    pub(crate) variants: &'a (dyn Fn(usize, &CallScene) -> Vec<CallVariant> + Sync),
    pub(crate) monitor: &'a RunMonitor,
    /// The back end under test; `None` for the native one.
    pub(crate) backend: Option<&'a BackendUnderTest>,
}

/// The name and the options of a back end.
pub(crate) struct BackendUnderTest {
    pub(crate) name: String,
    pub(crate) options: String,
}

/// The layout and the slot size of a group.
type GroupKey = (NodeLayout, usize);

/// Prepared data that the first rank computes.
type LazyExpected = Arc<OnceLock<PreparedScene>>;

/// Prepared data of the scenes, each with the number of ranks that have used it. The last rank
/// removes it.
struct ExpectedCache {
    ranks: usize,
    entries: Mutex<HashMap<(usize, InputKind), (usize, LazyExpected)>>,
}

impl ExpectedCache {
    fn new(ranks: usize) -> Self {
        Self { ranks, entries: Mutex::default() }
    }

    fn get_or_create(&self, number: usize, inputs: InputKind) -> LazyExpected {
        let mut all = self.entries.lock().unwrap();
        let (uses, entry) = all.entry((number, inputs)).or_default();
        *uses += 1;
        let entry = Arc::clone(entry);
        if *uses == self.ranks {
            all.remove(&(number, inputs));
        }
        entry
    }
}

impl MatrixRun<'_> {
    /// Runs all scenes; the monitor collects the failures.
    pub(crate) fn run_all(&self) {
        let layouts = self.needed_groups();
        let stores: Vec<Arc<HashStore>> = layouts.iter().map(|_| Arc::default()).collect();
        let shared = ExpectedCache::new(self.ranks);
        std::thread::scope(|scope| {
            for rank in 0..self.ranks {
                let (layouts, stores, shared) = (&layouts, &stores, &shared);
                scope.spawn(move || {
                    let join = |(place, store): (&GroupKey, &Arc<HashStore>)| {
                        (*place, self.join(rank, place, Arc::clone(store) as Arc<dyn Store>))
                    };
                    let groups = layouts.iter().zip(stores).map(join).collect();
                    MatrixRank { rank, run: self, shared, groups, process_rank: None }.run_scenes();
                });
            }
        });
    }

    /// Runs all scenes as the only rank of this process; the other ranks are other processes.
    pub(crate) fn run_as_process(&self, apart: &ProcessRank) {
        let layouts = self.needed_groups();
        let shared = ExpectedCache::new(1);
        let join = |place: &GroupKey| (*place, self.join(apart.rank, place, apart.store()));
        let groups = layouts.iter().map(join).collect();
        MatrixRank {
            rank: apart.rank,
            run: self,
            shared: &shared,
            groups,
            process_rank: Some(apart),
        }
        .run_scenes();
    }

    /// Returns the layouts of all selected variants, with their slot sizes.
    fn needed_groups(&self) -> Vec<GroupKey> {
        let mut needed = Vec::new();
        for (number, scene) in self.scenes.iter().enumerate() {
            for variant in (self.variants)(number, scene) {
                let meeting = (variant.layout, scene.size.slot_bytes());
                if !needed.contains(&meeting) {
                    needed.push(meeting);
                }
            }
            if needed.len() == 2 * LAYOUTS.len() {
                break;
            }
        }
        needed
    }

    fn join(&self, rank: usize, (layout, slot_bytes): &GroupKey, store: Arc<dyn Store>) -> Group {
        let options = GroupOptions {
            device: None,
            store,
            rank,
            size: self.ranks,
            backend: self.backend.map(|served| served.name.clone()),
            backend_options: match self.backend {
                Some(served) => served.options.clone(),
                None => layout.options(rank, *slot_bytes),
            },
            name: "conformance".into(),
            timeout_ms: LIMIT_MS,
            connect_timeout_ms: LIMIT_MS,
            global_ranks: None,
            job_secret: dist::api::environment::job_secret().unwrap(),
        };
        Group::create(options).unwrap()
    }
}

/// Returns the kinds of input numbers with which a case runs.
fn input_kinds(scene: &CallScene, variant: &CallVariant) -> &'static [InputKind] {
    let between = variant.layout.nodes(scene.ranks).node_count() > 1;
    match variant.choice {
        AlgorithmChoice::Automatic | AlgorithmChoice::Named(_)
            if between && !is_ordered(scene, variant) =>
        {
            if depends_on_order(scene.dtype, scene.op) {
                &[InputKind::Exact, InputKind::OrderDependent]
            } else {
                &[InputKind::Any]
            }
        }
        _ => &[InputKind::Any],
    }
}

/// Returns true if the algorithm reduces all vectors in rank order.
fn is_ordered(scene: &CallScene, variant: &CallVariant) -> bool {
    let AlgorithmChoice::Named(name) = variant.choice else { return false };
    dist::algo::algorithms(scene.kind).any(|row| row.name == name && row.ordered)
}

/// The state of one rank.
struct MatrixRank<'a> {
    rank: usize,
    run: &'a MatrixRun<'a>,
    shared: &'a ExpectedCache,
    groups: Vec<(GroupKey, Group)>,
    /// The link to the other ranks if they are other processes.
    process_rank: Option<&'a ProcessRank>,
}

/// A call failed, and all groups are unusable.
struct GroupFailed;

impl MatrixRank<'_> {
    fn run_scenes(&self) {
        for (number, scene) in self.run.scenes.iter().enumerate() {
            if self.run.monitor.is_over() {
                return self.abort_groups();
            }
            let variants = (self.run.variants)(number, scene);
            let began = Instant::now();
            if self.rank == 0 {
                self.run.monitor.record_start(scene);
            }
            if self.run_scene(number, scene, &variants).is_err() {
                return self.abort_groups();
            }
            if self.rank == 0 {
                self.run.monitor.record_done(scene, &variants, began.elapsed());
            }
        }
    }

    /// Aborts the groups, so that the other ranks do not wait for this rank.
    fn abort_groups(&self) {
        self.groups.iter().for_each(|(_, group)| group.abort("the run is over"));
    }

    fn run_scene(
        &self,
        number: usize,
        scene: &CallScene,
        variants: &[CallVariant],
    ) -> Result<(), GroupFailed> {
        for inputs in [InputKind::Any, InputKind::Exact, InputKind::OrderDependent] {
            let with = |&(_, variant): &(usize, &CallVariant)| {
                input_kinds(scene, variant).contains(&inputs)
            };
            let selected: Vec<_> = variants.iter().enumerate().filter(with).collect();
            if selected.is_empty() {
                continue;
            }
            let lazy = self.shared.get_or_create(number, inputs);
            let prepared = lazy.get_or_init(|| PreparedScene::new(scene, inputs));
            for in_place in [false, true] {
                let mut selected_in_place =
                    selected.iter().filter(|(_, v)| v.in_place == in_place).peekable();
                if selected_in_place.peek().is_none() {
                    continue;
                }
                let mut arena = GuardedMemory::new(scene, &prepared.parts[self.rank], in_place);
                for &(place, variant) in selected_in_place {
                    self.run_case(scene, prepared, place, variant, &mut arena)?;
                }
            }
        }
        Ok(())
    }

    fn run_case(
        &self,
        scene: &CallScene,
        prepared: &PreparedScene,
        variant_index: usize,
        variant: &CallVariant,
        arena: &mut GuardedMemory,
    ) -> Result<(), GroupFailed> {
        let monitor = self.run.monitor;
        let (rank, root) = (self.rank, prepared.root);
        let text = || format!("{scene}{variant}");
        let at = |problem: &dyn std::fmt::Display| {
            let inputs = prepared.inputs;
            format!("on rank {rank}, root {root}, {inputs:?} inputs: {problem}")
        };
        let meeting = (variant.layout, scene.size.slot_bytes());
        let group = self.groups.iter().find(|(known, _)| *known == meeting);
        let (_, group) = group.unwrap();
        let options = CallOptions {
            premul_scale: factor(rank),
            canonical: variant.choice == AlgorithmChoice::Canonical,
            algorithm: match variant.choice {
                AlgorithmChoice::Named(name) => Some(name.to_owned()),
                _ => None,
            },
            ..CallOptions::default()
        };
        for address in [BlockAlignment::Unaligned, BlockAlignment::Aligned] {
            arena.reset(address);
            let all = self.expected_arrivals(scene, prepared);
            let (inputs, outputs) = arena.views();
            let outcome = group.run(call(scene, root, rank, inputs, outputs), &options);
            if let Err(error) = outcome {
                monitor.record_failed_call(text(), at(&error));
                return Err(GroupFailed);
            }
            if scene.kind == OpKind::Barrier {
                let arrived = match self.process_rank {
                    Some(apart) => apart.arrivals(),
                    None => prepared.arrived.load(Ordering::Relaxed),
                };
                if arrived < all {
                    monitor.record_wrong_result(text(), at(&"not all have come"));
                }
            }
            if prepared.inputs == InputKind::OrderDependent && address == BlockAlignment::Unaligned
            {
                check_within_bound(scene, prepared, variant_index, variant, rank, arena)
                    .into_iter()
                    .for_each(|problem| monitor.record_wrong_result(text(), at(&problem)));
                if let (Some(apart), OpKind::AllReduce) = (self.process_rank, scene.kind) {
                    apart.record_digest(text(), digest(arena.output(0)));
                }
                arena.expect_current_outputs();
            }
            if let Some(fault) = arena.find_fault() {
                monitor.record_wrong_result(text(), at(&fault));
            }
        }
        Ok(())
    }
}

impl MatrixRank<'_> {
    /// Returns, before a barrier, the number of barrier calls that all ranks together must have
    /// begun before this call returns.
    fn expected_arrivals(&self, scene: &CallScene, prepared: &PreparedScene) -> usize {
        match self.process_rank {
            Some(apart) if scene.kind == OpKind::Barrier => apart.record_arrival(scene.ranks),
            Some(_) => 0,
            // All ranks make the same number of calls.
            None => {
                let arrived = prepared.arrived.fetch_add(1, Ordering::Relaxed);
                (arrived / scene.ranks + 1) * scene.ranks
            }
        }
    }
}

/// Returns a hash of a result, for the comparison with other ranks.
fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Checks results that only have an error bound.
fn check_within_bound(
    scene: &CallScene,
    prepared: &PreparedScene,
    variant_index: usize,
    variant: &CallVariant,
    rank: usize,
    arena: &GuardedMemory,
) -> Option<String> {
    let units = error_bound::allowed_units(scene, variant);
    for (block, reference) in prepared.parts[rank].references.iter().enumerate() {
        let got = arena.output(block);
        if let Some((at, got, wanted)) = reference.first_violation(got, units) {
            return Some(format!(
                "number {at} of output block {block} is {got}, and {wanted} is more than {units} ulps away"
            ));
        }
        if scene.kind == OpKind::AllReduce {
            let own = digest(got);
            let mut agreed = prepared.digest_by_case.lock().unwrap();
            if *agreed.entry(variant_index).or_insert(own) != own {
                return Some("other bits than on another rank".to_owned());
            }
        }
    }
    None
}
