//! The native back end: shared memory between the ranks of a node, streams between nodes. It picks
//! an algorithm and runs it.

pub mod card;
mod choices;
mod cores;
#[cfg(test)]
#[cfg(not(loom))]
mod leaving_tests;
pub mod meet;
#[cfg(test)]
#[cfg(not(loom))]
mod prompt_tests;
mod tuning;
#[cfg(test)]
#[cfg(not(loom))]
mod withdrawal_tests;

use super::{Backend, Fate, Key, Memory, Place, Plain, Prompt};
use crate::algo::hierarchical::{self, Levels};
use crate::algo::message::{self, Call, Team};
use crate::algo::rules::{Rule, Rules};
use crate::algo::shared::steps::prompt::{self, Routine};
use crate::algo::shared::{self, Steps, one_step};
use crate::algo::{Algorithm, Body, Operation, SHORT_BYTES, Shape, Wanted, select};
use crate::base::deadline::LateDeadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::nodes::Nodes;
use crate::transport::matching::Engine;
use crate::transport::reunion::Port;
use crate::transport::{Descriptor, Endpoint, Listener, OpKind, PointToPoint, SharedDomain, arena};
use serde_json::{Value, json};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A group of two ranks or more.
#[derive(Debug)]
pub struct Native {
    /// First, so that it leaves before what it builds on.
    messages: Engine,
    /// The ranks of all nodes, where there are several.
    mesh: Option<Arc<dyn Endpoint>>,
    /// Those of this node; left last.
    domain: Membership,
    transport: String,
    /// For how long a rank may give no sign of life; 0 for ever.
    heartbeat_ms: u64,
    shape: Shape,
    /// Rank 0's, as far as they are for this group.
    rules: Rules,
    /// All of rank 0's.
    overrides: Vec<Rule>,
    nodes: Nodes,
    places: Vec<Place>,
    /// All ranks come together before each collective.
    looks_who_is_there: bool,
    /// Also held by a group that is made of what is left of this one.
    port: Arc<Port>,
    /// How many operations have gone directly between arenas.
    direct: Arc<AtomicU64>,
    /// Held by the one operation that runs.
    lanes: Mutex<Lanes>,
}

/// The domain of a rank that leaves it when the back end goes, whoever else still holds it.
#[derive(Debug)]
struct Membership(Arc<dyn SharedDomain>);

impl Deref for Membership {
    type Target = dyn SharedDomain;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The failure of the group is that of its domain.
#[derive(Debug)]
struct NodeFate(Arc<dyn SharedDomain>);

impl Fate for NodeFate {
    fn failure(&self) -> Option<Error> {
        self.0.failure()
    }

    fn fail(&self, reason: &Error) {
        self.0.fail(reason);
    }

    fn add_listener(&self, listener: Weak<dyn Listener>) {
        self.0.add_listener(listener);
    }
}

/// The algorithm for calls of one kind and size.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    kind: OpKind,
    bytes: usize,
    algorithm: &'static Algorithm,
    number: u8,
}

/// What a rank remembers between operations.
#[derive(Debug)]
struct Lanes {
    /// For the last call of each kind that there was which left the choice to the library.
    chosen: Vec<Chosen>,
    /// Of calls that were rehearsed; empty until there is one.
    routines: Vec<Option<Routine>>,
    steps: shared::Lane,
    /// Where there are several nodes.
    messages: Option<message::Lane>,
    /// All ranks of the group, likewise.
    everyone: Vec<Rank>,
}

impl Lanes {
    fn new(group: GroupId, nodes: &Nodes, rank: Rank) -> Self {
        // A group on one node has no use for the rest.
        let is_spread = nodes.count() > 1;
        Self {
            chosen: Vec::new(),
            routines: Vec::new(),
            steps: shared::Lane::new(group, nodes.members(nodes.node_of(rank)).len()),
            messages: is_spread.then(|| message::Lane::new(group, rank, nodes.ranks())),
            everyone: (0..nodes.ranks()).filter(|_| is_spread).collect(),
        }
    }
}

