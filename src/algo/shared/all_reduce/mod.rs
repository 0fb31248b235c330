//! All-reduce inside a host.

mod inline;
mod one_shot;
mod two_shot;

pub(in crate::algo::shared) use inline::fold_payloads;
pub use inline::run as inline;
pub use one_shot::run as one_shot;
pub use two_shot::run as two_shot;
