//! What the part for host memory takes in a device's memory as it is: nothing is copied, it is only
//! waited until the device has come to where the caller's stream was.
//!
//! Which calls these are is the part's word (a plug-in's), the same on all ranks, and asked for
//! each.

use super::desk::Limits;
use crate::backend::{
    Backend, Carried, Completion, Fate, Incoming, OpKind, Operation, Outgoing, PointToPoint, Query,
};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::gpu::Gpu;
use crate::base::op::ReduceOp;
use crate::device::stream::DEFAULT_STREAM;
use crate::device::{Context, Event};
use std::sync::Arc;

/// What two ranks need to exchange a message.
const MESSAGES: [&str; 2] = ["send", "recv"];

/// The part for host memory, for calls on the device.
#[derive(Debug)]
pub(super) struct Direct {
    context: Arc<Context>,
    cpu: Arc<dyn Backend>,
    fate: Arc<dyn Fate>,
    /// Which operations it takes, of some type.
    kinds: Vec<OpKind>,
    has_messages: bool,
}

impl Direct {
    pub(super) fn new(
        context: &Arc<Context>,
        (cpu, fate): (&Arc<dyn Backend>, &Arc<dyn Fate>),
    ) -> Self {
        let takes = |name: &'static str, kind: Option<OpKind>| {
            let op = kind.filter(|kind| kind.reduces()).map(|_| ReduceOp::Sum);
            let (dtype, gpu) = (Some(DataType::F32), Some(context.device()));
            cpu.supports(&Query { name, kind, dtype, op, gpu }).is_ok()
        };
        let kinds = OpKind::ALL.into_iter().filter(|kind| takes(kind.name(), Some(*kind)));
        Self {
            kinds: kinds.collect(),
            has_messages: MESSAGES.iter().all(|name| takes(name, None)),
            context: Arc::clone(context),
            cpu: Arc::clone(cpu),
            fate: Arc::clone(fate),
        }
    }

    /// Whether a call is one of those.
    pub(super) fn takes(&self, query: &Query) -> bool {
        let is_among = query.kind.map_or(self.has_messages, |kind| self.kinds.contains(&kind));
        is_among && self.cpu.supports(&Query { gpu: Some(self.context.device()), ..*query }).is_ok()
    }

    /// The same of an operation.
    pub(super) fn takes_operation(&self, operation: &Operation<'_>) -> bool {
        let descriptor = &operation.descriptor;
        let (kind, dtype) = (descriptor.kind, Some(operation.dtype()));
        self.kinds.contains(&kind)
            && self.takes(&Query {
                name: kind.name(),
                kind: Some(kind),
                dtype,
                op: descriptor.op,
                gpu: None,
            })
    }

    pub(super) fn has_messages(&self) -> bool {
        self.has_messages
    }

    /// The names of what it takes, for `dist_group_describe`.
    pub(super) fn names(&self) -> Vec<&'static str> {
        let messages = MESSAGES.into_iter().filter(|_| self.has_messages);
        self.kinds.iter().map(|kind| kind.name()).chain(messages).collect()
    }

    fn engine(&self) -> Result<&dyn PointToPoint> {
        self.cpu.messages().ok_or_else(|| Error::internal("the host part has no messages"))
    }

    /// Waits until a message's memory is ready.
    fn ready(&self, stream: Option<usize>, deadline: &Deadline) -> Result<Option<Gpu>> {
        if let Some(failure) = self.fate.failure() {
            return Err(failure);
        }
        let ready = Event::new(&self.context)?;
        ready.record(stream.unwrap_or(DEFAULT_STREAM))?;
        let limits = Limits { deadline, halted: &|| self.fate.failure() };
        limits.wait(&"what is in the stream before it", || ready.is_over())?;
        Ok(Some(Gpu { device: self.context.device(), stream }))
    }
}

impl Carried for Direct {
    fn send(
        &self,
        message: Outgoing,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let gpu = self.ready(stream, &message.deadline)?;
        self.engine()?.send_from(gpu, message, done)
    }

    fn receive(
        &self,
        message: Incoming,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let gpu = self.ready(stream, &message.deadline)?;
        self.engine()?.receive_to(gpu, message, done)
    }
}