impl Backend for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn check_wanted(&self, kind: OpKind, bytes: usize, wanted: Wanted<'_>) -> Result<()> {
        select(kind, bytes, &self.shape, wanted, &self.rules).map(drop)
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        let mut lanes = self.lanes();
        let Chosen { algorithm: chosen, number, .. } = self.choose(operation, &mut lanes.chosen)?;
        if self.domain.region().failure().is_set()
            && let Some(error) = self.domain.failure()
        {
            return Err(error);
        }
        match &self.mesh {
            None => self.run_inside((chosen, number), operation, &mut lanes),
            // Whatever ends an operation early, memory that ran out included: the streams are in
            // the middle of something, so nobody can go on.
            Some(mesh) => self
                .run_between((chosen, number), operation, &mut lanes, mesh.as_ref())
                .inspect_err(|error| mesh.fail(error)),
        }
    }

    fn is_prompt(&self) -> bool {
        self.mesh.is_none() && !self.looks_who_is_there
    }

    fn rehearse(&self, plain: &Plain<'_>, key: Key) -> bool {
        let wanted = Wanted::default();
        let Ok(choice) = select(plain.kind, plain.bytes(), &self.shape, wanted, &self.rules) else {
            return false;
        };
        let Body::OneStep(row) = choice.algorithm.body else { return false };
        let number = choice.algorithm.number(plain.kind);
        let routine = Routine::of((plain, key), (row, number), &*self.domain);
        let routines = &mut self.lanes().routines;
        routines.resize(Key::PLACES, None);
        routines[key.place()] = routine.ok();
        routines[key.place()].is_some()
    }

    fn run_promptly(
        &self,
        (plain, key): (&Plain<'_>, Key),
        (sequence, _): (u64, &LateDeadline),
        begins: &mut dyn FnMut(&[u64; 3]),
    ) -> Result<Prompt> {
        let lanes = &mut *self.lanes();
        let routine = lanes.routines.get(key.place()).and_then(Option::as_ref);
        match routine.filter(|routine| routine.key() == key) {
            // In a group that has failed the long way says why.
            Some(routine) if !self.domain.region().failure().is_set() => {
                routine.run(&*self.domain, &mut lanes.steps, (plain, sequence), begins)
            }
            _ => Ok(Prompt::Untouched),
        }
    }

    fn ring_fenced(&self) {
        prompt::ring_fenced(&*self.domain);
    }

    fn messages(&self) -> Option<&dyn PointToPoint> {
        Some(&self.messages)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(arena::allocate(bytes)?))
    }

    fn abort(&self, reason: &Error) {
        self.domain.fail(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.domain.failure()
    }

    fn fate(&self) -> Option<Arc<dyn Fate>> {
        Some(Arc::new(NodeFate(Arc::clone(&self.domain.0))))
    }

    fn port(&self) -> Option<&Arc<Port>> {
        Some(&self.port)
    }

    fn has_left(&self, rank: Rank) -> bool {
        let node = self.nodes.node_of(self.domain.peer(self.domain.rank()).rank);
        self.nodes.node_of(rank) == node && self.domain.has_left(self.nodes.local_rank(rank))
    }

    fn places(&self) -> &[Place] {
        &self.places
    }

    fn last_seen(&self, rank: Rank) -> Option<String> {
        let own = self.domain.peer(self.domain.rank()).rank;
        let is_near = |&rank: &Rank| self.nodes.node_of(rank) == self.nodes.node_of(own);
        let near = Some(rank).filter(|&rank| rank < self.nodes.ranks()).filter(is_near)?;
        Some(self.domain.region().doing(self.nodes.local_rank(near)))
    }

    fn looks_who_is_there(&self) -> bool {
        self.looks_who_is_there
    }

    fn overrides(&self) -> &[Rule] {
        &self.overrides
    }

    fn describe(&self) -> Value {
        json!({
            "transport": self.transport,
            "nodes": (0..self.nodes.count()).map(|node| self.nodes.members(node)).collect::<Vec<_>>(),
            "network": self.mesh.as_ref().map(|mesh| mesh.describe()),
            "slot_bytes": self.domain.region().geometry().slot_bytes,
            "oversubscribed": self.shape.crowded,
            "cma_read": self.shape.attached,
            "cma_preferred": self.shape.pulls,
            "cma_write": self.shape.reached,
            "zero_copy_operations": self.direct.load(Ordering::Relaxed),
            "heartbeat_ms": self.heartbeat_ms,
            "algorithms": choices::describe(&self.shape, &self.rules),
        })
    }
}

