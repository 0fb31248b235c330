//! The exported functions of collectives on lists of tensors.

use super::args::{dst, index, null_argument, optional_device, required_str, slice};
use super::group::group;
use super::operator;
use super::sized_struct;
use super::submit::{WorkOut, call_options, issue_with_handle};
use super::types::*;
use crate::api::collective::tensor_list::{MAX_LIST_TENSORS, tensor_bytes};
use crate::api::{CallOptions, Group, ListCall, ListTensor};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::op::ReduceOp;
use std::sync::Arc;

/// Reads the caller's list. `struct_size` of the first element is the stride of the array, and all
/// elements must have the same `struct_size`.
fn read_tensors(array: *const dist_tensor_t, n: usize) -> Result<Vec<ListTensor<'static>>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    if array.is_null() {
        return Err(null_argument("tensors"));
    }
    if n > MAX_LIST_TENSORS {
        let message = format!("n is {n}: a list has {MAX_LIST_TENSORS} tensors at most");
        return Err(Error::invalid(message));
    }
    let stride = sized_struct::output_size(array)?;
    let tensor = |index: usize| {
        let at = array.cast::<u8>().wrapping_add(index * stride).cast::<dist_tensor_t>();
        let c_tensor = sized_struct::read(at)?;
        if c_tensor.struct_size != stride {
            let message = format!(
                "struct_size is {}, and that of tensors[0] is {stride}: all elements need the same \
                 size",
                c_tensor.struct_size
            );
            return Err(Error::invalid(message));
        }
        to_tensor(&c_tensor)
    };
    (0..n).map(|index| tensor(index).context(|| format!("tensors[{index}]"))).collect()
}

fn to_tensor(c_tensor: &dist_tensor_t) -> Result<ListTensor<'static>> {
    let unknown = c_tensor.fields & !DIST_FIELD_DEVICE;
    if unknown != 0 {
        let message = format!("fields has {unknown:#x}, which this version does not know");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let name = required_str(c_tensor.name, "name")?.to_owned();
    let dtype = DataType::from_number(c_tensor.dtype)?;
    let extent = |&extent: &i64| {
        let negative = |_| Error::invalid(format!("shape has the negative extent {extent}"));
        usize::try_from(extent).map_err(negative)
    };
    let extents = slice(c_tensor.shape, c_tensor.n_shape, "shape")?.iter().map(extent);
    let shape = extents.collect::<Result<Vec<usize>>>()?;
    let data = dst(c_tensor.data, tensor_bytes(&shape, dtype)?, "data")?;
    let device = optional_device(c_tensor.fields, c_tensor.device)?;
    Ok(ListTensor { name, dtype, shape, device, data })
}

/// Reads the operator of a reduction. Its types are checked for each tensor.
fn list_operator(op: dist_op_t) -> Result<ReduceOp> {
    if operator::is_custom(DIST_U8, op) {
        let message = "op is an operator of dist_op_create: a list takes the operators of the \
                       library only";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    ReduceOp::from_number(op)
}

/// Runs a blocking call. A call with a work is issued instead, and a call inside a batch is added
/// to the batch of the thread.
fn submit_list(
    group: &Arc<Group>,
    call: ListCall<'static>,
    options: &CallOptions,
    work: WorkOut,
) -> Result<()> {
    if work.blocks() {
        return group.run_list(call, options);
    }
    issue_with_handle(group.prepare_list(call, options.clone())?, work)
}

dist_export! {
    /// Copies a list of the root's tensors to all ranks.
    ///
    /// The tensors may have different types, and may be in host memory and in the memory of a GPU.
    /// The library copies small tensors in host memory together, and one operation transfers many
    /// of them. The copies need at most 4 MiB. Longer tensors and tensors in the memory of a GPU
    /// are not copied together.
    ///
    /// Before any data moves, the ranks compare their lists: the operation, the number of tensors,
    /// and the name, the type, the shape and the kind of memory of each tensor. Addresses and the
    /// indices of devices may differ. If the lists differ, every rank gets DIST_ERR_MISMATCH with a
    /// message that names the first difference: the index and the name of the tensor, two ranks,
    /// and what each of them has. No tensor has changed then, and the group can be used further.
    ///
    /// The call has one sequence number, and one entry in the flight recorder.
    ///
    /// @param group in: the group.
    /// @param tensors in: the list; NULL only if `n` is 0; borrowed for the call. The elements of
    ///   the tensors are read on the root and written on the other ranks, and are borrowed until
    ///   the work completes. No two tensors overlap.
    /// @param n in: the number of tensors, at most 32768.
    /// @param root in: the rank that has the data.
    /// @param options in, optional: as dist_all_reduce. `stream` is for the tensors in the memory
    ///   of a GPU. `algorithm` must be NULL, and `flags` must not have DIST_CALL_DEVICE: each
    ///   tensor has its own location.
    /// @param work out, optional: as dist_all_reduce. Operations in the memory of a GPU are in the
    ///   stream when the work is done, not yet when this call returns.
    /// @agree the list, root, DIST_CALL_CANONICAL and label; the order of calls on the group.
    /// @blocks as dist_all_reduce: the comparison needs the call of every rank.
    /// @return as dist_all_reduce. DIST_ERR_MISMATCH, without a failure of the group, if the lists
    ///   differ. DIST_ERR_UNSUPPORTED also if the list needs more operations than one call can
    ///   number.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_broadcast_list(
        group: *mut dist_group_t,
        tensors: *const dist_tensor_t,
        n: usize,
        root: i32,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let call = ListCall::broadcast(read_tensors(tensors, n)?, index(root, "root")?);
        submit_list(&group, call, options, work)
    }
}

