//! The native back end: shared memory between the ranks of a node, streams between nodes. It picks an algorithm
//! and runs it.

pub mod card;
pub mod meet;

use super::{Backend, Place};
use crate::algo::shared::{Lane, Steps};
use crate::algo::{Operation, Shape, algorithms, select};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::nodes::Nodes;
use crate::transport::matching::Engine;
use crate::transport::{Endpoint, OpKind, PointToPoint, SharedDomain};
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// A group of two ranks or more.
#[derive(Debug)]
pub struct Native {
    /// First, so that it leaves before what it builds on.
    messages: Engine,
    /// The ranks of this node.
    domain: Arc<dyn SharedDomain>,
    /// Those of all nodes, where there are several.
    mesh: Option<Arc<dyn Endpoint>>,
    transport: String,
    shape: Shape,
    nodes: Nodes,
    places: Vec<Place>,
    /// Held by the one operation that runs.
    lane: Mutex<Lane>,
}

impl Backend for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn check_algorithm(&self, kind: OpKind, bytes: usize, name: &str) -> Result<()> {
        select(kind, bytes, &self.shape, Some(name)).map(drop)
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        let kind = operation.descriptor.kind;
        let chosen = select(kind, operation.bytes(), &self.shape, operation.algorithm)?;
        let mut lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = self.domain.failure() {
            return Err(error);
        }
        if self.mesh.is_some() {
            let message = "collectives between nodes are not there in this version";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut steps = Steps::begin(self.domain.as_ref(), &mut lane, operation);
        (chosen.run)(&mut steps, operation)?;
        steps.finish();
        Ok(())
    }

    fn messages(&self) -> Option<&dyn PointToPoint> {
        Some(&self.messages)
    }

    fn abort(&self, reason: &Error) {
        self.domain.fail(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.domain.failure()
    }

    fn places(&self) -> &[Place] {
        &self.places
    }

    fn describe(&self) -> Value {
        json!({
            "transport": self.transport,
            "nodes": (0..self.nodes.count()).map(|node| self.nodes.members(node)).collect::<Vec<_>>(),
            "network": self.mesh.as_ref().map(|mesh| mesh.describe()),
            "slot_bytes": self.domain.region().geometry().slot_bytes,
            "crowded": self.shape.crowded,
            "algorithms": describe_choices(&self.shape),
        })
    }
}

/// For each operation, which algorithm would run from which size on.
fn describe_choices(shape: &Shape) -> Value {
    let mut all = Map::new();
    for kind in OpKind::ALL {
        let mut choices: Vec<Value> = Vec::new();
        let mut last = "";
        for bytes in sizes() {
            if let Ok(row) = select(kind, bytes, shape, None)
                && row.name != last
            {
                choices.push(json!({ "from_bytes": bytes, "algorithm": row.name }));
                last = row.name;
            }
        }
        let known: Vec<_> = algorithms(kind)
            .map(|row| json!({ "name": row.name, "description": row.description }))
            .collect();
        all.insert(kind.name().to_owned(), json!({ "chosen": choices, "known": known }));
    }
    Value::Object(all)
}

/// Where a choice may change: next to every power of two, and past an inline payload.
fn sizes() -> impl Iterator<Item = usize> {
    let powers = (0..40).flat_map(|exponent| [1 << exponent, (1 << exponent) + 1]);
    let mut sizes: Vec<usize> =
        powers.chain([0, 48, 49]).chain((3..=64).map(|n| (8 << 10) / n + 1)).collect();
    sizes.sort_unstable();
    sizes.into_iter()
}

/// A mismatch of what the ranks published about themselves.
fn malformed(rank: usize) -> Error {
    Error::internal(format!("rank {rank} published a card that cannot be read"))
}
