//! Arbitrary bytes of three clients to the server.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::store::tcp::fuzz::server);
});
