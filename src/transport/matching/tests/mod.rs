//! Tests in which engines exchange messages. The ranks are threads of the test. They are all on one
//! node, each on its own node, or two per node.

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
