//! libdist's reducer and the gradients of a model. The calls go through the C interface, as in a C
//! program.
#![allow(unsafe_code, reason = "the C interface takes raw pointers")]

use super::candidate::Candidate;
use crate::libdist;
use crate::rank::check;
use dist::ffi::train_types::{
    DIST_REDUCER_RETRYABLE, dist_param_t, dist_reducer_options_t, dist_reducer_stats_t,
    dist_reducer_t,
};
use dist::ffi::types::{DIST_BF16, DIST_F32, dist_group_t};
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

/// The addresses and lengths of the gradients of a model. The trainer writes its gradients there.
#[derive(Debug)]
pub(super) struct GradientBuffers {
    gradients: Vec<(*mut c_void, usize)>,
    is_bf16: bool,
    /// The memory of the gradients. Empty if the reducer provides the memory.
    _own: Vec<Vec<f32>>,
}

impl GradientBuffers {
    /// Writes a value to all elements of a gradient.
    pub(super) fn fill(&mut self, param: usize, value: f32) {
        let (address, count) = self.gradients[param];
        if self.is_bf16 {
            // SAFETY: the reducer returned the address of `count` elements of bf16. No operation
            // uses them now.
            let values = unsafe { std::slice::from_raw_parts_mut(address.cast::<u16>(), count) };
            values.fill(to_bf16(value));
        } else {
            // SAFETY: the address is that of `count` elements of f32, which the reducer or `_own`
            // holds. No operation uses them now.
            let values = unsafe { std::slice::from_raw_parts_mut(address.cast::<f32>(), count) };
            values.fill(value);
        }
    }
}

/// Converts an f32 to bf16 by taking its upper half. This is exact, because the lower bits of the
/// trainer's values are 0.
const fn to_bf16(value: f32) -> u16 {
    let [_, _, low, high] = value.to_bits().to_le_bytes();
    u16::from_le_bytes([low, high])
}

const fn from_bf16(bits: u16) -> f32 {
    let [low, high] = bits.to_le_bytes();
    f32::from_bits(u32::from_le_bytes([0, 0, low, high]))
}

/// A reducer, and the values of the model's parameters.
#[derive(Debug)]
pub(super) struct BenchReducer {
    reducer: *mut dist_reducer_t,
    is_bf16: bool,
    /// The values of the parameters. The reducer borrows them.
    _values: Vec<Vec<f32>>,
}

impl BenchReducer {
    /// Creates the reducer of a candidate for parameters with these numbers of elements.
    ///
    /// # Errors
    /// The library's error.
    pub(super) fn new(
        group: *mut dist_group_t,
        counts: &[usize],
        candidate: Candidate,
    ) -> Result<(Self, GradientBuffers), String> {
        let is_bf16 = candidate == Candidate::Bf16;
        let memory = |value: f32| -> Vec<Vec<f32>> {
            counts.iter().map(|&count| vec![value; count]).collect()
        };
        let mut values = memory(1.0);
        let mut caller_gradients =
            if candidate == Candidate::Ordinary { memory(1.0) } else { Vec::new() };
        let names = (0..counts.len()).map(|param| CString::new(format!("p{param}")));
        let names =
            names.collect::<Result<Vec<CString>, _>>().map_err(|error| error.to_string())?;
        let params: Vec<dist_param_t> = (0..counts.len())
            .map(|param| dist_param_t {
                struct_size: size_of::<dist_param_t>(),
                fields: 0,
                name: names[param].as_ptr(),
                data: values[param].as_mut_ptr().cast(),
                grad: caller_gradients
                    .get_mut(param)
                    .map_or(null_mut(), |grad| grad.as_mut_ptr().cast()),
                shape: null(),
                n_shape: 0,
                count: counts[param],
                dtype: DIST_F32,
                grad_dtype: if is_bf16 { DIST_BF16 } else { 0 },
                device: 0,
                reserved: 0,
                flags: 0,
                tag: 0,
            })
            .collect();
        let options = dist_reducer_options_t {
            struct_size: size_of::<dist_reducer_options_t>(),
            flags: if candidate == Candidate::Retryable { DIST_REDUCER_RETRYABLE } else { 0 },
            bucket_bytes: 0,
            first_bucket_bytes: 0,
            divide: 0,
            missing: 0,
            timeout_ms: 0,
            layout: null(),
            layout_bytes: 0,
            name: null(),
            stream: null_mut(),
            hook: null(),
            hook_settings: null(),
            hook_function: None,
            hook_user: null_mut(),
        };
        let mut handle: *mut dist_reducer_t = null_mut();
        // SAFETY: the parameter list and the names live until the call returns. The values and
        // gradients live as long as the reducer.
        check(unsafe {
            libdist::dist_reducer_create(
                group,
                params.as_ptr(),
                params.len(),
                &raw const options,
                &raw mut handle,
            )
        })?;
        let reducer = Self { reducer: handle, is_bf16, _values: values };
        let gradients = (0..counts.len()).map(|param| reducer.gradient(param, false));
        let gradients = gradients.collect::<Result<Vec<_>, String>>()?;
        Ok((reducer, GradientBuffers { gradients, is_bf16, _own: caller_gradients }))
    }

