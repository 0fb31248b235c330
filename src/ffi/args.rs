//! Converts the arguments of C callers to Rust types. Each error names the argument.

use crate::api::collective::call::buffer_bytes;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, Timeout};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::base::ids::MAX_WORLD_SIZE;
use crate::base::label::{InvalidLabel, LABEL_BYTES, Label};
use crate::ffi::constants::{DIST_FIELD_DEVICE, DIST_NO_WAIT, DIST_WAIT_FOREVER};
use std::ffi::{CStr, c_char, c_void};

/// The maximum length of a C string or of a key, in bytes.
const MAX_STRING_BYTES: usize = 1 << 20;

/// As the length of a key: the key is a C string. The header defines the constant as `(size_t)-1`,
/// because C89 has no `SIZE_MAX`.
pub const DIST_TERMINATED: usize = usize::MAX;

#[cold]
pub(super) fn null_argument(name: &str) -> Error {
    Error::invalid(format!("argument {name} is NULL"))
}

/// The address of an output argument, not NULL.
#[derive(Debug)]
pub(super) struct OutPtr<T>(*mut T);

impl<T> OutPtr<T> {
    /// Takes a required output; NULL is an error.
    pub(super) fn required(ptr: *mut T, name: &str) -> Result<Self> {
        if ptr.is_null() { Err(null_argument(name)) } else { Ok(Self(ptr)) }
    }

    /// Takes an optional output; returns `None` for NULL.
    pub(super) fn optional(ptr: *mut T) -> Option<Self> {
        if ptr.is_null() { None } else { Some(Self(ptr)) }
    }

    /// Writes an optional result, or does nothing if `ptr` is NULL.
    pub(super) fn write_optional(ptr: *mut T, value: T) {
        if let Some(out) = Self::optional(ptr) {
            out.write(value);
        }
    }

    /// Writes the result to the output.
    pub(super) fn write(&self, value: T) {
        // SAFETY: the pointer is not NULL, and the caller promises that it points to a writable T.
        unsafe { self.0.write(value) };
    }
}

impl<T> OutPtr<*mut T> {
    /// Takes an optional output for a handle, and sets the caller's variable to NULL until the
    /// handle is written.
    pub(super) fn optional_handle(ptr: *mut *mut T) -> Option<Self> {
        let out = Self::optional(ptr)?;
        out.write(std::ptr::null_mut());
        Some(out)
    }

    /// Takes a required output for a handle, and sets the caller's variable to NULL until the
    /// handle is written.
    pub(super) fn handle(ptr: *mut *mut T, name: &str) -> Result<Self> {
        let out = Self::required(ptr, name)?;
        out.write(std::ptr::null_mut());
        Ok(out)
    }
}

/// Reads an optional C string in UTF-8; returns `None` for NULL.
pub(super) fn optional_str<'a>(ptr: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if ptr.is_null() { Ok(None) } else { required_str(ptr, name).map(Some) }
}

/// Reads a C string in UTF-8.
pub(super) fn required_str<'a>(ptr: *const c_char, name: &str) -> Result<&'a str> {
    let bytes = required_key(ptr, name)?;
    std::str::from_utf8(bytes).map_err(|_| Error::invalid(format!("argument {name} is not UTF-8")))
}

/// Reads a C string with any bytes.
pub(super) fn required_key<'a>(ptr: *const c_char, name: &str) -> Result<&'a [u8]> {
    if ptr.is_null() {
        return Err(null_argument(name));
    }
    // SAFETY: not NULL, and the caller promises a terminated string that outlives the call.
    let bytes = unsafe { CStr::from_ptr(ptr) }.to_bytes();
    if bytes.len() > MAX_STRING_BYTES {
        return Err(too_long(name));
    }
    Ok(bytes)
}

/// Reads the label of a call; NULL means no label.
#[inline]
pub(super) fn call_label(ptr: *const c_char) -> Result<Label> {
    if ptr.is_null() {
        return Ok(Label::NONE);
    }
    // SAFETY: the caller promises a terminated string that outlives the call.
    let text = unsafe { CStr::from_ptr(ptr) };
    Label::from_bytes(text.to_bytes()).map_err(unfit_label)
}

