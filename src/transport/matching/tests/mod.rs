//! Engines against each other: ranks that are threads, on one node, on a node each, and on both.

mod dormant;
mod endings;
mod exchange;
mod growing;
mod lanes;
mod level;
mod parting;
mod probe;
mod prompt;
mod random;
mod rules;
mod sharing;
mod world;
