//! Operations of one or several groups, enqueued as one.
//!
//! A thread that drives several devices enqueues on one after the other, and NCCL may wait for the
//! other ranks while it launches the first operations of a communicator: alone, each would wait for
//! what the same thread has still to call. So all that is enqueued together stands between one
//! ncclGroupStart and one ncclGroupEnd, whatever its communicators, streams and kinds. NCCL keeps
//! the order of the communicators' first calls, which the caller makes the same on all ranks.
//!
//! 1. All communicators are entered, in the order of the bundles, so that two threads cannot wait
//!    for each other.
//! 2. What a call needs of its own (an operator with this rank's factor) is made.
//! 3. The calls are made between start and end, each with its own device current.
//! 4. All communicators are waited for until they have launched, and only then a mark is put behind
//!    the operations in each of the streams.
//!
//! An error in 3 concerns all groups: NCCL drops everything between start and end, and other ranks
//! may not have.

use super::Nccl;
use super::calls::{Caller, Folding};
use super::comm::Entry;
use super::flight::{InFlight, Title};
use super::functions::Code;
use super::quiet::{self, Pass};
use crate::backend::Operation;
use crate::backend::device_part::{Bundle, Message};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::gpu::{Flight, Gpu, Launch};
use crate::device::driver::Handle;
use std::sync::Arc;

/// A group's part on a device that takes operations together with those of other groups.
#[derive(Clone, Copy, Debug)]
pub struct Enqueuer<'a>(pub(super) &'a Nccl);

/// One call.
#[derive(Clone, Copy)]
enum What<'a> {
    Collective(&'a Operation<'a>),
    Message(&'a Message<'a>),
}

/// One call, where it goes, and the operator that was made for it.
struct Item<'a> {
    what: What<'a>,
    launch: Launch<'a>,
    stream: Handle,
    folding: Option<Folding>,
}

/// A group on its way through the steps; it is inside its communicator.
struct Member<'a> {
    nccl: &'a Nccl,
    deadline: &'a Deadline,
    entry: Entry<'a>,
    items: Vec<Item<'a>>,
    /// Until what it has enqueued is known to be under way.
    _pass: Pass,
}

