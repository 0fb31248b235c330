//! Arbitrary bytes of a server to the client.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::store::tcp::fuzz::client);
});
