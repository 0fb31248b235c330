//! Groups over NCCL: operations on the memory of one GPU for each rank.
//!
//! This is the part of a group that serves its device; the other one serves host memory, finds out who lives, and has the
//! group's failure ([`super::map`]). libnccl is found at run time ([`library`], [`functions`]). The ranks' communicator is
//! made in [`meet`] and kept in [`comm`], a call becomes NCCL's in [`calls`] and [`types`], and what was enqueued
//! ([`flight`]) is looked after by a thread ([`watchdog`]).
//!
//! Nothing here reads or writes a buffer. Operations are enqueued on the thread that issues them where nothing of their group
//! is before them, so that those of several groups on one stream are there in the program's order.
//!
//! Must not know: other back ends, who calls.
#![allow(unsafe_code, reason = "this is where NCCL is called")]

mod calls;
mod comm;
mod flight;
mod functions;
pub mod library;
mod meet;
mod memory;
mod options;
mod types;
mod watchdog;

pub(super) use meet::{Found, Wish};
pub(super) use options::{Options, split};

use super::device_part::{DevicePart, Message, is_recording};
use super::{Context, Exchange, Fate, Listener, Memory, OpKind, Operation, Place, Query};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{Flight, Gpu, Launch, Mark};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::device::driver::Handle;
use crate::device::stream::{DEFAULT_STREAM, is_capturing};
use crate::device::{Event, Stream};
use calls::Caller;
use flight::{InFlight, Title};
use serde_json::{Value, json};
use std::sync::Arc;
use watchdog::Watched;

/// The functions that are used, which an NCCL must have, and which it may have.
pub fn symbols() -> [&'static [&'static std::ffi::CStr]; 2] {
    [functions::Functions::REQUIRED, functions::Functions::OPTIONAL]
}

/// Whether an NCCL of this version (22703 for 2.27.3) with all its functions can do a kind of call, on the memory of a GPU.
///
/// # Errors
/// `Unsupported`.
pub fn is_known(query: &Query, version: i32) -> Result<()> {
    let (Some(op), Some(dtype)) = (query.op, query.dtype) else { return Ok(()) };
    op.check_defined_for(dtype, || "nccl")?;
    types::folded(dtype, op, version).map(drop)
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
    /// The library's own stream, for callers that name none.
    stream: Stream,
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
        let made = Stream::new(watched.comm.context(), wish.options.high_priority)
            .and_then(|stream| Ok((stream, Event::new(watched.comm.context())?)));
        match made {
            Ok((stream, inputs)) => Ok(Ok(Self { rank, size, stream, inputs, watched })),
            Err(error) => {
                watched.fail(&error);
                watched.close();
                Err(error)
            }
        }
    }

    fn enqueue(
        &self,
        title: Title,
        deadline: &Deadline,
        launch: &Launch<'_>,
        calls: impl FnOnce(&Caller<'_>) -> Result<()>,
    ) -> Result<()> {
        // Whatever keeps it from being enqueued: other ranks may have done it.
        let flight = self.put(title, deadline, launch.gpu, calls);
        let flight = flight.map_err(|error| self.fatal(error))?;
        self.watched.add(Arc::clone(&flight));
        // A slot is for one operation.
        drop(launch.flight.set(Arc::clone(&flight) as Arc<dyn Flight>));
        if !self.watched.options.blocking_wait {
            return Ok(());
        }
        match flight.wait(deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.fatal(self.watched.expired(&flight))),
            Err(error) => Err(self.fatal(error)),
        }
    }

    /// Puts an operation into its stream, and a mark behind it.
    fn put(
        &self,
        title: Title,
        deadline: &Deadline,
        gpu: Gpu,
        calls: impl FnOnce(&Caller<'_>) -> Result<()>,
    ) -> Result<Arc<InFlight>> {
        let entry = self.watched.comm.enter(deadline)?;
        let (stream, rank, size) = (self.stream_of(gpu)?, self.rank, self.size);
        calls(&Caller { entry: &entry, stream, deadline, rank, size })?;
        let event = Event::new(self.watched.comm.context())?;
        event.record(stream)?;
        let kept = (Arc::clone(&self.watched.fate), !self.watched.options.handles_errors);
        Ok(Arc::new(InFlight::new(title, *deadline, event, kept)))
    }

    /// The stream that an operation goes to. What was put on the default stream before goes before it also where the caller
    /// names no stream.
    fn stream_of(&self, gpu: Gpu) -> Result<Handle> {
        let Some(stream) = gpu.stream else {
            self.inputs.record(DEFAULT_STREAM)?;
            self.inputs.hold_back(self.stream.handle())?;
            return Ok(self.stream.handle());
        };
        Ok(stream)
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
        is_known(query, library.version())
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
        operation.probe.begins("nccl");
        self.enqueue(Title::of(operation), operation.deadline(), launch, |caller| {
            caller.collective(operation)
        })
    }

    fn exchange(
        &self,
        messages: &[Message<'_>],
        deadline: &Deadline,
        launch: &Launch<'_>,
    ) -> Result<()> {
        let title = Title::Messages(messages.len());
        self.enqueue(title, deadline, launch, |caller| caller.messages(messages))
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
            "async_error_handling": options.handles_errors,
        })
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.watched.close();
    }
}