/// Enqueues what the bundles have, as one, and says for each how that went. Where one says
/// "blocking wait", also waits until the device is done with it.
pub(in crate::backend) fn together(bundles: &[Bundle<'_>]) -> Vec<Result<()>> {
    let mut outcomes: Vec<Result<Vec<Arc<InFlight>>>> = Vec::with_capacity(bundles.len());
    let (mut places, mut members) = (Vec::new(), Vec::new());
    for (place, bundle) in bundles.iter().enumerate() {
        outcomes.push(Member::enter(bundle).map(|member| {
            places.push(place);
            members.push(member);
            Vec::new()
        }));
    }
    let launched = enqueue(&members);
    for (place, member) in places.into_iter().zip(members) {
        outcomes[place] = match &launched {
            Ok(code) => member.launched(*code),
            Err(error) => Err(error.clone()),
        };
    }
    let ended = outcomes.into_iter().zip(bundles).map(|(outcome, bundle)| {
        let Enqueuer(nccl) = bundle.enqueuer;
        // Whatever keeps it from being enqueued: other ranks may have done it.
        outcome.and_then(|flights| nccl.when_blocking(&flights)).map_err(|error| nccl.fatal(error))
    });
    ended.collect()
}

/// Makes all calls between one start and one end.
fn enqueue(members: &[Member<'_>]) -> Result<Code> {
    let Some(first) = members.first() else { return Ok(0) };
    first.entry.between(|| {
        members.iter().try_for_each(|member| {
            let _current = member.entry.current()?;
            member.items.iter().try_for_each(|item| member.call(item))
        })
    })
}

impl<'a> Member<'a> {
    fn enter(bundle: &Bundle<'a>) -> Result<Self> {
        let Enqueuer(nccl) = bundle.enqueuer;
        let deadline = bundle.deadline;
        let pass = quiet::enqueue(deadline)?;
        let entry = nccl.watched.comm.enter(Some("ncclGroupEnd"), deadline)?;
        let collectives = bundle.operations.iter().map(|operation| {
            let launch = operation.launch.ok_or_else(|| Error::internal("nowhere to enqueue"))?;
            Ok((What::Collective(operation), launch))
        });
        let messages =
            bundle.messages.iter().map(|(message, launch)| Ok((What::Message(message), *launch)));
        let calls = collectives.chain(messages).collect::<Result<Vec<_>>>()?;
        let items = Vec::with_capacity(calls.len());
        let mut member = Self { nccl, deadline, entry, items, _pass: pass };
        let own = match calls.iter().any(|(_, launch)| launch.gpu.stream.is_none()) {
            true => nccl.own_stream()?,
            false => 0,
        };
        for (what, launch) in calls {
            let stream = stream_of(launch.gpu, own);
            let folding = match what {
                What::Collective(operation) => {
                    operation.probe.begins("nccl");
                    member.caller(stream).folding(operation)
                }
                What::Message(_) => Ok(None),
            };
            // What was made is taken back below.
            let folding = folding.inspect_err(|_| member.forget())?;
            member.items.push(Item { what, launch, stream, folding });
        }
        Ok(member)
    }

    fn caller(&self, stream: Handle) -> Caller<'_> {
        let Nccl { rank, size, .. } = *self.nccl;
        Caller { entry: &self.entry, stream, deadline: self.deadline, rank, size }
    }

    fn call(&self, item: &Item<'_>) -> Result<()> {
        let caller = self.caller(item.stream);
        match item.what {
            What::Collective(operation) => caller.collective(operation, item.folding.as_ref()),
            What::Message(message) => caller.message(message.dtype, message.peer, message.way),
        }
    }

    fn forget(&self) {
        let made = self.items.iter().filter_map(|item| item.folding.as_ref());
        made.for_each(|folding| self.caller(0).forget(folding));
    }

    /// Waits until its communicator has launched, and puts a mark into each of its streams.
    fn launched(self, code: Code) -> Result<Vec<Arc<InFlight>>> {
        let launched = self.entry.settle("ncclGroupEnd", code, self.deadline);
        if launched.is_ok() {
            self.forget();
        }
        launched?;
        let mut streams: Vec<Handle> = self.items.iter().map(|item| item.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams.into_iter().map(|stream| self.mark(stream)).collect()
    }

    fn mark(&self, stream: Handle) -> Result<Arc<InFlight>> {
        let Nccl { watched, .. } = self.nccl;
        let mark = watched.spares.mark(watched.comm.context(), stream)?;
        let kept = (Arc::clone(&watched.fate), !watched.options.handles_errors);
        let flight = Arc::new(InFlight::new(self.title(), *self.deadline, mark, kept));
        watched.add(Arc::clone(&flight));
        for item in self.items.iter().filter(|item| item.stream == stream) {
            // A slot is for one operation.
            drop(item.launch.flight.set(Arc::clone(&flight) as Arc<dyn Flight>));
        }
        Ok(flight)
    }

    /// NCCL makes one operation of all that a communicator has in a group, whatever the streams.
    fn title(&self) -> Title {
        let collectives = self.items.iter().filter_map(|item| match item.what {
            What::Collective(operation) => Some(operation.descriptor),
            What::Message(_) => None,
        });
        let first = collectives.map(|it| (it.kind.name(), it.sequence)).next();
        Title { first, calls: self.items.len() }
    }
}

fn stream_of(gpu: Gpu, own: Handle) -> Handle {
    gpu.stream.unwrap_or(own)
}

impl Nccl {
    /// The library's own stream, for callers that name none. What was put on the default stream
    /// before goes before it.
    fn own_stream(&self) -> Result<Handle> {
        let stream = &self.watched.stream;
        self.inputs.record(crate::device::stream::DEFAULT_STREAM)?;
        self.inputs.hold_back(stream.handle())?;
        Ok(stream.handle())
    }

    /// Waits for the device where calls end only then.
    fn when_blocking(&self, flights: &[Arc<InFlight>]) -> Result<()> {
        if !self.watched.options.blocking_wait {
            return Ok(());
        }
        flights.iter().try_for_each(|flight| match flight.wait(&flight.deadline)? {
            true => Ok(()),
            false => Err(self.watched.expired(flight)),
        })
    }
}