#[cold]
fn unfit_label(reason: InvalidLabel) -> Error {
    Error::invalid(match reason {
        InvalidLabel::TooLong => format!(
            "label of dist_call_options_t is longer than {LABEL_BYTES} bytes (DIST_LABEL_BYTES): shorten it"
        ),
        InvalidLabel::NotUtf8 => "label of dist_call_options_t is not UTF-8".to_owned(),
    })
}

/// Reads the key of a store: `len_bytes` bytes of any value, or a C string.
pub(super) fn key<'a>(ptr: *const c_char, len_bytes: usize, name: &str) -> Result<&'a [u8]> {
    match len_bytes {
        DIST_TERMINATED => required_key(ptr, name),
        0..=MAX_STRING_BYTES => slice(ptr.cast::<u8>(), len_bytes, name),
        _ => Err(too_long(name)),
    }
}

#[cold]
fn too_long(name: &str) -> Error {
    Error::invalid(format!("argument {name} is longer than {MAX_STRING_BYTES} bytes"))
}

/// Returns the `len` bytes at `ptr`, which the library reads only during the call.
pub(super) fn bytes<'a>(ptr: *const c_void, len: usize, name: &str) -> Result<&'a [u8]> {
    slice(ptr.cast::<u8>(), len, name)
}

/// As `bytes`, but NULL gives an empty slice.
pub(super) fn optional_bytes<'a>(ptr: *const c_void, len: usize, name: &str) -> Result<&'a [u8]> {
    if ptr.is_null() { Ok(&[]) } else { bytes(ptr, len, name) }
}

/// Returns the `len` elements at `ptr`. NULL is allowed if `len` is 0.
pub(super) fn slice<'a, T>(ptr: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if ptr.is_null() {
        return Err(null_argument(name));
    }
    if !ptr.is_aligned() {
        return Err(Error::invalid(format!("argument {name} is not aligned")));
    }
    if len.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(Error::invalid(format!(
            "{len} elements at {name} do not fit the address space"
        )));
    }
    // SAFETY: the pointer is not NULL and aligned, and the array fits the address space. The caller
    // promises that the array is readable and does not change during the call.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len) })
}

/// Reads the `n` keys of a call. If `lens_bytes` is NULL, the keys are C strings.
pub(super) fn keys<'a>(
    ptr: *const *const c_char,
    lens_bytes: *const usize,
    n: usize,
) -> Result<Vec<&'a [u8]>> {
    let keys = slice(ptr, n, "keys")?;
    if lens_bytes.is_null() {
        return keys.iter().map(|&key| required_key(key, "keys")).collect();
    }
    let lens = slice(lens_bytes, n, "key_lens_bytes")?;
    keys.iter().zip(lens).map(|(&key, &len)| self::key(key, len, "keys")).collect()
}

/// Refuses NULL, and memory that exceeds the address space. The memory is not empty.
#[inline]
fn check_memory(address: usize, len: usize, name: &str) -> Result<()> {
    let is_possible = address != 0 && address.checked_add(len).is_some();
    if is_possible { Ok(()) } else { Err(invalid_memory(address, len, name)) }
}

#[cold]
fn invalid_memory(address: usize, len: usize, name: &str) -> Error {
    match address {
        0 => null_argument(name),
        _ => Error::invalid(format!("{len} bytes at {name} do not fit the address space")),
    }
}

/// Returns a buffer that the operation reads. NULL is allowed if `len` is 0.
#[inline]
pub(super) fn src<'a>(ptr: *const c_void, len: usize, name: &str) -> Result<Src<'a>> {
    if len == 0 {
        return Ok(Src::empty());
    }
    check_memory(ptr.addr(), len, name)?;
    // SAFETY: the caller lends the bytes until the operation has completed.
    Ok(unsafe { Src::new(ptr.cast(), len) })
}

/// Returns a buffer that the operation writes. NULL is allowed if `len` is 0.
#[inline]
pub(super) fn dst<'a>(ptr: *mut c_void, len: usize, name: &str) -> Result<Dst<'a>> {
    if len == 0 {
        return Ok(Dst::empty());
    }
    check_memory(ptr.addr(), len, name)?;
    // SAFETY: the caller lends the bytes until the operation has completed.
    Ok(unsafe { Dst::new(ptr.cast(), len) })
}

