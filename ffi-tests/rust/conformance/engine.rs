//! Runs scenes, each in many variants. The ranks are threads; each thread has one group per layout,
//! and all threads execute the same list of calls. The inputs and the expected outputs are computed
//! once for all ranks and variants.
//!
//! Each case runs twice, at an odd and at an aligned address. Its result is compared bit for bit
//! with the oracle, and so with the other ranks and the other run. If the result depends on the
//! reduction order, this comparison uses numbers whose results do not depend on it. A further
//! comparison uses numbers with a known error bound; there all ranks and both runs must have the
//! same bits.

use crate::arena::{Address, Arena};
use crate::bound;
use crate::calls::call;
use crate::matrix::{Choice, LAYOUTS, Layout, Scene, Variant};
use crate::model::Prepared;
use crate::monitor::Monitor;
use crate::processes::Apart;
use crate::ranks::LIMIT_MS;
use crate::values::{Inputs, depends_on_order, factor};
use dist::api::{CallOptions, Group, GroupOptions};
use dist::store::{HashStore, Store};
use dist::transport::OpKind;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// The scenes to run with one number of ranks.
pub(crate) struct Run<'a> {
    pub(crate) ranks: usize,
    pub(crate) scenes: &'a [Scene],
    /// Returns the variants of a scene to run; the result must be the same for every rank.
    pub(crate) variants: &'a (dyn Fn(usize, &Scene) -> Vec<Variant> + Sync),
    pub(crate) monitor: &'a Monitor,
    /// The back end under test; `None` for the native one.
    pub(crate) served: Option<&'a Served>,
}

/// The name and the options of a back end.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) options: String,
}

/// The layout and the slot size of a group.
type Meeting = (Layout, usize);

/// Prepared data that the first rank computes.
type Lazy = Arc<OnceLock<Prepared>>;

/// Prepared data of the scenes, each with the number of ranks that have used it. The last rank
/// removes it.
struct Shared {
    ranks: usize,
    known: Mutex<HashMap<(usize, Inputs), (usize, Lazy)>>,
}

impl Shared {
    fn new(ranks: usize) -> Self {
        Self { ranks, known: Mutex::default() }
    }

    fn take(&self, number: usize, inputs: Inputs) -> Lazy {
        let mut all = self.known.lock().unwrap();
        let (uses, entry) = all.entry((number, inputs)).or_default();
        *uses += 1;
        let entry = Arc::clone(entry);
        if *uses == self.ranks {
            all.remove(&(number, inputs));
        }
        entry
    }
}

impl Run<'_> {
    /// Runs all scenes; the monitor collects the failures.
    pub(crate) fn go(&self) {
        let layouts = self.layouts();
        let stores: Vec<Arc<HashStore>> = layouts.iter().map(|_| Arc::default()).collect();
        let shared = Shared::new(self.ranks);
        std::thread::scope(|scope| {
            for rank in 0..self.ranks {
                let (layouts, stores, shared) = (&layouts, &stores, &shared);
                scope.spawn(move || {
                    let join = |(place, store): (&Meeting, &Arc<HashStore>)| {
                        (*place, self.join(rank, place, Arc::clone(store) as Arc<dyn Store>))
                    };
                    let groups = layouts.iter().zip(stores).map(join).collect();
                    Rank { rank, run: self, shared, groups, apart: None }.go();
                });
            }
        });
    }

    /// Runs all scenes as the only rank of this process; the other ranks are other processes.
    pub(crate) fn go_apart(&self, apart: &Apart) {
        let layouts = self.layouts();
        let shared = Shared::new(1);
        let join = |place: &Meeting| (*place, self.join(apart.rank, place, apart.store()));
        let groups = layouts.iter().map(join).collect();
        Rank { rank: apart.rank, run: self, shared: &shared, groups, apart: Some(apart) }.go();
    }

    /// Returns the layouts of all selected variants, with their slot sizes.
    fn layouts(&self) -> Vec<Meeting> {
        let mut wanted = Vec::new();
        for (number, scene) in self.scenes.iter().enumerate() {
            for variant in (self.variants)(number, scene) {
                let meeting = (variant.layout, scene.size.slot_bytes());
                if !wanted.contains(&meeting) {
                    wanted.push(meeting);
                }
            }
            if wanted.len() == 2 * LAYOUTS.len() {
                break;
            }
        }
        wanted
    }

    fn join(&self, rank: usize, (layout, slot_bytes): &Meeting, store: Arc<dyn Store>) -> Group {
        let options = GroupOptions {
            device: None,
            store,
            rank,
            size: self.ranks,
            backend: self.served.map(|served| served.name.clone()),
            backend_options: match self.served {
                Some(served) => served.options.clone(),
                None => layout.options(rank, *slot_bytes),
            },
            name: "conformance".into(),
            timeout_ms: LIMIT_MS,
            connect_timeout_ms: LIMIT_MS,
            global_ranks: None,
        };
        Group::create(options).unwrap()
    }
}

/// Returns the kinds of input numbers with which a case runs.
fn inputs_of(scene: &Scene, variant: &Variant) -> &'static [Inputs] {
    let between = variant.layout.nodes(scene.ranks).node_count() > 1;
    match variant.choice {
        Choice::Own | Choice::Named(_) if between && !is_ordered(scene, variant) => {
            if depends_on_order(scene.dtype, scene.op) {
                &[Inputs::Exact, Inputs::Rough]
            } else {
                &[Inputs::Any]
            }
        }
        _ => &[Inputs::Any],
    }
}

