//! How a rank of libdist's engine calls the measured operations. It uses the C interface, so that
//! the measured time is the time that a C program sees. This time includes the checks of the
//! arguments and the lookup of the handles.
#![allow(unsafe_code, reason = "the C interface takes raw pointers")]

use super::memory::RankBuffers;
use crate::libdist;
use crate::ops::{BenchOp, ROOT, RankPosition};
use crate::request::BenchRequest;
use dist::ffi::types::{
    DIST_DEVICE_HOST, DIST_ERR_INVALID_ARGUMENT, DIST_ERR_UNSUPPORTED, DIST_FIELD_DEVICE,
    DIST_FIELD_RANK, DIST_OK, DIST_U8, DIST_WAIT_FOREVER, dist_call_options_t, dist_group_t,
    dist_init_options_t, dist_status_t, dist_work_t,
};
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};

/// [`ROOT`] with the type that ranks have in the C interface.
const ROOT_RANK: i32 = 0;
const _: () = assert!(ROOT == 0, "both constants name the root rank");

/// The tag of the measured messages of a ping-pong.
const PING_PONG_TAG: i32 = 0;
/// The tag of the message with which a rank reports that it is ready for a ping-pong.
const READY_TAG: i32 = 1;

/// Returns the world group, or NULL if this process has not joined a world group.
fn world() -> *mut dist_group_t {
    // SAFETY: the function has no arguments.
    unsafe { libdist::dist_world() }
}

/// Allocates `bytes` bytes with `dist_mem_alloc`.
///
/// # Errors
/// The library's error.
pub(super) fn allocate(bytes: usize) -> Result<*mut u8, String> {
    let mut ptr: *mut c_void = null_mut();
    let world = world();
    // SAFETY: `ptr` receives the result.
    check(unsafe { libdist::dist_mem_alloc(world, bytes, DIST_DEVICE_HOST, &raw mut ptr) })?;
    Ok(ptr.cast())
}

/// Frees memory from `allocate`.
pub(super) fn free(ptr: *mut u8) {
    // SAFETY: the memory is from `allocate` and is freed once. No operation uses it any more.
    let status = unsafe { libdist::dist_mem_free(ptr.cast()) };
    debug_assert_eq!(status, DIST_OK);
}

/// The error of a call: its status and its message.
#[derive(Debug)]
pub(crate) struct CallError {
    status: dist_status_t,
    message: String,
}

impl From<CallError> for String {
    fn from(error: CallError) -> Self {
        error.message
    }
}

/// Turns a status into a result.
///
/// # Errors
/// The library's error.
pub(crate) fn check(status: dist_status_t) -> Result<(), CallError> {
    if status == DIST_OK {
        return Ok(());
    }
    // SAFETY: the function has no arguments. The text is valid until the next failing call of this
    // thread.
    let message = unsafe { libdist::dist_last_error() };
    // SAFETY: `message` is a C string. It is valid until the next failing call of this thread, and
    // it is copied before.
    let message = unsafe { CStr::from_ptr(message) };
    Err(CallError { status, message: message.to_string_lossy().into_owned() })
}

/// Call options that select an algorithm by name.
pub(super) struct AlgorithmOptions {
    options: dist_call_options_t,
    /// The name of the algorithm. `options` points to it.
    _name: CString,
}

impl AlgorithmOptions {
    /// Creates options for this algorithm.
    ///
    /// # Errors
    /// The reason why the name is not a C string.
    pub(super) fn for_algorithm(name: &str) -> Result<Self, String> {
        let name = CString::new(name).map_err(|error| error.to_string())?;
        let options = dist_call_options_t {
            struct_size: size_of::<dist_call_options_t>(),
            flags: 0,
            timeout_ms: 0,
            // The factor of a sum of scaled elements. dist-bench does not use this operator.
            premul_scale: 0.0,
            algorithm: name.as_ptr(),
            device: DIST_DEVICE_HOST,
            stream: null_mut(),
            reserved: 0,
            label: null(),
        };
        Ok(Self { options, _name: name })
    }
}

/// An operation and its arguments. They are the same in all calls of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpCall {
    op: BenchOp,
    input: *const c_void,
    output: *mut c_void,
    /// The number of elements, as [`BenchOp::elements`] counts them: the sum over all blocks if the
    /// operation has one block per rank.
    count: usize,
    dtype: i32,
    redop: i32,
    asynchronous: bool,
    options: *const dist_call_options_t,
}

