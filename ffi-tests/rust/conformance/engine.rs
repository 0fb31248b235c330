//! Runs scenes, each in many variants: ranks are threads, each with a group for every layout, and
//! go through the same list. What goes in and must come out is computed once for all ranks and
//! variants.
//!
//! Every case is run twice, at an odd address and at an aligned one, and compared bit for bit with
//! the oracle, and so with the other ranks and the other run. Where the order of folding shows,
//! that is done with numbers for which it does not; and once more with others, of which a bound is
//! known, and that all ranks and both runs must have the same bits.

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

/// What to run, with one number of ranks.
pub(crate) struct Run<'a> {
    pub(crate) ranks: usize,
    pub(crate) scenes: &'a [Scene],
    /// The variants of a scene that are wanted, the same whoever asks.
    pub(crate) variants: &'a (dyn Fn(usize, &Scene) -> Vec<Variant> + Sync),
    pub(crate) monitor: &'a Monitor,
    /// By another back end than the native one.
    pub(crate) served: Option<&'a Served>,
}

/// A back end by its name, and what is asked of it.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) options: String,
}

/// What a group is for: ranks that are joined like that, with slots of so many bytes.
type Meeting = (Layout, usize);

/// Prepared by whichever rank comes first.
type Lazy = Arc<OnceLock<Prepared>>;

/// What some ranks of this process have used and others not yet, with how many have.
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
    /// Runs everything; what was wrong is the monitor's to tell.
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

    /// Runs everything as the one rank of this process; the others do so in theirs.
    pub(crate) fn go_apart(&self, apart: &Apart) {
        let layouts = self.layouts();
        let shared = Shared::new(1);
        let join = |place: &Meeting| (*place, self.join(apart.rank, place, apart.store()));
        let groups = layouts.iter().map(join).collect();
        Rank { rank: apart.rank, run: self, shared: &shared, groups, apart: Some(apart) }.go();
    }

    /// Those that are wanted.
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

/// With which numbers a case is run.
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

/// Whether the algorithm is known to fold all vectors at once, in the order of ranks.
fn is_ordered(scene: &Scene, variant: &Variant) -> bool {
    let Choice::Named(name) = variant.choice else { return false };
    dist::algo::algorithms(scene.kind).any(|row| row.name == name && row.ordered)
}

/// One rank on its way through the scenes.
struct Rank<'a> {
    rank: usize,
    run: &'a Run<'a>,
    shared: &'a Shared,
    groups: Vec<(Meeting, Group)>,
    /// Where the other ranks are other processes.
    apart: Option<&'a Apart>,
}

/// A call failed, and all groups with it.
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

    /// The others need not wait for a rank that has stopped.
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
    /// Before a call: how many calls of a barrier all ranks together must have begun before this
    /// one returns.
    fn arrives(&self, scene: &Scene, prepared: &Prepared) -> usize {
        match self.apart {
            Some(apart) if scene.kind == OpKind::Barrier => apart.arrive(scene.ranks),
            Some(_) => 0,
            // All come as often as this rank has.
            None => {
                let arrived = prepared.arrived.fetch_add(1, Ordering::Relaxed);
                (arrived / scene.ranks + 1) * scene.ranks
            }
        }
    }
}

/// Stands for a result, to be compared with that of another rank.
fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// What is wrong with results for which there is only a bound.
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