/// Returns the blocks that a `_v` collective reads: block i has `counts[i]` elements at `ptrs[i]`.
/// Both arrays have `size` elements. `names` are the argument names of `ptrs` and `counts`, for
/// errors.
pub(super) fn src_blocks<'a>(
    ptrs: *const *const c_void,
    counts: *const usize,
    size: usize,
    dtype: DataType,
    names: [&str; 2],
) -> Result<Vec<Src<'a>>> {
    src_blocks_by(ptrs, counts, size, |count| buffer_bytes(count, dtype, 1), names)
}

/// As `src_blocks`, but the function `bytes` converts a count to a length in bytes.
pub(super) fn src_blocks_by<'a>(
    ptrs: *const *const c_void,
    counts: *const usize,
    size: usize,
    bytes: impl Fn(usize) -> Result<usize>,
    names: [&str; 2],
) -> Result<Vec<Src<'a>>> {
    let (ptrs, counts) = (slice(ptrs, size, names[0])?, slice(counts, size, names[1])?);
    let block = |(i, (&ptr, &count)): (usize, (&*const c_void, &usize))| {
        let bytes = bytes(count)?;
        src(ptr, bytes, names[0]).context(|| format!("rank {i}"))
    };
    ptrs.iter().zip(counts).enumerate().map(block).collect()
}

/// Returns the blocks that a `_v` collective writes; the arguments are those of `src_blocks`.
pub(super) fn dst_blocks<'a>(
    ptrs: *const *mut c_void,
    counts: *const usize,
    size: usize,
    dtype: DataType,
    names: [&str; 2],
) -> Result<Vec<Dst<'a>>> {
    let (ptrs, counts) = (slice(ptrs, size, names[0])?, slice(counts, size, names[1])?);
    let block = |(i, (&ptr, &count)): (usize, (&*mut c_void, &usize))| {
        let bytes = buffer_bytes(count, dtype, 1)?;
        dst(ptr, bytes, names[0]).context(|| format!("rank {i}"))
    };
    ptrs.iter().zip(counts).enumerate().map(block).collect()
}

/// Returns the blocks that a collective writes in one buffer: block i begins `displs[i]` elements
/// behind `recv`.
pub(super) fn dst_blocks_at<'a>(
    recv: *mut c_void,
    counts: &[usize],
    displs: &[usize],
    dtype: DataType,
) -> Result<Vec<Dst<'a>>> {
    let block = |count, displ| {
        // The displacement of an empty block is not used.
        let displ = if count == 0 { 0 } else { displ };
        block_at(recv, buffer_bytes(displ, dtype, 1)?, buffer_bytes(count, dtype, 1)?)
    };
    let block = |(i, (&count, &displ)): (usize, (&usize, &usize))| {
        block(count, displ).context(|| format!("rank {i}"))
    };
    counts.iter().zip(displs).enumerate().map(block).collect()
}

/// Returns the blocks that a collective writes in one buffer, one after the other without gaps.
pub(super) fn dst_blocks_packed<'a>(
    recv: *mut c_void,
    counts: &[usize],
    dtype: DataType,
) -> Result<Vec<Dst<'a>>> {
    let mut next: usize = 0;
    let block = |(i, &count): (usize, &usize)| {
        let bytes = buffer_bytes(count, dtype, 1).context(|| format!("rank {i}"))?;
        let offset = next;
        // If the sum saturates, `block_at` refuses the next block that is not empty.
        next = next.saturating_add(bytes);
        block_at(recv, offset, bytes).context(|| format!("rank {i}"))
    };
    counts.iter().enumerate().map(block).collect()
}

/// Returns the block of `bytes` bytes that begins `offset` bytes behind `recv`.
fn block_at<'a>(recv: *mut c_void, offset: usize, bytes: usize) -> Result<Dst<'a>> {
    if bytes == 0 {
        return Ok(Dst::empty());
    }
    let end = recv.addr().checked_add(offset).and_then(|start| start.checked_add(bytes));
    if recv.is_null() || end.is_none() {
        return Err(invalid_memory(recv.addr(), offset.saturating_add(bytes), "recv"));
    }
    dst(recv.wrapping_byte_add(offset), bytes, "recv")
}

/// Converts a rank or size, which must not be negative.
#[inline]
pub(super) fn index(value: i32, name: &str) -> Result<usize> {
    usize::try_from(value).map_err(|_| negative_argument(value, name))
}

