//! Blobs: lists of byte strings that the library passes to the caller. The caller reads the strings
//! with these functions, and releases the blob.

use super::args::OutPtr;
use super::handle::{HandleKind, HandleTable};
use super::types::dist_blob_t;
use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// The strings. Each string has a zero byte at its end as terminator, which the caller does not see
/// as part of the length.
#[derive(Debug)]
pub(super) struct Blob(Vec<Vec<u8>>);

pub(super) static BLOBS: HandleTable<Blob> = HandleTable::new(HandleKind::Blob);

/// Appends the terminators and writes the handle of a new blob to `out`. A string that has spare
/// capacity for its terminator is not moved.
pub(super) fn write_blob(out: &OutPtr<*mut dist_blob_t>, items: Vec<Vec<u8>>) -> Result<()> {
    let terminated = |mut item: Vec<u8>| {
        item.try_reserve_exact(1).map_err(|_| {
            let message = format!("no memory for a result of {} bytes", item.len());
            Error::new(ErrorKind::OutOfMemory, message)
        })?;
        item.push(0);
        Ok(item)
    };
    let blob = Blob(items.into_iter().map(terminated).collect::<Result<_>>()?);
    out.write(BLOBS.insert(Arc::new(blob))?);
    Ok(())
}

dist_export! {
    #[on_error(0)]
    /// Returns the number of byte strings in a blob.
    ///
    /// @param blob in: the blob.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number; 0 for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_blob_count(blob: *const dist_blob_t) -> usize {
        Ok(BLOBS.get(blob)?.0.len())
    }
}

dist_export! {
    /// Returns one byte string of a blob.
    ///
    /// A zero byte follows the bytes, so that a text can be printed. `len_bytes` does not count it.
    ///
    /// @param blob in: the blob.
    /// @param index in: the position of the byte string, from 0, less than the result of
    ///   dist_blob_count.
    /// @param data out: the bytes, owned by the blob, valid until dist_blob_release; NULL on
    ///   failure.
    /// @param len_bytes out: the number of bytes; not written on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `data` or `len_bytes`
    ///   is NULL or `index` is out of range.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_blob_data(
        blob: *const dist_blob_t,
        index: usize,
        data: *mut *const c_void,
        len_bytes: *mut usize,
    ) -> dist_status_t {
        let data = OutPtr::required(data, "data")?;
        data.write(std::ptr::null());
        let len_out = OutPtr::required(len_bytes, "len_bytes")?;
        let blob = BLOBS.get(blob)?;
        let item = blob.0.get(index).ok_or_else(|| {
            let count = blob.0.len();
            Error::invalid(format!("index {index} is out of range: the blob has {count} items"))
        })?;
        // The bytes stay valid after this function: the table owns the blob until
        // dist_blob_release.
        data.write(item.as_ptr().cast());
        len_out.write(item.len() - 1);
        Ok(())
    }
}

dist_export! {
    /// Releases a blob and its bytes.
    ///
    /// @param blob in, optional: the blob; NULL does nothing.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads Any thread may call this, but not while another thread reads the bytes.
    /// @since 0.1
    pub fn dist_blob_release(blob: *mut dist_blob_t) -> dist_status_t {
        BLOBS.release_handle(blob, drop)
    }
}
