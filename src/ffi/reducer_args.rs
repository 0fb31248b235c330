//! Conversion of the arguments of reducer functions: parameters, options, and selections of values.

use super::args::{
    check_reserved, dst, index, milliseconds, null_argument, optional_str, required_str, slice,
};
use super::hook::hook_function;
use super::sized_struct;
use super::train_types::*;
use super::types::*;
use crate::api::collective::call::buffer_bytes;
use crate::api::reducer::{
    DividePolicy, HookChoice, MOST_PARAMS, MissingPolicy, Param, ParamRole, ParamSelection,
    ReducerOptions,
};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};

const KNOWN_PARAM_FLAGS: u64 = DIST_PARAM_FROZEN | DIST_PARAM_BUFFER | DIST_PARAM_SPARSE_ROWS;

const KNOWN_FLAGS: u64 = DIST_REDUCER_RETRYABLE
    | DIST_REDUCER_CANONICAL
    | DIST_REDUCER_FIXED_LAYOUT
    | DIST_REDUCER_MOVE_GRADS
    | DIST_REDUCER_STATIC_GRAPH
    | DIST_REDUCER_BROADCAST_BUFFERS
    | DIST_REDUCER_UNEVEN
    | DIST_REDUCER_NO_BROADCAST
    | DIST_REDUCER_SHARDED
    | DIST_REDUCER_SHARE_GRADS;

/// Refuses flags that this version does not know.
pub(super) fn check_flags(flags: u64, known: u64) -> Result<()> {
    if flags & !known == 0 {
        return Ok(());
    }
    let message = format!("flags is {flags:#x}: this version knows {known:#x}");
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// Reads the caller's array of parameters. `struct_size` of the first element is the stride of the
/// array, and all elements must have the same `struct_size`.
pub(super) fn read_params(array: *const dist_param_t, n: usize) -> Result<Vec<Param>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    if array.is_null() {
        return Err(null_argument("params"));
    }
    if n > MOST_PARAMS {
        let message = format!("n_params is {n}: a reducer has {MOST_PARAMS} parameters at most");
        return Err(Error::invalid(message));
    }
    let stride = sized_struct::output_size(array)?;
    let param = |index: usize| {
        let at = array.cast::<u8>().wrapping_add(index * stride).cast::<dist_param_t>();
        let c_param = sized_struct::read(at)?;
        if c_param.struct_size != stride {
            let message = format!(
                "struct_size is {}, and that of params[0] is {stride}: all elements need the same \
                 size",
                c_param.struct_size
            );
            return Err(Error::invalid(message));
        }
        to_param(&c_param)
    };
    (0..n).map(|index| param(index).context(|| format!("params[{index}]"))).collect()
}

fn to_param(c_param: &dist_param_t) -> Result<Param> {
    check_flags(c_param.flags, KNOWN_PARAM_FLAGS)?;
    check_reserved(c_param.reserved)?;
    let name = required_str(c_param.name, "name")?;
    let dtype = DataType::from_number(c_param.dtype)?;
    let grad_dtype = match c_param.grad_dtype {
        0 => dtype,
        number => DataType::from_number(number).context(|| "grad_dtype")?,
    };
    let is_sparse = c_param.flags & DIST_PARAM_SPARSE_ROWS != 0;
    let role = match c_param.flags & !DIST_PARAM_SPARSE_ROWS {
        0 => ParamRole::Trained,
        DIST_PARAM_FROZEN => ParamRole::Frozen,
        DIST_PARAM_BUFFER => ParamRole::Buffer,
        _ => {
            let message =
                "flags has DIST_PARAM_FROZEN and DIST_PARAM_BUFFER: set at most one of them";
            return Err(Error::invalid(message));
        }
    };
    let data = dst(c_param.data, buffer_bytes(c_param.count, dtype, 1)?, "data")?;
    let grad_bytes = buffer_bytes(c_param.count, grad_dtype, 1)?;
    let grad = match c_param.grad.is_null() {
        true => None,
        false => Some(dst(c_param.grad, grad_bytes, "grad")?),
    };
    let device = match c_param.fields & DIST_FIELD_DEVICE {
        0 => None,
        _ => Some(index(c_param.device, "device")?),
    };
    Ok(Param {
        name: name.to_owned(),
        data,
        grad,
        shape: slice(c_param.shape, c_param.n_shape, "shape")?.to_vec(),
        count: c_param.count,
        dtype,
        grad_dtype,
        device,
        is_sparse,
        role,
        tag: c_param.tag,
    })
}

