//! Groups on GPUs without NCCL: what lies in a device's memory is copied to pinned host memory,
//! carried by the part for host memory, and copied back; or that part takes it as it is, where it
//! says that it can ([`direct`]).
//!
//! This is the part of a group that serves its device; the other one, which is any back end, serves
//! host memory, and has the group's failure ([`super::map`]). A collective is cut into pieces that
//! fit the staging memory ([`plan`]), whose copies and operations overlap ([`rounds`], [`desk`]);
//! messages are carried piece by piece by a thread ([`messages`]). The ranks agree on the length of
//! a piece when they meet ([`meet`]).
//!
//! * **The host waits, not the device.** Nothing is enqueued but copies: an operation begins once
//!   the device has come to where its stream was when it was issued, and ends once the device has
//!   all of the result. So whatever is given to any stream afterwards sees it, and a buffer is
//!   never touched after its operation, whatever became of that.
//! * **Parts of one operation** have its number and one of their own ([`Descriptor::part`]), so
//!   that ranks that do not call the same are told apart, also where one has its buffers in host
//!   memory.
//!
//! Must not know: NCCL, which back end the other part is, who calls.

mod desk;
mod direct;
mod meet;
mod messages;
mod options;
mod plan;
mod rounds;

pub(super) use meet::Wish;
pub(super) use options::{Options, split};

use super::device_part::{Carried, DevicePart, is_recording, needs_none};
use super::{
    Backend, Context, Descriptor, Exchange, Extent, Fate, Memory, OpKind, Operation, Query,
};
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::base::gpu::{Gpu, Launch, Mark};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::device::memory::DeviceMemory;
use crate::device::stream::{DEFAULT_STREAM, is_capturing};
use crate::device::{self, Event};
use desk::{Desk, Limits};
use direct::Direct;
use messages::Messages;
use plan::{Blocks, Plan};
use rounds::Carriage;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// How ranks find the longest block of all, where each knows only its own.
const LONGEST: Query = Query {
    name: OpKind::AllReduce.name(),
    kind: Some(OpKind::AllReduce),
    dtype: Some(DataType::U64),
    op: Some(ReduceOp::Max),
    gpu: None,
};

/// A group's part on the device.
#[derive(Debug)]
pub(super) struct Staging {
    rank: Rank,
    size: WorldSize,
    /// The bytes of staging memory in a half of one direction.
    chunk: usize,
    context: Arc<device::Context>,
    cpu: Arc<dyn Backend>,
    fate: Arc<dyn Fate>,
    /// Why it is not NCCL, where that was asked for first.
    instead: Option<String>,
    /// From the first collective on. Held by the one that runs.
    desk: Mutex<Option<Desk>>,
    messages: Messages,
    direct: Direct,
}

impl Staging {
    /// Makes this rank's part together with the other ranks.
    pub(super) fn create(
        context: &Context<'_>,
        exchange: &dyn Exchange,
        (cpu, fate): (&Arc<dyn Backend>, &Arc<dyn Fate>),
        wish: &Wish<'_>,
    ) -> Result<std::result::Result<Self, String>> {
        let agreed = match meet::agree(context, exchange, fate, wish)? {
            Ok(agreed) => agreed,
            Err(why) => return Ok(Err(why)),
        };
        let parts = (cpu, fate);
        let messages = Messages::new(&agreed.context, agreed.chunk, context.size, parts);
        let direct = Direct::new(&agreed.context, parts);
        Ok(Ok(Self {
            rank: context.rank,
            size: context.size,
            chunk: agreed.chunk,
            context: agreed.context,
            cpu: Arc::clone(cpu),
            fate: Arc::clone(fate),
            instead: wish.instead.clone(),
            desk: Mutex::default(),
            messages,
            direct,
        }))
    }

    /// The longest block of any rank.
    fn longest(&self, operation: &Operation<'_>, mine: usize) -> Result<usize> {
        if !operation.descriptor.kind.is_pairwise() {
            return Ok(operation.bytes());
        }
        let mut word = (mine as u64).to_le_bytes();
        let view = Dst::from(&mut word[..]);
        let descriptor = Descriptor {
            kind: OpKind::AllReduce,
            dtype: Some(DataType::U64),
            op: Some(ReduceOp::Max),
            root: None,
            // What no call has.
            extent: Extent::Pairwise,
            part: 1,
            ..operation.descriptor
        };
        let asked = Operation {
            count: 1,
            group: operation.group,
            ..Operation::of(descriptor, view.as_src(), view, operation.deadline)
        };
        self.cpu.run(&asked)?;
        let longest = u64::from_le_bytes(word);
        usize::try_from(longest)
            .map_err(|_| Error::internal(format!("a rank has a block of {longest} bytes")))
    }