    /// Starts a step.
    ///
    /// # Errors
    /// The library's error, as for all functions here.
    pub(super) fn begin_step(&self) -> Result<(), String> {
        // SAFETY: a reducer that was not released.
        Ok(check(unsafe { libdist::dist_reducer_begin(self.reducer, 0.0, 0) })?)
    }

    /// Marks a gradient as complete.
    pub(super) fn mark_ready(&self, param: usize) -> Result<(), String> {
        // SAFETY: the reducer was not released. The trainer does not write the gradient until the
        // step has ended.
        Ok(check(unsafe { libdist::dist_reducer_ready(self.reducer, param) })?)
    }

    /// Ends the step and waits for the averages.
    pub(super) fn end_step(&self) -> Result<(), String> {
        let mut votes = 0;
        // SAFETY: the reducer was not released. The call returns only when the step has ended, so
        // that `votes` lives long enough.
        Ok(check(unsafe {
            libdist::dist_reducer_end(self.reducer, 0, &raw mut votes, null_mut())
        })?)
    }

    /// Returns the first, the middle and the last element of an averaged gradient.
    pub(super) fn result(&self, param: usize) -> Result<[f32; 3], String> {
        let (address, count) = self.gradient(param, true)?;
        let last = count - 1;
        Ok([0, last / 2, last].map(|element| {
            if self.is_bf16 {
                let value = address.cast::<u16>().wrapping_add(element);
                // SAFETY: within the `count` elements that the reducer gave.
                from_bf16(unsafe { *value })
            } else {
                let value = address.cast::<f32>().wrapping_add(element);
                // SAFETY: within the `count` elements that the reducer gave.
                unsafe { *value }
            }
        }))
    }

    /// Returns the number of bytes that the last step copied.
    pub(super) fn bytes_copied(&self) -> Result<u64, String> {
        let mut stats = dist_reducer_stats_t {
            struct_size: size_of::<dist_reducer_stats_t>(),
            steps: 0,
            n_buckets: 0,
            bytes_reduced: 0,
            bytes_saved: 0,
            bytes_copied: 0,
            first_ready_to_last_ready_ns: 0,
            communication_ns: 0,
            exposed_ns: 0,
            step_ns: 0,
            rebuilds: 0,
            retries: 0,
        };
        // SAFETY: the reducer was not released, and `stats` has the size that its field
        // `struct_size` gives.
        check(unsafe { libdist::dist_reducer_stats(self.reducer, &raw mut stats) })?;
        Ok(stats.bytes_copied)
    }

    /// Releases the reducer. Its values and the gradients may be freed afterwards.
    pub(super) fn release(&mut self) -> Result<(), String> {
        let reducer = std::mem::replace(&mut self.reducer, null_mut());
        // SAFETY: the reducer is released once, and no step is in progress.
        Ok(check(unsafe { libdist::dist_reducer_release(reducer) })?)
    }

    /// Returns the address of a parameter's gradient, or of its average after a step if `is_result`
    /// is true, and the number of elements.
    fn gradient(&self, param: usize, is_result: bool) -> Result<(*mut c_void, usize), String> {
        let (mut address, mut count): (*mut c_void, usize) = (null_mut(), 0);
        let (to_address, to_count) = (&raw mut address, &raw mut count);
        let status = if is_result {
            // SAFETY: the reducer was not released, and the variables receive the results.
            unsafe { libdist::dist_reducer_result(self.reducer, param, to_address, to_count) }
        } else {
            // SAFETY: as above.
            unsafe { libdist::dist_reducer_grad(self.reducer, param, to_address, to_count) }
        };
        check(status)?;
        Ok((address, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trainer_values_survive_bf16_rounding() {
        for value in [1.0, 1.5, 3.0, 12.0, 240.0] {
            assert_eq!(from_bf16(to_bf16(value)), value);
        }
        assert_eq!(to_bf16(1.0), 0x3f80);
    }
}
