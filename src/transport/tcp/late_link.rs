//! [`LateLinkCheck`]: whether bytes of a rank that has left may still come on a channel that it
//! has not opened.
//!
//! The report that a rank has left may overtake its bytes, which travel on another connection. If
//! its process has no link to this one, the first connection of the link may still be on its way.
//! So this rank asks the process by a probe. A process without such a link refuses it, and one that
//! has ended does not listen: then nothing comes.

use super::hello::Hello;
use super::link_user::LinkUser;
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use crate::transport::Channel;
use std::sync::{Arc, Mutex, Weak};

/// The question to the process of a departed rank for one channel.
#[derive(Debug)]
pub(super) struct LateLinkCheck {
    user: Weak<dyn LinkUser>,
    from: Rank,
    channel: Channel,
    state: Mutex<CheckState>,
}

#[derive(Debug)]
enum CheckState {
    Unknown,
    Asking(Arc<PeerConnector>),
    /// The process has a link to this one. If it does not come, this rank must ask again.
    LinkComes {
        is_reported: bool,
    },
    NothingComes,
}

/// Whether bytes may come, as far as this rank knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LateLinkAnswer {
    /// This rank has not asked, or must ask again.
    Unknown,
    MayCome,
    /// As [`LateLinkAnswer::MayCome`], for the first time since the answer has arrived.
    LinkComes,
    NothingComes,
}

impl LateLinkCheck {
    pub(super) fn new(user: Weak<dyn LinkUser>, from: Rank, channel: Channel) -> Arc<Self> {
        Arc::new(Self { user, from, channel, state: Mutex::new(CheckState::Unknown) })
    }

    pub(super) fn answer(&self) -> LateLinkAnswer {
        match &mut *lock(&self.state) {
            CheckState::Unknown => LateLinkAnswer::Unknown,
            CheckState::LinkComes { is_reported } if !*is_reported => {
                *is_reported = true;
                LateLinkAnswer::LinkComes
            }
            CheckState::LinkComes { .. } | CheckState::Asking(_) => LateLinkAnswer::MayCome,
            CheckState::NothingComes => LateLinkAnswer::NothingComes,
        }
    }

    /// Asks, unless it asks already. `connector` creates the attempt to connect.
    ///
    /// # Errors
    /// The error of `connector`.
    pub(super) fn ask(
        self: &Arc<Self>,
        connector: impl FnOnce(Weak<dyn PeerConnectHandler>) -> Result<Arc<PeerConnector>>,
    ) -> Result<()> {
        let connector = connector(Arc::<Self>::downgrade(self))?;
        let mut state = lock(&self.state);
        if !matches!(&*state, CheckState::Unknown) {
            return Ok(());
        }
        *state = CheckState::Asking(Arc::clone(&connector));
        drop(state);
        // Without the lock, which the handler takes.
        connector.start();
        Ok(())
    }

    /// Forgets that a link must come, so that this rank asks again.
    pub(super) fn expire(&self) {
        let mut state = lock(&self.state);
        if matches!(&*state, CheckState::LinkComes { .. }) {
            *state = CheckState::Unknown;
        }
    }

    /// Ends the question.
    pub(super) fn cancel(&self) {
        let old = std::mem::replace(&mut *lock(&self.state), CheckState::NothingComes);
        if let CheckState::Asking(connector) = old {
            connector.cancel();
        }
    }

    fn finish(&self, result: CheckState) {
        let old = std::mem::replace(&mut *lock(&self.state), result);
        drop(old);
        if let Some(user) = self.user.upgrade() {
            user.on_input(self.from, self.channel);
        }
    }
}

impl PeerConnectHandler for LateLinkCheck {
    fn on_connected(&self, _: &Hello, stream: Arc<SocketStream>) {
        stream.close_gracefully();
        self.finish(CheckState::LinkComes { is_reported: false });
    }

    fn on_failed(&self, _: &Hello, error: Error) {
        crate::log!(LogLevel::Debug, "nothing comes from a rank that has left: {error}");
        self.finish(CheckState::NothingComes);
    }
}