    /// Waits until the device has come to where the operation was put.
    fn ready(&self, limits: Limits<'_>, launch: &Launch<'_>) -> Result<()> {
        let Some(ready) = launch.ready else { return Ok(()) };
        let wait = limits.wait(&"what is in the stream before it", || ready.is_over());
        wait.map_err(|error| self.blame(error))
    }

    /// Has the other part carry it as it is, whose errors and whose refusals are its own.
    fn pass_on(&self, operation: &Operation<'_>, launch: &Launch<'_>) -> Result<()> {
        let halted = || self.fate.failure();
        let limits = Limits { deadline: operation.deadline(), halted: &halted };
        let ready = self.ready(limits, launch);
        ready
            .context(|| format!("from device {}", self.device()))
            .map_err(|error| self.fatal(error))?;
        self.cpu.run(&Operation { is_fresh: false, ..*operation })
    }

    fn carry(&self, operation: &Operation<'_>, launch: &Launch<'_>) -> Result<()> {
        operation.probe.begins("staging");
        let halted = || self.fate.failure();
        let limits = Limits { deadline: operation.deadline(), halted: &halted };
        self.ready(limits, launch)?;
        let blocks = Blocks::of(operation, self.rank, self.size);
        let longest = self.longest(operation, blocks.longest())?;
        let kind = operation.descriptor.kind;
        let (plan, after) =
            (Plan::new(kind, self.size, self.chunk, longest), u16::from(kind.is_pairwise()));
        plan.check(after)?;
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        let desk = match &mut *desk {
            Some(desk) => desk,
            none => none.insert(Desk::new(&self.context, self.chunk)?),
        };
        let carriage = Carriage { cpu: self.cpu.as_ref(), whole: operation, blocks, plan, after };
        carriage.go(desk, limits).map_err(|error| desk.calm(error))
    }

    /// That nothing comes of this rank's stream is nobody else's fault.
    fn blame(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Timeout => error.with_culprit(self.rank),
            _ => error,
        }
    }

    fn fatal(&self, error: Error) -> Error {
        self.fate.fail(&error);
        // The first reason, of which this may be a consequence.
        self.fate.failure().unwrap_or(error)
    }
}

impl DevicePart for Staging {
    fn device(&self) -> usize {
        self.context.device()
    }

    fn supports(&self, query: &Query) -> Result<()> {
        if needs_none(query) || self.direct.takes(query) {
            return Ok(());
        }
        if query.kind.is_some_and(OpKind::is_pairwise) {
            self.cpu.supports(&LONGEST).context(|| format!("{query}, by way of host memory"))?;
        }
        self.cpu.supports(&Query { gpu: None, ..*query })
    }

    fn is_stream_ordered(&self) -> bool {
        false
    }

    fn run(&self, operation: &Operation<'_>, launch: &Launch<'_>) -> Result<()> {
        if let Some(failure) = self.fate.failure() {
            return Err(failure);
        }
        if self.direct.takes_operation(operation) {
            return self.pass_on(operation, launch);
        }
        let outcome = self.carry(operation, launch);
        let outcome =
            outcome.context(|| format!("by way of host memory, device {}", self.device()));
        // Whatever ends an operation early: other ranks may be in the middle of it.
        outcome.map_err(|error| self.fatal(error))
    }

    fn carried(&self) -> Option<&dyn Carried> {
        Some(if self.direct.has_messages() { &self.direct } else { &self.messages })
    }

    fn look_around(&self) {
        self.messages.look_around();
    }

    fn check_stream(&self, stream: usize) -> Result<()> {
        let _current = self.context.enter()?;
        match is_capturing(&self.context, stream)? {
            true => Err(is_recording(self.cpu.name())),
            false => Ok(()),
        }
    }

    fn mark(&self, gpu: Gpu) -> Result<Option<Arc<dyn Mark>>> {
        let event = Event::new(&self.context)?;
        event.record(gpu.stream.unwrap_or(DEFAULT_STREAM))?;
        Ok(Some(Arc::new(event)))
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(DeviceMemory::new(&self.context, bytes)?))
    }

    fn describe(&self) -> Value {
        json!({
            "device": self.device(),
            "driver": self.context.driver().file(),
            "chunk_bytes": self.chunk,
            "direct": self.direct.names(),
            "nccl_unavailable": self.instead,
        })
    }
}
