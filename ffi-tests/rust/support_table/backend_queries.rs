//! Queries each back end through its own interface whether it supports a call.

use crate::abilities;
use dist::api::{Group, GroupOptions};
use dist::backend::plugin::{
    self, Communicator, CreatedCommunicator, OperationKinds, Plugin, PluginFailureState,
    PluginMessageStatus, PluginRequest, PluginTask, ReleaseReport, RunOutcome, SubmitOutcome,
};
use dist::backend::{
    BackendMemory, BootstrapExchange, GroupContext, OpKind, SupportQuery, nccl, ucc,
};
use dist::base::dtype::DataType;
use dist::base::error::{Error, ErrorKind, Result};
use dist::base::op::ReduceOp;
use dist::store::HashStore;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// A collective operation, `send` or `recv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationKind {
    pub(crate) name: &'static str,
    pub(crate) collective: Option<OpKind>,
}

impl OperationKind {
    /// Returns every kind, in the order of their numbers.
    pub(crate) fn all() -> Vec<Self> {
        let collectives =
            OpKind::ALL.map(|kind| Self { name: kind.name(), collective: Some(kind) });
        let messages = ["send", "recv"].map(|name| Self { name, collective: None });
        collectives.into_iter().chain(messages).collect()
    }

    pub(crate) fn reduces(self) -> bool {
        self.collective.is_some_and(OpKind::is_reduction)
    }

    pub(crate) fn has_elements(self) -> bool {
        self.collective != Some(OpKind::Barrier)
    }
}

/// The memory of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferDevice {
    Host,
    Gpu,
}

/// Queries one back end.
pub(crate) type BackendQueryFn = Box<dyn Fn(&SupportQuery) -> bool>;

/// Returns the back ends with the names of their columns.
pub(crate) fn backends() -> Vec<(&'static str, BackendQueryFn)> {
    let mpi = plugin::register("declared-mpi", |_| Arc::new(DeclaredOnlyBackend)).unwrap();
    vec![
        ("native", multi_host_query("native", 2)),
        ("mpi", multi_host_query(mpi, 1)),
        ("ucc", Box::new(ucc_supports)),
        ("nccl", Box::new(|it| nccl_supports(it, NEWEST_NCCL))),
    ]
}

/// An NCCL version that supports all features.
const NEWEST_NCCL: i32 = i32::MAX;

/// Returns the oldest accepted version of NCCL that supports a call.
pub(crate) fn nccl_minimum_version(query: &SupportQuery) -> Option<i32> {
    let versions = (OLDEST_MINOR..=NEWEST_MINOR).map(|minor| 20_000 + minor * 100);
    versions.into_iter().find(|&version| nccl_supports(query, version))
}

/// The library accepts NCCL 2.14 and later. The newest version in the query has no additional
/// feature yet.
pub(crate) const OLDEST_MINOR: i32 = 14;
const NEWEST_MINOR: i32 = 99;

fn nccl_supports(query: &SupportQuery, version: i32) -> bool {
    match query.gpu {
        Some(_) => nccl::check_support(query, version, 2).is_ok(),
        None => nccl::check_host_support(query).is_ok(),
    }
}

/// The back end asks the same function, after it has checked that the operator is defined.
fn ucc_supports(query: &SupportQuery) -> bool {
    let is_defined = |(dtype, op): (DataType, ReduceOp)| op.is_defined_for(dtype);
    query.dtype.zip(query.op).is_none_or(is_defined)
        && query.kind.zip(query.op).is_none_or(|(kind, op)| kind.check_op(op).is_ok())
        && ucc::check_support(query).is_ok()
}

/// Returns a query that asks a group over this back end.
fn multi_host_query(backend: &'static str, size: usize) -> BackendQueryFn {
    let store = Arc::new(HashStore::new());
    let join = |rank| {
        let store = Arc::clone(&store);
        move || {
            Group::create(GroupOptions {
                device: None,
                store,
                rank,
                size,
                backend: Some(backend.to_owned()),
                backend_options: String::new(),
                name: "asked".into(),
                timeout_ms: 20_000,
                connect_timeout_ms: 20_000,
                global_ranks: None,
                job_secret: None,
            })
            .unwrap()
        }
    };
    let groups: Vec<Group> = std::thread::scope(|scope| {
        let joining: Vec<_> = (0..size).map(|rank| scope.spawn(join(rank))).collect();
        joining.into_iter().map(|joining| joining.join().unwrap()).collect()
    });
    Box::new(move |query| {
        let kind =
            query.kind.map_or(if query.name == "send" { 64 } else { 65 }, |kind| kind as i32);
        let dtype = query.dtype.map_or(-1, |dtype| dtype.number());
        let op = query.op.map_or(-1, |op| op.number());
        let device = query.gpu.map_or(-1, |gpu| i32::try_from(gpu).unwrap());
        match groups[0].supports(kind, dtype, op, device) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::Unsupported => false,
            Err(error) => panic!("{query}: {error}"),
        }
    })
}

/// The declared support of the MPI plug-in, without MPI; it executes no operation.
#[derive(Debug)]
struct DeclaredOnlyBackend;

impl Plugin for DeclaredOnlyBackend {
    fn create(
        &self,
        _: &GroupContext<'_>,
        _: &dyn BootstrapExchange,
        _: &Arc<PluginFailureState>,
    ) -> Result<CreatedCommunicator> {
        let kinds = OperationKinds::from_bits(abilities::KINDS)?;
        Ok(CreatedCommunicator { communicator: Arc::new(Self), kinds, serves_device: false })
    }
}

fn unimplemented_error<T>() -> Result<T> {
    Err(Error::internal("this back end is only asked"))
}

impl Communicator for DeclaredOnlyBackend {
    /// The plug-in's table has no such function, so it supports all calls within the limits of its
    /// operators.
    fn supports(&self, query: &SupportQuery) -> Result<()> {
        let is_defined =
            |(dtype, op): (DataType, ReduceOp)| abilities::reduction_source(dtype, op).is_some();
        match (query.gpu, query.dtype.zip(query.op)) {
            (None, reduction) if reduction.is_none_or(is_defined) => Ok(()),
            _ => Err(Error::new(ErrorKind::Unsupported, query.to_string())),
        }
    }

    fn submit(&self, _: &PluginTask<'_>) -> Result<SubmitOutcome> {
        unimplemented_error()
    }

    fn has_fast_path(&self) -> bool {
        false
    }

    fn run(&self, _: &PluginTask<'_>, _: Duration) -> Option<Result<RunOutcome>> {
        None
    }

    fn test(&self, _: PluginRequest) -> Result<Option<PluginMessageStatus>> {
        unimplemented_error()
    }

    fn wait(&self, _: PluginRequest, _: Duration) -> Result<Option<PluginMessageStatus>> {
        unimplemented_error()
    }

    fn release(&self, _: PluginRequest) -> Result<ReleaseReport> {
        unimplemented_error()
    }

    fn abort(&self, _: &Error) {}

    fn failure(&self) -> Option<Error> {
        None
    }

    fn allocate(&self, _: usize) -> Result<Option<Box<dyn BackendMemory>>> {
        Ok(None)
    }

    fn describe(&self) -> Value {
        Value::Null
    }
}

/// Returns the support query of a call.
pub(crate) fn query(
    kind: OperationKind,
    dtype: Option<DataType>,
    op: Option<ReduceOp>,
    on: BufferDevice,
) -> SupportQuery {
    let gpu = (on == BufferDevice::Gpu).then_some(0);
    SupportQuery { name: kind.name, kind: kind.collective, dtype, op, gpu }
}