impl OpCall {
    /// Creates the call of a request. `buffers` and `algorithm` must live as long as the call is
    /// used.
    pub(super) fn new(
        request: &BenchRequest,
        buffers: &RankBuffers,
        algorithm: Option<&AlgorithmOptions>,
    ) -> Self {
        Self {
            options: algorithm.map_or(null(), |choice| &raw const choice.options),
            op: request.op,
            input: buffers.input().cast(),
            output: buffers.output().cast(),
            count: request.count,
            dtype: request.dtype.number(),
            redop: request.redop.number(),
            asynchronous: request.is_asynchronous,
        }
    }

    /// Makes a call, and returns when the operation is complete. `function` takes a `dist_work_t
    /// **` (the address at which the C function stores the handle of the operation). For a blocking
    /// call, this pointer is NULL. For an asynchronous call, waits for the work and releases it.
    fn issue(
        &self,
        function: impl FnOnce(*mut *mut dist_work_t) -> dist_status_t,
    ) -> Result<(), CallError> {
        if !self.asynchronous {
            return check(function(null_mut()));
        }
        let mut issued: *mut dist_work_t = null_mut();
        check(function(&raw mut issued))?;
        // SAFETY: `issued` is a work of this process that was not released.
        let wait_result =
            check(unsafe { libdist::dist_work_synchronize(issued, DIST_WAIT_FOREVER) });
        // SAFETY: as above. The work is released once.
        check(unsafe { libdist::dist_work_release(issued) })?;
        wait_result
    }
}

/// A message to or from the other rank of a ping-pong.
struct PeerMessage {
    buf: *mut c_void,
    count: usize,
    dtype: i32,
    tag: i32,
}

/// The world group, which this process has joined.
#[derive(Debug)]
pub(crate) struct RankWorld {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    group: *mut dist_group_t,
}

impl RankWorld {
    /// Joins the world group.
    ///
    /// # Errors
    /// The library's error.
    pub(crate) fn join(
        store_url: &str,
        RankPosition { rank, ranks }: RankPosition,
        transport: &str,
        on_device: Option<(usize, &str)>,
    ) -> Result<Self, String> {
        let number = |number: usize| i32::try_from(number).map_err(|error| error.to_string());
        let text = |text: String| CString::new(text).map_err(|error| error.to_string());
        let (init_method, backend_options) =
            (text(store_url.to_owned())?, text(format!("transport={transport}"))?);
        let (device, backend) = match on_device {
            Some((device, backend)) => (number(device)?, Some(text(backend.to_owned())?)),
            None => (0, None),
        };
        let options = dist_init_options_t {
            struct_size: size_of::<dist_init_options_t>(),
            fields: DIST_FIELD_RANK | on_device.map_or(0, |_| DIST_FIELD_DEVICE),
            backend: backend.as_ref().map_or(null(), |name| name.as_ptr()),
            init_method: init_method.as_ptr(),
            store: null(),
            rank: number(rank)?,
            world_size: number(ranks)?,
            timeout_ms: 0,
            connect_timeout_ms: 0,
            group_name: null(),
            backend_options: backend_options.as_ptr(),
            device,
            reserved: 0,
        };
        // SAFETY: the structure, and the texts that it points to, live until the call returns.
        check(unsafe { libdist::dist_init(&raw const options) })?;
        Ok(Self { rank, ranks, group: world() })
    }

    /// Returns the handle of the group.
    pub(crate) fn group(&self) -> *mut dist_group_t {
        self.group
    }

    /// Leaves the group.
    ///
    /// # Errors
    /// The library's error.
    pub(crate) fn leave(self) -> Result<(), String> {
        // SAFETY: no call is in progress.
        Ok(check(unsafe { libdist::dist_finalize() })?)
    }

    /// Synchronises all ranks.
    ///
    /// # Errors
    /// The library's error.
    pub(crate) fn barrier(&self) -> Result<(), String> {
        // SAFETY: the call has no options and no work.
        Ok(check(unsafe { libdist::dist_barrier(self.group, null(), null_mut()) })?)
    }

    /// Synchronises the two ranks of a ping-pong: the rank that starts it waits for a message of
    /// the other rank.
    ///
    /// # Errors
    /// The library's error.
    pub(super) fn await_peer(&self) -> Result<(), String> {
        let mut byte = 0u8;
        let buf = (&raw mut byte).cast();
        let message = PeerMessage { buf, count: 1, dtype: DIST_U8, tag: READY_TAG };
        let exchange = if self.rank == ROOT { Self::receive } else { Self::send };
        Ok(check(exchange(self, message, null_mut()))?)
    }

    /// Returns the number of the other rank of a ping-pong.
    fn peer(&self) -> i32 {
        if self.rank == ROOT { 1 } else { ROOT_RANK }
    }

