//! Requests that make sense, to the server and to a model of it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::store::tcp::fuzz::requests);
});