/// Returns true if the algorithm reduces all vectors in rank order.
fn is_ordered(scene: &Scene, variant: &Variant) -> bool {
    let Choice::Named(name) = variant.choice else { return false };
    dist::algo::algorithms(scene.kind).any(|row| row.name == name && row.ordered)
}

/// The state of one rank.
struct Rank<'a> {
    rank: usize,
    run: &'a Run<'a>,
    shared: &'a Shared,
    groups: Vec<(Meeting, Group)>,
    /// The link to the other ranks if they are other processes.
    apart: Option<&'a Apart>,
}

/// A call failed, and all groups are unusable.
struct Broken;

impl Rank<'_> {
    fn go(&self) {
        for (number, scene) in self.run.scenes.iter().enumerate() {
            if self.run.monitor.is_over() {
                return self.leave();
            }
            let variants = (self.run.variants)(number, scene);
            let began = Instant::now();
            if self.rank == 0 {
                self.run.monitor.begins(scene);
            }
            if self.scene(number, scene, &variants).is_err() {
                return self.leave();
            }
            if self.rank == 0 {
                self.run.monitor.done(scene, &variants, began.elapsed());
            }
        }
    }

    /// Aborts the groups, so that the other ranks do not wait for this rank.
    fn leave(&self) {
        self.groups.iter().for_each(|(_, group)| group.abort("the run is over"));
    }

    fn scene(&self, number: usize, scene: &Scene, variants: &[Variant]) -> Result<(), Broken> {
        for inputs in [Inputs::Any, Inputs::Exact, Inputs::Rough] {
            let with =
                |&(_, variant): &(usize, &Variant)| inputs_of(scene, variant).contains(&inputs);
            let wanted: Vec<_> = variants.iter().enumerate().filter(with).collect();
            if wanted.is_empty() {
                continue;
            }
            let lazy = self.shared.take(number, inputs);
            let prepared = lazy.get_or_init(|| Prepared::new(scene, inputs));
            for in_place in [false, true] {
                let mut wanted = wanted.iter().filter(|(_, v)| v.in_place == in_place).peekable();
                if wanted.peek().is_none() {
                    continue;
                }
                let mut arena = Arena::new(scene, &prepared.parts[self.rank], in_place);
                for &(place, variant) in wanted {
                    self.case(scene, prepared, place, variant, &mut arena)?;
                }
            }
        }
        Ok(())
    }

    fn case(
        &self,
        scene: &Scene,
        prepared: &Prepared,
        place: usize,
        variant: &Variant,
        arena: &mut Arena,
    ) -> Result<(), Broken> {
        let monitor = self.run.monitor;
        let (rank, root) = (self.rank, prepared.root);
        let text = || format!("{scene}{variant}");
        let at = |problem: &dyn std::fmt::Display| {
            let inputs = prepared.inputs;
            format!("on rank {rank}, root {root}, {inputs:?} inputs: {problem}")
        };
        let meeting = (variant.layout, scene.size.slot_bytes());
        let found = self.groups.iter().find(|(known, _)| *known == meeting);
        let (_, group) = found.unwrap();
        let options = CallOptions {
            premul_scale: factor(rank),
            canonical: variant.choice == Choice::Canonical,
            algorithm: match variant.choice {
                Choice::Named(name) => Some(name.to_owned()),
                _ => None,
            },
            ..CallOptions::default()
        };
        for address in [Address::Odd, Address::Aligned] {
            arena.reset(address);
            let all = self.arrives(scene, prepared);
            let (inputs, outputs) = arena.views();
            let outcome = group.run(call(scene, root, rank, inputs, outputs), &options);
            if let Err(error) = outcome {
                monitor.broken(text(), at(&error));
                return Err(Broken);
            }
            if scene.kind == OpKind::Barrier {
                let come = match self.apart {
                    Some(apart) => apart.come(),
                    None => prepared.arrived.load(Ordering::Relaxed),
                };
                if come < all {
                    monitor.wrong(text(), at(&"not all have come"));
                }
            }
            if prepared.inputs == Inputs::Rough && address == Address::Odd {
                check_rough(scene, prepared, place, variant, rank, arena)
                    .into_iter()
                    .for_each(|problem| monitor.wrong(text(), at(&problem)));
                if let (Some(apart), OpKind::AllReduce) = (self.apart, scene.kind) {
                    apart.note(text(), digest(arena.output(0)));
                }
                arena.adopt_outputs();
            }
            if let Some(fault) = arena.fault() {
                monitor.wrong(text(), at(&fault));
            }
        }
        Ok(())
    }
}

impl Rank<'_> {
    /// Returns, before a barrier, the number of barrier calls that all ranks together must have
    /// begun before this call returns.
    fn arrives(&self, scene: &Scene, prepared: &Prepared) -> usize {
        match self.apart {
            Some(apart) if scene.kind == OpKind::Barrier => apart.arrive(scene.ranks),
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
fn check_rough(
    scene: &Scene,
    prepared: &Prepared,
    place: usize,
    variant: &Variant,
    rank: usize,
    arena: &Arena,
) -> Option<String> {
    let units = bound::units(scene, variant);
    for (block, reference) in prepared.parts[rank].references.iter().enumerate() {
        let got = arena.output(block);
        if let Some((at, got, wanted)) = reference.violated(got, units) {
            return Some(format!(
                "number {at} of output block {block} is {got}, and {wanted} is more than {units} ulps away"
            ));
        }
        if scene.kind == OpKind::AllReduce {
            let own = digest(got);
            let mut agreed = prepared.agreed.lock().unwrap();
            if *agreed.entry(place).or_insert(own) != own {
                return Some("other bits than on another rank".to_owned());
            }
        }
    }
    None
}
