//! A sender and a receiver of a link whose connection breaks, and is replaced, at any time.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::transport::tcp::fuzz::resume);
});
