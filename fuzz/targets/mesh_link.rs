//! Arbitrary bytes on a link between two processes, from an authenticated peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::transport::tcp::fuzz::link);
});
