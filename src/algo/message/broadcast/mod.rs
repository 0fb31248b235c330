//! Broadcast over messages, down a tree or along a chain. The vector moves in segments, so that a
//! member forwards one segment while the next segment arrives.

pub mod binomial;
pub mod chain;

use super::{MAX_POSTED_STRIPES, MessageOperation, SEGMENT_BYTES, Team};
use crate::algo::pattern::slices::chunks;
use crate::algo::pattern::tree::TreePosition;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use std::ops::Range;

/// Sends the root's buffer `send` down the tree to the buffers `recv` of the other members.
///
/// # Errors
/// As [`super::MessageExchange::wait`].
fn send_down_tree(
    call: &mut MessageOperation<'_>,
    team: Team<'_>,
    position: &TreePosition,
    send: Src<'_>,
    recv: Dst<'_>,
) -> Result<()> {
    let mut exchange = call.exchange(team);
    let bytes = if position.parent.is_some() { recv.len() } else { send.len() };
    let segments: Vec<Range<usize>> = chunks(bytes, SEGMENT_BYTES).collect();
    let mut token = None;
    for i in 0..=segments.len() {
        let received = token.take();
        if let (Some(parent), Some(next_segment)) = (position.parent, segments.get(i)) {
            token = Some(exchange.receive(parent, recv.range(next_segment)));
        }
        // A member forwards segment i - 1 after it has posted the receive of segment i.
        let Some(segment) = i.checked_sub(1).and_then(|i| segments.get(i)) else { continue };
        let from = if position.parent.is_some() { recv.as_src() } else { send };
        if let Some(incoming) = received {
            exchange.wait(incoming)?;
        }
        for &child in &position.children {
            exchange.send(child, from.range(segment));
        }
        exchange.wait_until_at_most(MAX_POSTED_STRIPES)?;
    }
    exchange.finish()
}
