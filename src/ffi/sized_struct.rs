//! Sized structs: C structs whose first field, `struct_size`, has the size that the caller's
//! compiler used. The functions convert between this size and the size in this version of the
//! library.
//!
//! ```text
//! caller's header    input struct                               output struct
//! same version       copied                                     copied
//! older (shorter)    missing fields are zero                    truncated
//! newer (longer)     refused if an unknown field is not zero    unknown fields become zero
//! ```

use super::args::null_argument;
use crate::base::error::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;

/// A struct that begins with `struct_size`. In an option struct, zero bytes in all other fields
/// mean the defaults.
///
/// # Safety
/// The type is `repr(C)`, begins with a `usize`, and any bytes are a value of it.
pub(super) unsafe trait SizedStruct: Copy {
    /// The name of the C type, for error messages.
    const NAME: &'static str;
    /// The size of the first version of the struct.
    const FIRST_SIZE: usize;
}

/// Implements [`SizedStruct`] for structs, each with two sizes: first the size of the struct's
/// first version, then its size in this version.
macro_rules! sized_structs {
    ($($name:ident: $first:literal, $size:literal);+ $(;)?) => {
        $(
            // SAFETY: repr(C), begins with `struct_size`, and all fields are integers, floats, raw
            // pointers or optional functions.
            unsafe impl $crate::ffi::sized_struct::SizedStruct for $name {
                const NAME: &'static str = stringify!($name);
                const FIRST_SIZE: usize = $first;
            }

            const _: () = assert!(size_of::<$name>() == $size);
        )+
    };
}
pub(super) use sized_structs;

/// Reads the options at `ptr`; NULL means all defaults. A shorter struct is from an older version:
/// its missing fields are zero. A longer struct is from a newer version: it is accepted if all
/// bytes are zero that this version does not know.
pub(super) fn read<T: SizedStruct>(ptr: *const T) -> Result<T> {
    let mut options = MaybeUninit::<T>::zeroed();
    if !ptr.is_null() {
        // SAFETY: the caller promises that at least the first field is readable.
        let size = unsafe { ptr.cast::<usize>().read_unaligned() };
        if size == size_of::<T>() {
            // SAFETY: the caller's struct has `size` readable bytes, and any bytes are a value.
            return Ok(unsafe { ptr.read_unaligned() });
        }
        check_size::<T>(size)?;
        let known = size.min(size_of::<T>());
        // SAFETY: the caller's struct has `size` readable bytes, and `options` has space for
        // `known`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                ptr.cast::<u8>(),
                options.as_mut_ptr().cast::<u8>(),
                known,
            );
        }
        check_tail(ptr, size)?;
    }
    // SAFETY: all bytes are initialised: they were zeroed and partly overwritten. Any bytes are a
    // value of T.
    Ok(unsafe { options.assume_init() })
}

/// Returns `struct_size` of the output struct at `ptr`: the number of bytes that the caller has for
/// it.
pub(super) fn output_size<T: SizedStruct>(ptr: *const T) -> Result<usize> {
    // SAFETY: the caller promises that at least the first field is readable.
    let size = unsafe { ptr.cast::<usize>().read_unaligned() };
    check_size::<T>(size)?;
    Ok(size)
}

/// Writes a required output struct. Calls `value` only after the checks of the caller's struct.
pub(super) fn write_required<T: SizedStruct>(
    ptr: *mut T,
    name: &str,
    value: impl FnOnce() -> Result<T>,
) -> Result<()> {
    if ptr.is_null() {
        return Err(null_argument(name));
    }
    let size = output_size(ptr.cast_const())?;
    write(ptr, size, value()?);
    Ok(())
}

/// Writes an output struct. `size` is the result of [`output_size`]. The struct of an older version
/// is truncated. In the struct of a newer version, the unknown fields become zero.
pub(super) fn write<T: SizedStruct>(ptr: *mut T, size: usize, mut value: T) {
    let known = size.min(size_of::<T>());
    // SAFETY: the first field of every T is a usize, and `value` is this function's own.
    unsafe { std::ptr::from_mut(&mut value).cast::<usize>().write(size) };
    // SAFETY: the caller's struct has `size` writable bytes, and `value` has `known`.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(&value).cast::<u8>(),
            ptr.cast::<u8>(),
            known,
        );
    }
    // SAFETY: these are the remaining bytes of the caller's struct, from `known` to `size`.
    unsafe { std::ptr::write_bytes(ptr.cast::<u8>().wrapping_add(known), 0, size - known) };
}

/// The maximum of `struct_size`. If the value is larger, the caller has not set the field.
const MAX_STRUCT_BYTES: usize = 4096;

fn check_size<T: SizedStruct>(size: usize) -> Result<()> {
    if (T::FIRST_SIZE..=MAX_STRUCT_BYTES).contains(&size) {
        return Ok(());
    }
    let message = format!(
        "struct_size of {} is {size}: set it to sizeof({}), or use the _INIT macro",
        T::NAME,
        T::NAME
    );
    Err(Error::invalid(message))
}

fn check_tail<T: SizedStruct>(ptr: *const T, size: usize) -> Result<()> {
    for offset in size_of::<T>()..size {
        // SAFETY: the offset is within the `size` bytes of the caller's struct.
        let byte = unsafe { ptr.cast::<u8>().wrapping_add(offset).read() };
        if byte != 0 {
            let message = format!(
                "{} sets a field at offset {offset} that this version of libdist ({}) does not know",
                T::NAME,
                env!("CARGO_PKG_VERSION")
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    #[repr(C)]
    struct Small {
        struct_size: usize,
        first: u64,
        added_later: u64,
    }

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Larger {
        known: Small,
        unknown: u64,
    }

    // SAFETY: repr(C), begins with a usize, and consists of integers.
    unsafe impl SizedStruct for Small {
        const NAME: &'static str = "small_t";
        const FIRST_SIZE: usize = 16;
    }

    fn with_size(struct_size: usize, unknown: u64) -> Result<Small> {
        let known = Small { struct_size, first: 1, added_later: 2 };
        read(std::ptr::from_ref(&Larger { known, unknown }).cast())
    }

    #[test]
    fn older_and_newer_struct_sizes_are_accepted() {
        assert_eq!(read::<Small>(std::ptr::null()).unwrap().first, 0);
        let old = with_size(16, 9).unwrap();
        assert_eq!((old.first, old.added_later), (1, 0));
        assert_eq!(with_size(24, 9).unwrap().added_later, 2);
        assert_eq!(with_size(32, 0).unwrap().added_later, 2);
    }

    #[test]
    fn output_is_truncated_or_zero_filled_to_the_caller_size() {
        let value = Small { struct_size: 0, first: 7, added_later: 8 };
        for (size, expected) in [(16, [16, 7, 99, 99]), (24, [24, 7, 8, 99]), (32, [32, 7, 8, 0])] {
            let mut cells = [size, 99, 99, 99];
            let ptr = cells.as_mut_ptr().cast::<Small>();
            assert_eq!(output_size(ptr.cast_const()).unwrap(), size);
            write(ptr, size, value);
            assert_eq!(cells, expected);
        }
        let cells = [8_usize];
        assert!(output_size(cells.as_ptr().cast::<Small>()).is_err());
    }

    #[test]
    fn impossible_sizes_and_unknown_fields_are_refused() {
        for size in [0, 8, 15, 5000, usize::MAX] {
            assert_eq!(with_size(size, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        let error = with_size(32, 5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("small_t") && error.message().contains("offset 24"));
    }
}