/// Converts the options of dist_reducer_create.
pub(super) fn reducer_options(c_options: &dist_reducer_options_t) -> Result<ReducerOptions> {
    let flags = c_options.flags;
    check_flags(flags, KNOWN_FLAGS)?;
    let has = |flag: u64| flags & flag != 0;
    let layout = match c_options.layout.is_null() {
        true if c_options.layout_bytes > 0 => return Err(null_argument("layout")),
        true => None,
        false => {
            Some(slice(c_options.layout.cast::<u8>(), c_options.layout_bytes, "layout")?.to_vec())
        }
    };
    let name = optional_str(c_options.name, "name")?;
    Ok(ReducerOptions {
        bucket_bytes: c_options.bucket_bytes,
        first_bucket_bytes: c_options.first_bucket_bytes,
        divide: match c_options.divide {
            DIST_DIVIDE_WORLD => DividePolicy::World,
            DIST_DIVIDE_NONE => DividePolicy::None,
            DIST_DIVIDE_INITIAL => DividePolicy::Initial,
            DIST_DIVIDE_WEIGHTED => DividePolicy::Weighted,
            other => {
                return Err(Error::invalid(format!(
                    "divide is {other}: pass a DIST_DIVIDE_ constant"
                )));
            }
        },
        missing: match c_options.missing {
            DIST_MISSING_ERROR => MissingPolicy::Error,
            DIST_MISSING_ZERO => MissingPolicy::Zero,
            DIST_MISSING_SKIP => MissingPolicy::Skip,
            other => {
                return Err(Error::invalid(format!(
                    "missing is {other}: pass a DIST_MISSING_ constant"
                )));
            }
        },
        timeout_ms: milliseconds(c_options.timeout_ms, "timeout_ms")?,
        is_retryable: has(DIST_REDUCER_RETRYABLE),
        is_canonical: has(DIST_REDUCER_CANONICAL),
        has_fixed_layout: has(DIST_REDUCER_FIXED_LAYOUT),
        moves_grads: has(DIST_REDUCER_MOVE_GRADS),
        is_static: has(DIST_REDUCER_STATIC_GRAPH),
        broadcasts_buffers: has(DIST_REDUCER_BROADCAST_BUFFERS),
        is_uneven: has(DIST_REDUCER_UNEVEN),
        omits_broadcast: has(DIST_REDUCER_NO_BROADCAST),
        is_sharded: has(DIST_REDUCER_SHARDED),
        shares_grads: has(DIST_REDUCER_SHARE_GRADS),
        layout,
        hook: hook_choice(c_options)?,
        // The library never dereferences the stream; it is the driver's handle.
        stream: Some(c_options.stream.addr()).filter(|&stream| stream != 0),
        name: name.unwrap_or_default().to_owned(),
    })
}

/// Reads the hook, which defines how buckets are reduced.
fn hook_choice(c_options: &dist_reducer_options_t) -> Result<HookChoice> {
    let name = optional_str(c_options.hook, "hook")?.unwrap_or_default();
    let settings = optional_str(c_options.hook_settings, "hook_settings")?.unwrap_or_default();
    match c_options.hook_function {
        None => HookChoice::parse(name, settings),
        Some(_) if name.is_empty() => {
            let message = "hook is NULL: give hook_function a name, which the ranks compare";
            Err(Error::invalid(message))
        }
        Some(function) => {
            Ok(HookChoice::Function(hook_function(name, settings, function, c_options.hook_user)))
        }
    }
}

/// Converts the argument `what`, which selects parameters, buffers and gradients.
pub(super) fn value_selection(selected: u64) -> Result<ParamSelection> {
    check_flags(selected, DIST_REDUCER_PARAMS | DIST_REDUCER_BUFFERS | DIST_REDUCER_GRADS)?;
    if selected == 0 {
        return Err(Error::invalid(
            "what is 0: pass a sum of DIST_REDUCER_PARAMS, DIST_REDUCER_BUFFERS and \
             DIST_REDUCER_GRADS",
        ));
    }
    Ok(ParamSelection {
        params: selected & DIST_REDUCER_PARAMS != 0,
        buffers: selected & DIST_REDUCER_BUFFERS != 0,
        grads: selected & DIST_REDUCER_GRADS != 0,
    })
}