    fn send(&self, message: PeerMessage, work: *mut *mut dist_work_t) -> dist_status_t {
        let (PeerMessage { buf, count, dtype, tag }, peer) = (message, self.peer());
        // SAFETY: the buffer has `count` elements, and it lives until the call, or the wait for its
        // work, has returned.
        unsafe { libdist::dist_send(self.group, buf, count, dtype, peer, tag, null(), work) }
    }

    fn receive(&self, message: PeerMessage, work: *mut *mut dist_work_t) -> dist_status_t {
        let (PeerMessage { buf, count, dtype, tag }, peer) = (message, self.peer());
        let (group, status) = (self.group, null_mut());
        // SAFETY: as for send.
        unsafe { libdist::dist_recv(group, buf, count, dtype, peer, tag, status, null(), work) }
    }

    /// Returns true if the library supports the algorithm that the options of a call name. To find
    /// out, makes the call once, with the current content of the buffers.
    ///
    /// # Errors
    /// Any other error of the call.
    pub(super) fn supports_algorithm(&self, call: &OpCall) -> Result<bool, String> {
        match self.issue_call(call) {
            Ok(()) => Ok(true),
            // All ranks get the same error, before they communicate.
            Err(error)
                if [DIST_ERR_INVALID_ARGUMENT, DIST_ERR_UNSUPPORTED].contains(&error.status) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes one call.
    ///
    /// # Errors
    /// The library's error.
    pub(super) fn run_call(&self, call: &OpCall) -> Result<(), String> {
        Ok(self.issue_call(call)?)
    }

    fn issue_call(&self, call: &OpCall) -> Result<(), CallError> {
        let OpCall { op, input, output, count, dtype, redop, options, .. } = *call;
        let (world, block) = (self.group, count / self.ranks);
        match op {
            // SAFETY: `RankBuffers` has enough memory for the elements that the operation reads and
            // writes on this rank. If input and result overlap, they overlap as the in-place rule
            // of the operation demands. The memory exists until the call, or the wait for its work,
            // has returned.
            BenchOp::AllReduce => call.issue(|work| unsafe {
                libdist::dist_all_reduce(world, input, output, count, dtype, redop, options, work)
            }),
            // SAFETY: as for all_reduce.
            BenchOp::Reduce => call.issue(|work| unsafe {
                libdist::dist_reduce(
                    world, input, output, count, dtype, redop, ROOT_RANK, options, work,
                )
            }),
            // SAFETY: as for all_reduce.
            BenchOp::Broadcast => call.issue(|work| unsafe {
                libdist::dist_broadcast(world, output, count, dtype, ROOT_RANK, options, work)
            }),
            // SAFETY: as for all_reduce.
            BenchOp::AllGather => call.issue(|work| unsafe {
                libdist::dist_all_gather(world, input, output, block, dtype, options, work)
            }),
            // SAFETY: as for all_reduce.
            BenchOp::ReduceScatter => call.issue(|work| unsafe {
                libdist::dist_reduce_scatter(
                    world, input, output, block, dtype, redop, options, work,
                )
            }),
            // SAFETY: as for all_reduce.
            BenchOp::AllToAll => call.issue(|work| unsafe {
                libdist::dist_all_to_all(world, input, output, block, dtype, options, work)
            }),
            // SAFETY: as for all_reduce.
            BenchOp::Gather => call.issue(|work| unsafe {
                libdist::dist_gather(world, input, output, block, dtype, ROOT_RANK, options, work)
            }),
            // SAFETY: as for all_reduce.
            BenchOp::Scatter => call.issue(|work| unsafe {
                libdist::dist_scatter(world, input, output, block, dtype, ROOT_RANK, options, work)
            }),
            BenchOp::Barrier => call.issue(|work| {
                // SAFETY: the call reads and writes no buffer.
                unsafe { libdist::dist_barrier(world, options, work) }
            }),
            BenchOp::SendRecv => self.ping_pong(call),
        }
    }

    /// Makes one round trip: the rank that starts sends a message and receives the reply. The other
    /// rank receives the message and sends the reply.
    fn ping_pong(&self, call: &OpCall) -> Result<(), CallError> {
        let OpCall { input, output, count, dtype, .. } = *call;
        let message = |buf| PeerMessage { buf, count, dtype, tag: PING_PONG_TAG };
        let send = || call.issue(|work| self.send(message(input.cast_mut()), work));
        let receive = || call.issue(|work| self.receive(message(output), work));
        if self.rank == ROOT {
            send().and_then(|()| receive())
        } else {
            receive().and_then(|()| send())
        }
    }
}
