//! Broadcast over messages: from the root down a tree, or along a chain, segment by segment, so
//! that a member passes on what it has while more arrives.

pub mod chain;
pub mod tree;

use super::{Call, POSTED, SEGMENT, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::pattern::tree::Place;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use std::ops::Range;

/// Passes `send` of the root into `recv` of the others.
///
/// # Errors
/// As [`super::Exchange::wait`].
fn down(
    call: &mut Call<'_>,
    team: Team<'_>,
    place: &Place,
    send: Src<'_>,
    recv: Dst<'_>,
) -> Result<()> {
    let mut exchange = call.exchange(team);
    let bytes = if place.parent.is_some() { recv.len() } else { send.len() };
    let segments: Vec<Range<usize>> = chunks(bytes, SEGMENT).collect();
    let mut token = None;
    for i in 0..=segments.len() {
        let came = token.take();
        if let (Some(parent), Some(coming)) = (place.parent, segments.get(i)) {
            token = Some(exchange.receive(parent, recv.slice(coming.start, coming.len())));
        }
        // One behind what is posted to come.
        let Some(segment) = i.checked_sub(1).and_then(|i| segments.get(i)) else { continue };
        let from = if place.parent.is_some() { recv.as_src() } else { send };
        if let Some(came) = came {
            exchange.wait(came)?;
        }
        for &child in &place.children {
            exchange.send(child, from.slice(segment.start, segment.len()));
        }
        exchange.wait_few(POSTED)?;
    }
    exchange.finish()
}