dist_export! {
    /// Reduces a list of tensors of all ranks in place, and gives every rank the result.
    ///
    /// The call treats and compares the lists as dist_broadcast_list does. Tensors share an
    /// operation only if they have the same type. On one host, the results are bitwise those of
    /// dist_all_reduce; between hosts, the library may add floating-point numbers in the order that
    /// it uses for a vector of the total length.
    ///
    /// @param group in: the group.
    /// @param tensors in: the list; NULL only if `n` is 0; borrowed for the call. The elements of
    ///   the tensors are read and written, and are borrowed until the work completes. No two
    ///   tensors overlap.
    /// @param n in: the number of tensors, at most 32768.
    /// @param op in: a constant such as DIST_SUM, which is defined for the type of each tensor. The
    ///   call refuses operators of dist_op_create.
    /// @param options in, optional: as dist_broadcast_list.
    /// @param work out, optional: as dist_broadcast_list.
    /// @agree the list, op, DIST_CALL_CANONICAL and label; the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_broadcast_list.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_all_reduce_list(
        group: *mut dist_group_t,
        tensors: *const dist_tensor_t,
        n: usize,
        op: dist_op_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let op = list_operator(op)?;
        submit_list(&group, ListCall::all_reduce(read_tensors(tensors, n)?, op), options, work)
    }
}

dist_export! {
    /// Gives every rank the blocks of all ranks, for each tensor of a list, in place.
    ///
    /// Each tensor consists of one block for each rank, in rank order, and all its blocks have the
    /// same length. Before the call, block r of a tensor has the data of rank r on rank r; the
    /// other blocks are overwritten. The call treats and compares the lists as dist_broadcast_list
    /// does.
    ///
    /// @param group in: the group.
    /// @param tensors in: the list; NULL only if `n` is 0; borrowed for the call. The number of
    ///   elements of each tensor is a multiple of the world size. The elements are read and
    ///   written, and are borrowed until the work completes. No two tensors overlap.
    /// @param n in: the number of tensors, at most 32768.
    /// @param options in, optional: as dist_broadcast_list.
    /// @param work out, optional: as dist_broadcast_list.
    /// @agree the list, DIST_CALL_CANONICAL and label; the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_broadcast_list.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_all_gather_list(
        group: *mut dist_group_t,
        tensors: *const dist_tensor_t,
        n: usize,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        submit_list(&group, ListCall::all_gather(read_tensors(tensors, n)?), options, work)
    }
}

dist_export! {
    /// Reduces a list of tensors of all ranks in place, and gives each rank its own blocks.
    ///
    /// Each tensor consists of one block for each rank, in rank order, and all its blocks have the
    /// same length. After the call, block r of a tensor has its part of the result on rank r; the
    /// other blocks keep their data. The call treats and compares the lists as dist_all_reduce_list
    /// does.
    ///
    /// @param group in: the group.
    /// @param tensors in: the list; NULL only if `n` is 0; borrowed for the call. The number of
    ///   elements of each tensor is a multiple of the world size. The elements are read and
    ///   written, and are borrowed until the work completes. No two tensors overlap.
    /// @param n in: the number of tensors, at most 32768.
    /// @param op in: as dist_all_reduce_list.
    /// @param options in, optional: as dist_broadcast_list.
    /// @param work out, optional: as dist_broadcast_list.
    /// @agree the list, op, DIST_CALL_CANONICAL and label; the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_broadcast_list.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_reduce_scatter_list(
        group: *mut dist_group_t,
        tensors: *const dist_tensor_t,
        n: usize,
        op: dist_op_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let op = list_operator(op)?;
        submit_list(&group, ListCall::reduce_scatter(read_tensors(tensors, n)?, op), options, work)
    }
}
