//! Strangers and impostors at the door of a mesh.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::transport::tcp::fuzz::hello);
});
