//! Engines against each other: ranks that are threads, on one node, on a node each, and on both.

mod endings;
mod exchange;
mod growing;
mod level;
mod parting;
mod random;
mod rules;
mod world;
