//! The creation of a reducer, in which all ranks of the group take part.

use super::device::GradStream;
use super::hook::Hook;
use super::memory::GradMemory;
use super::options::{DividePolicy, ReducerOptions};
use super::own_grads::OwnGrads;
use super::param::{self, Param};
use super::reducer_state::{Reducer, ReducerPhase, ReducerState};
use super::state_agreement::{self, NewReducer};
use super::stats::ReducerTotals;
use super::values::ParamSelection;
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::backend::DeviceBackend;
use crate::backend::SupportQuery;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::gpu::GpuTarget;
use crate::base::op::ReduceOp;
use crate::transport::OpKind;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

impl Reducer {
    /// Creates a reducer together with the other ranks of a group. The ranks compare parameters and
    /// options, agree on the layout, and broadcast the values of the parameters.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unsupported` before any communication; `Mismatch` on all ranks if
    /// parameters or options differ; the errors of collectives.
    pub fn create(
        group: &Arc<Group>,
        params: Vec<Param>,
        options: ReducerOptions,
    ) -> Result<Arc<Self>> {
        callbacks::reject_blocking_in_callback("dist_reducer_create")?;
        param::check_params(&params)?;
        options.check()?;
        check_supported(group, &params, &options)?;
        let device = params.iter().find_map(|param| param.device.filter(|_| param.is_trained()));
        let device =
            device.map(|device| GradStream::new(GpuTarget { device, stream: options.stream }));
        let device = device.transpose()?;
        let initial = NewReducer::of(&params, &options)?;
        let met = state_agreement::create(group, &params, &options, initial)?;
        let hook = Hook::new(&options.hook, group, &params, met.source.steps)?.map(Arc::new);
        let own = options.is_sharded.then(|| OwnGrads::new(group, &met.layout)).transpose()?;
        let needs = options.memory_needs();
        let memory = GradMemory::new(group, met.layout, needs, device.as_ref())?;
        let state = ReducerState {
            group: Arc::downgrade(group),
            memory: Arc::new(memory),
            own,
            shard: None,
            gathers: met.source.gathers,
            phase: ReducerPhase::Idle,
            steps: met.source.steps,
            initial_ranks: met.source.initial_ranks,
            used_before: vec![false; params.len()],
            wants_order: met.source.wants_order,
            expected_marks: None,
            last: None,
            last_active: 0,
            on_bucket: None,
            sparse: HashMap::new(),
            totals: ReducerTotals::default(),
        };
        let state = Mutex::new(state);
        let reducer =
            Arc::new(Self { params, options, device, hook, state, callbacks: Arc::default() });
        if !reducer.options.omits_broadcast {
            reducer.broadcast_in(group, met.source_rank, ParamSelection::ALL)?;
        }
        reducer.log_creation(group);
        Ok(reducer)
    }
}

/// Refuses gradients that the group or its back end cannot reduce.
fn check_supported(group: &Arc<Group>, params: &[Param], options: &ReducerOptions) -> Result<()> {
    let op = match options.divide {
        DividePolicy::None => ReduceOp::Sum,
        DividePolicy::World if !options.is_uneven => ReduceOp::Avg,
        // The divisor may differ from the number of ranks, so each rank multiplies its gradients by
        // a factor.
        DividePolicy::World | DividePolicy::Initial | DividePolicy::Weighted => ReduceOp::PremulSum,
    };
    for param in params.iter().filter(|param| param.is_trained()) {
        let title = || format!("the gradient of parameter \"{}\"", param.name);
        options.hook.check(param).context(title)?;
        if options.is_sharded && (param.is_sparse || param.device.is_some()) {
            let message = format!(
                "{}: DIST_REDUCER_SHARDED supports only dense gradients in host memory",
                title()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if let Some(device) = param.device {
            let target = DeviceGrad { device, dtype: param.grad_dtype, op };
            target.check_supported(group, options.is_canonical).context(title)?;
            continue;
        }
        let mut call = Call::all_reduce(Src::empty(), Dst::empty(), param.grad_dtype, op);
        let call_options = CallOptions {
            premul_scale: 1.0,
            canonical: options.is_canonical,
            ..CallOptions::DEFAULT
        };
        group.check_call(&mut call, &call_options).context(title)?;
    }
    Ok(())
}

/// A gradient on a device, and the operator that reduces it.
struct DeviceGrad {
    device: usize,
    dtype: DataType,
    op: ReduceOp,
}

impl DeviceGrad {
    /// Refuses a gradient that the group cannot reduce on the device.
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_supported(&self, group: &Group, is_canonical: bool) -> Result<()> {
        let &Self { device, dtype, op } = self;
        if group.device != Some(device) {
            let message = format!(
                "it is in the memory of device {device}: create the group with that device (DIST_FIELD_DEVICE)"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if is_canonical && group.backend.device().is_some_and(DeviceBackend::is_stream_ordered) {
            let message = format!(
                "DIST_REDUCER_CANONICAL is not supported on device {device}: back end {} chooses the \
                 order of additions itself",
                group.backend_name()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        op.check_defined_for(dtype, || group.backend_name())?;
        let kind = OpKind::AllReduce;
        let (name, dtype, op) = (kind.name(), Some(dtype), Some(op));
        let query = SupportQuery { name, kind: Some(kind), dtype, op, gpu: Some(device) };
        group.backend.supports(&query)
    }
}