/// Returns the error for a negative number.
#[cold]
pub(super) fn negative_argument(value: i32, name: &str) -> Error {
    Error::invalid(format!("{name} is {value}, which is negative"))
}

/// Reads a list of `n` ranks; returns `None` for an empty list.
pub(super) fn optional_ranks(ptr: *const i32, n: usize, name: &str) -> Result<Option<Vec<usize>>> {
    if n > MAX_WORLD_SIZE {
        return Err(Error::invalid(format!(
            "{name} has {n} ranks: a group has at most {MAX_WORLD_SIZE}"
        )));
    }
    let ranks = slice(ptr, n, name)?.iter().map(|&rank| index(rank, name));
    let ranks: Vec<usize> = ranks.collect::<Result<_>>()?;
    Ok(Some(ranks).filter(|ranks| !ranks.is_empty()))
}

/// Returns the device of an option struct if its bit is set in `fields`.
pub(super) fn optional_device(fields: u64, value: i32) -> Result<Option<usize>> {
    if fields & DIST_FIELD_DEVICE == 0 { Ok(None) } else { index(value, "device").map(Some) }
}

/// Refuses a value in a reserved field.
pub(super) fn check_reserved(value: i32) -> Result<()> {
    if value == 0 {
        Ok(())
    } else {
        Err(Error::invalid(format!("reserved is {value}: set it to 0")))
    }
}

/// Converts a rank or size to `int32_t`.
pub(super) fn to_i32(value: usize) -> Result<i32> {
    i32::try_from(value).map_err(|_| Error::internal(format!("{value} does not fit an int32_t")))
}

const _: () = assert!(DIST_WAIT_FOREVER == Timeout::FOREVER && DIST_NO_WAIT == Timeout::NO_WAIT);

/// Converts a timeout argument. The head of dist.h documents the meaning of the numbers, which is
/// the same for all functions.
pub(super) fn timeout(value: i64, name: &str) -> Result<Timeout> {
    Timeout::from_number(value).ok_or_else(|| {
        Error::invalid(format!(
            "{name} is {value}: pass milliseconds, 0 for the default, DIST_WAIT_FOREVER (-1) or \
             DIST_NO_WAIT (-2)"
        ))
    })
}

/// Converts a timeout argument to milliseconds, for a call that refuses DIST_NO_WAIT. Returns 0 for
/// the default and `u64::MAX` for no limit.
pub(super) fn milliseconds(value: i64, name: &str) -> Result<u64> {
    waiting_milliseconds(value, name, "pass milliseconds, 0 for the default, or DIST_WAIT_FOREVER")
}

/// As `milliseconds`; `remedy` tells the caller what to pass instead of DIST_NO_WAIT.
pub(super) fn waiting_milliseconds(value: i64, name: &str, remedy: &str) -> Result<u64> {
    match timeout(value, name)? {
        Timeout::NoWait => {
            let message = format!(
                "{name} is DIST_NO_WAIT, with which the call would fail immediately: {remedy}"
            );
            Err(Error::invalid(message))
        }
        limit => Ok(limit.ms_or(0)),
    }
}

/// Returns the deadline of a wait for a work. The default has no limit, because the wait ends at
/// the operation's own deadline.
pub(super) fn wait_limit(value: i64, name: &str) -> Result<Deadline> {
    Ok(match timeout(value, name)? {
        Timeout::Default => Deadline::never(),
        limit => Deadline::after_ms(limit.ms_or(0)),
    })
}