impl Native {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The algorithm for a call, which is most often the one for the call of its kind before.
    fn choose(&self, operation: &Operation<'_>, last: &mut Vec<Chosen>) -> Result<Chosen> {
        let (kind, bytes) = (operation.descriptor.kind, operation.bytes());
        let wanted = operation.wanted();
        let is_plain = wanted.name.is_none() && !wanted.canonical;
        let place = last.iter().position(|last| last.kind == kind);
        let same = place.map(|place| last[place]).filter(|last| last.bytes == bytes);
        if let Some(same) = same.filter(|_| is_plain) {
            return Ok(same);
        }
        let algorithm = select(kind, bytes, &self.shape, wanted, &self.rules)?.algorithm;
        let chosen = Chosen { kind, bytes, algorithm, number: algorithm.number(kind) };
        match place {
            _ if !is_plain => {}
            Some(place) => last[place] = chosen,
            None => last.push(chosen),
        }
        Ok(chosen)
    }

    fn run_inside(
        &self,
        (chosen, number): (&Algorithm, u8),
        operation: &Operation<'_>,
        lanes: &mut Lanes,
    ) -> Result<()> {
        let mut steps =
            Steps::begin(&*self.domain, &mut lanes.steps, operation, (chosen.name, number));
        match chosen.body {
            Body::OneStep(row) => one_step::run(&mut steps, operation, row)?,
            Body::Shared(run) => run(&mut steps, operation)?,
            Body::Message(_) | Body::Hierarchical(_) => return Err(misplaced(chosen)),
        }
        if operation.bytes() <= SHORT_BYTES && !steps.has_waited_long() {
            operation.probe.was_short();
        }
        steps.finish();
        Ok(())
    }

    fn run_between(
        &self,
        (chosen, number): (&Algorithm, u8),
        operation: &Operation<'_>,
        lanes: &mut Lanes,
        mesh: &dyn Endpoint,
    ) -> Result<()> {
        let Lanes { steps, messages: Some(messages), everyone, .. } = lanes else {
            return Err(misplaced(chosen));
        };
        let descriptor = Descriptor { algorithm: number, ..operation.descriptor };
        let operation = &Operation { descriptor, ..*operation };
        let mut steps = Steps::begin(&*self.domain, steps, operation, (chosen.name, number));
        steps.begins();
        let is_inside = matches!(chosen.body, Body::Hierarchical(_));
        let mut call = Call::begin(mesh, messages, operation, is_inside);
        match chosen.body {
            Body::OneStep(_) | Body::Shared(_) => Err(misplaced(chosen)),
            Body::Message(run) => {
                steps.give(&[])?;
                run(&mut call, Team::of(everyone, mesh.rank())?, operation)?;
                steps.finish();
                Ok(())
            }
            Body::Hierarchical(run) => {
                let steps = steps.with_grace(hierarchical::GRACE);
                let mut levels = Levels { steps, call, nodes: &self.nodes };
                run(&mut levels, operation)?;
                levels.steps.finish();
                Ok(())
            }
        }
    }
}

/// An algorithm was chosen that cannot run here.
fn misplaced(chosen: &Algorithm) -> Error {
    Error::internal(format!("{} does not fit the nodes of the group", chosen.name))
}

/// A mismatch of what the ranks published about themselves.
fn malformed(rank: usize) -> Error {
    Error::internal(format!("rank {rank} published a card that cannot be read"))
}
