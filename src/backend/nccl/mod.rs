//! Groups over NCCL: operations on the memory of one GPU for each rank.
//!
//! This is the part of a group that serves its device; the other one serves host memory, finds out
//! who lives, and has the group's failure ([`super::map`]). libnccl is found at run time
//! ([`library`], [`functions`]). The ranks' communicator is made in [`meet`] and kept in [`comm`],
//! a call becomes NCCL's in [`calls`] and [`types`], those of several groups are enqueued as one in
//! [`launch`], and what was enqueued ([`flight`]) is looked after by a thread ([`watchdog`]).
//!
//! Nothing here reads or writes a buffer. Operations are enqueued on the thread that issues them
//! where nothing of their group is before them, so that those of several groups on one stream are
//! there in the program's order.
//!
//! Must not know: other back ends, who calls.
#![allow(unsafe_code, reason = "this is where NCCL is called")]

mod calls;
mod comm;
mod flight;
mod functions;
mod launch;
pub mod library;
mod meet;
mod memory;
mod options;
mod quiet;
mod types;
mod watchdog;

pub use launch::Enqueuer;
pub(super) use launch::together;
pub(super) use meet::{Found, Wish};
pub(super) use options::{Options, split};

use super::device_part::{Bundle, DevicePart, is_recording};
use super::{Context, Exchange, Fate, Listener, Memory, OpKind, Operation, Place, Query};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{Gpu, Launch, Mark};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::device::Event;
use crate::device::driver::Handle;
use crate::device::stream::is_capturing;
use serde_json::{Value, json};
use std::sync::Arc;
use watchdog::Watched;

/// The functions that are used, which an NCCL must have, and which it may have.
pub fn symbols() -> [&'static [&'static std::ffi::CStr]; 2] {
    [functions::Functions::REQUIRED, functions::Functions::OPTIONAL]
}

/// Whether an NCCL of this version (22703 for 2.27.3) with all its functions can do a kind of call
/// among so many ranks, on the memory of a GPU.
///
/// # Errors
/// `Unsupported`.
pub fn is_known(query: &Query, version: i32, size: WorldSize) -> Result<()> {
    let (Some(op), Some(dtype)) = (query.op, query.dtype) else { return Ok(()) };
    op.check_defined_for(dtype, || "nccl")?;
    if let Some(kind) = query.kind.filter(|kind| kind.is_prefix()) {
        return Err(types::no_prefix(kind));
    }
    types::folded(dtype, op, (version, size)).map(drop)
}

/// Whether a group over NCCL alone does a kind of call on host memory: only what it needs itself.
///
/// # Errors
/// `Unsupported`.
pub fn is_for_host(query: &Query) -> Result<()> {
    if query.kind.is_none_or(|kind| kind == OpKind::Barrier) {
        return Ok(());
    }
    let message = format!(
        "{query} in host memory: the back end nccl is for the memory of GPUs; \"cpu:native,cuda:nccl\" serves both"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// A group's part on the device.
#[derive(Debug)]
pub(super) struct Nccl {
    rank: Rank,
    size: WorldSize,
    /// What is on the default stream when an operation is put into that one.
    inputs: Event,
    watched: Arc<Watched>,
}

impl Nccl {
    /// Makes this rank's part together with the other ranks.
    pub(super) fn create(
        context: &Context<'_>,
        exchange: &dyn Exchange,
        parts: (&Arc<dyn Fate>, &[Place]),
        wish: &Wish<'_>,
    ) -> Result<Found<Self>> {
        let watched = match meet::create(context, exchange, parts, wish)? {
            Ok(watched) => watched,
            Err(why) => return Ok(Err(why)),
        };
        let (rank, size) = (context.rank, context.size);
        match Event::new(watched.comm.context()) {
            Ok(inputs) => Ok(Ok(Self { rank, size, inputs, watched })),
            Err(error) => {
                watched.fail(&error);
                watched.close();
                Err(error)
            }
        }
    }

    fn fatal(&self, error: Error) -> Error {
        self.watched.fail(&error);
        // The first reason, of which this may be a consequence.
        self.watched.fate.failure().unwrap_or(error)
    }
}

impl DevicePart for Nccl {
    fn device(&self) -> usize {
        self.watched.comm.context().device()
    }

    fn look_around(&self) {
        self.watched.on_knock();
    }

    fn supports(&self, query: &Query) -> Result<()> {
        let library = self.watched.comm.library();
        is_known(query, library.version(), self.size)
            .map_err(|error| error.context(format_args!("{query} ({})", library.signature())))?;
        let has_factors = library.functions.create_premul_sum.is_some();
        if query.op == Some(ReduceOp::PremulSum) && !has_factors {
            return Err(calls::lacks(library.signature(), ReduceOp::PremulSum));
        }
        Ok(())
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    /// Its place in the stream is all that there is to it.
    fn mark(&self, _: Gpu) -> Result<Option<Arc<dyn Mark>>> {
        Ok(None)
    }

    fn run(&self, operation: &Operation<'_>, launch: &Launch<'_>) -> Result<()> {
        let operation = Operation { launch: Some(*launch), ..*operation };
        let (operations, messages) = (&[operation][..], &[][..]);
        let deadline = operation.deadline();
        let enqueuer = Enqueuer(self);
        let bundle = Bundle { enqueuer, operations, messages, deadline };
        together(&[bundle]).into_iter().collect()
    }

    fn enqueuer(&self) -> Option<Enqueuer<'_>> {
        Some(Enqueuer(self))
    }

    fn check_stream(&self, stream: Handle) -> Result<()> {
        let context = self.watched.comm.context();
        let _current = context.enter()?;
        if is_capturing(context, stream)? {
            return Err(is_recording("nccl"));
        }
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        memory::allocate(&self.watched, bytes)
    }

    fn describe(&self) -> Value {
        let library = self.watched.comm.library();
        let options = &self.watched.options;
        json!({
            "version": library.version_text(),
            "library": library.file(),
            "missing": library.missing(),
            "driver": self.watched.comm.context().driver().file(),
            "device": self.device(),
            "high_priority": options.high_priority,
            "blocking_wait": options.blocking_wait,
            "windows": options.windows,
            "blocking": self.watched.comm.may_block(),
            "async_error_handling": options.handles_errors,
        })
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.watched.close();
    }
}