/// Copies a text and a terminator to the buffer of `cap` bytes. If the buffer is too small, the
/// text is truncated between two characters. Returns the bytes that the whole text needs.
pub(super) fn copy_text(text: &str, buf: *mut c_char, cap: usize) -> Result<usize> {
    let needed = text.len() + 1;
    if cap == 0 {
        return Ok(needed);
    }
    if buf.is_null() {
        return Err(null_argument("buf"));
    }
    let mut end = text.len().min(cap - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: the caller promises `cap` writable bytes; this writes at most `end` + 1 of them.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), end) };
    // SAFETY: as above.
    unsafe { buf.wrapping_add(end).write(0) };
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn all_timeouts_follow_one_rule() {
        for refused in [-3, -1000, i64::MIN] {
            for read in [
                timeout(refused, "grace_ms").map(drop),
                milliseconds(refused, "grace_ms").map(drop),
            ] {
                let message = read.unwrap_err().message().to_owned();
                assert!(message.starts_with("grace_ms is -"), "{message}");
                assert!(message.contains("DIST_WAIT_FOREVER"), "{message}");
            }
        }
        let error = milliseconds(DIST_NO_WAIT, "timeout_ms").unwrap_err();
        assert!(error.message().contains("timeout_ms is DIST_NO_WAIT"), "{error}");
        for (value, ms) in [(0, 0), (DIST_WAIT_FOREVER, u64::MAX), (5, 5), (i64::MAX, u64::MAX)] {
            assert_eq!(milliseconds(value, "timeout_ms").unwrap(), ms);
        }
        assert!(wait_limit(DIST_NO_WAIT, "timeout_ms").unwrap().has_passed());
        assert!(!wait_limit(0, "timeout_ms").unwrap().has_passed());
    }

    #[test]
    fn blocks_are_packed_or_at_their_displacements() {
        let base: *mut c_void = ptr::without_provenance_mut(64);
        let ranges = |blocks: Vec<Dst<'_>>| -> Vec<(usize, usize)> {
            blocks
                .iter()
                .filter(|b| !b.is_empty())
                .map(|b| (b.as_mut_ptr().addr(), b.len()))
                .collect()
        };
        let packed = dst_blocks_packed(base, &[2, 0, 3], DataType::F32).unwrap();
        assert_eq!(ranges(packed), [(64, 8), (72, 12)]);
        let placed = dst_blocks_at(base, &[2, 0, 3], &[5, 0, 1], DataType::F32).unwrap();
        assert_eq!(ranges(placed), [(84, 8), (68, 12)]);
        assert!(dst_blocks_packed(ptr::null_mut(), &[0, 0], DataType::F32).is_ok());
    }

    #[test]
    fn blocks_of_one_buffer_stay_in_the_address_space() {
        let base: *mut c_void = ptr::without_provenance_mut(64);
        let max_bytes = isize::MAX.unsigned_abs();
        let far = dst_blocks_at(base, &[1, 1], &[0, usize::MAX], DataType::F32);
        let long = dst_blocks_packed(base, &[max_bytes, max_bytes, 8], DataType::U8);
        let null_buffer = dst_blocks_at(ptr::null_mut(), &[1], &[64], DataType::U8);
        for (refused, word) in [(far, "fit"), (long, "rank 1"), (null_buffer, "recv is NULL")] {
            let message = refused.err().map(|error| error.message().to_owned());
            assert!(message.as_ref().is_some_and(|m| m.contains(word)), "{word}: {message:?}");
        }
    }

    #[test]
    fn a_key_is_a_string_or_bytes() {
        let text = c"a\xff".as_ptr();
        assert_eq!(key(text, DIST_TERMINATED, "key").unwrap(), b"a\xff");
        assert_eq!(key(text, 1, "key").unwrap(), b"a");
        assert_eq!(key(text, 3, "key").unwrap(), b"a\xff\0");
        assert_eq!(key(ptr::null(), 0, "key").unwrap(), b"");
        assert!(key(ptr::null(), DIST_TERMINATED, "key").is_err());
        assert!(key(ptr::null(), 1, "key").is_err());
        let error = key(text, MAX_STRING_BYTES + 1, "key").unwrap_err();
        assert!(error.message().contains("longer than"), "{error}");
    }

    #[test]
    fn buffers_end_before_the_last_address() {
        let (last, names) = (usize::MAX - 3, ["send", "recv"]);
        for (len, fits) in [(3, true), (4, false), (isize::MAX.unsigned_abs(), false)] {
            // No buffer of this test is read or written.
            let from = src(ptr::without_provenance(last), len, names[0]);
            let to = dst(ptr::without_provenance_mut(last), len, names[1]);
            assert_eq!((from.is_ok(), to.is_ok()), (fits, fits), "{len}");
            for (error, name) in [(from.err(), names[0]), (to.err(), names[1])] {
                let is_named = error.map(|error| error.message().contains(name));
                assert_eq!(is_named, (!fits).then_some(true));
            }
        }
        assert!(src(ptr::null(), 0, "send").is_ok() && src(ptr::null(), 1, "send").is_err());
    }
}
