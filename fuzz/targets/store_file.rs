//! Arbitrary bytes and arbitrary records as the file of a file store.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::store::file::fuzz::file);
});
