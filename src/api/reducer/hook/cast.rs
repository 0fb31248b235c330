//! Hook that sends and adds gradients as f16 or bf16, which takes half the bytes of f32.

use super::bucket::sum;
use super::{HookBucket, HookOutcome, HookTurn};
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::kernel;

pub(super) fn reduce(
    to: DataType,
    bucket: &HookBucket<'_>,
    turn: &mut HookTurn<'_>,
) -> Result<HookOutcome> {
    let (dtype, size) = (bucket.dtype(), to.size());
    let mut room = vec![0; bucket.count() * size];
    let view = Dst::from(room.as_mut_slice());
    let part = |begin: usize, len: usize| view.slice(begin * size, len / dtype.size() * size);
    for (offset, len, begin) in bucket.pieces() {
        let src = bucket.send.as_src().slice(offset, len);
        kernel::convert(dtype, src, bucket.factor, to, part(begin, len));
    }
    turn.run(&sum(view.as_src(), view, to))?;
    for (offset, len, begin) in bucket.pieces() {
        let src = part(begin, len).as_src();
        kernel::convert(to, src, 1.0, dtype, bucket.recv.slice(offset, len));
    }
    Ok(HookOutcome { bytes_sent: view.len() as u64, updates: Vec::new() })
}
