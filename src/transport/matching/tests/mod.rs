//! Engines against each other: ranks that are threads, on one node, on a node each, and on both.

mod allocating_receive;
mod bulk_ring;
mod exchange;
mod fast_path;
mod lazy_engine;
mod level_triggered;
mod match_order;
mod peer_departure;
mod probe;
mod random;
mod split_transfer;
mod termination;
mod test_ranks;
