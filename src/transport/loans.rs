//! Loans of memory to an [`Endpoint`]: it may send the lent bytes again until the loan ends.
#![allow(unsafe_code, reason = "the end of a loan comes before the end of the lender's memory")]

use super::endpoint::{COPIED_BYTES, Channel, Endpoint};
use crate::base::buffer::Src;
use crate::base::error::Result;
use crate::base::ids::Rank;
use std::sync::Arc;

/// The loans of payloads that stay readable during `'x`. They end with this value, which must not
/// be forgotten.
#[derive(Debug)]
pub struct Loans<'x> {
    endpoint: &'x dyn Endpoint,
    streams: Vec<(Rank, Channel)>,
    /// The loans end before the payloads do.
    payloads: std::marker::PhantomData<Src<'x>>,
}

impl<'x> Loans<'x> {
    /// Lends nothing yet.
    pub fn to(endpoint: &'x dyn Endpoint) -> Self {
        Self { endpoint, streams: Vec::new(), payloads: std::marker::PhantomData }
    }

    /// Sends as [`Endpoint::try_send_lent`].
    ///
    /// # Errors
    /// As [`Endpoint::try_send_lent`].
    pub fn try_send(
        &mut self,
        to: Rank,
        channel: Channel,
        head: Src<'_>,
        payload: Src<'x>,
    ) -> Result<usize> {
        if payload.len() <= COPIED_BYTES {
            return self.endpoint.try_send(to, channel, &[head, payload]);
        }
        if !self.streams.contains(&(to, channel)) {
            self.streams.push((to, channel));
        }
        // SAFETY: the bytes stay readable during `'x`, in which this value is dropped. Then the
        // endpoint has no view of them.
        let payload = unsafe { payload.without_lifetime() };
        self.endpoint.try_send_lent(to, channel, head, payload)
    }

    /// Ends all loans. The payloads may then be changed.
    pub fn end(&mut self) {
        for (to, channel) in self.streams.drain(..) {
            self.endpoint.end_loans(to, channel);
        }
    }
}

impl Drop for Loans<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The loan of a message, which ends when this value is dropped.
#[derive(Debug)]
pub struct MessageLoan {
    endpoint: Arc<dyn Endpoint>,
    to: Rank,
}

impl MessageLoan {
    /// Begins a loan to the stream for messages to a rank.
    pub fn new(endpoint: Arc<dyn Endpoint>, to: Rank) -> Self {
        Self { endpoint, to }
    }
}

impl Drop for MessageLoan {
    fn drop(&mut self) {
        self.endpoint.end_loans(self.to, Channel::PointToPoint);
    }
}
