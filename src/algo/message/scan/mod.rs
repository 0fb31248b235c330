//! Scan and exscan over messages: each rank receives the fold of the vectors of the ranks before
//! it. In a scan, the fold includes the rank's own vector.

pub mod chain;
pub mod ordered;
