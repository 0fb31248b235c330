//! Brings messages that other ranks offer and places that the caller has posted together, as the
//! engine does for host memory: in the order of sending and of posting, and a message that does not
//! fit fails the receive and stays for the next.

use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use std::collections::VecDeque;

/// A message of another rank, or of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) from: Rank,
    /// Its sender's number of it.
    pub(super) number: u64,
    pub(super) tag: u32,
    pub(super) dtype: DataType,
    pub(super) len: usize,
}

/// A place for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// In the order of posting.
    pub(super) id: u64,
    pub(super) from: Option<Rank>,
    pub(super) tag: Option<u32>,
    pub(super) dtype: DataType,
    pub(super) most: usize,
}

/// What has become of a place.
#[derive(Debug)]
pub(super) enum Met {
    /// This message is for it.
    Pair(Place, Offer),
    /// The message that it matched does not fit.
    Misfit(Place, Error),
}

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Matching {
    places: VecDeque<Place>,
    offers: VecDeque<Offer>,
}

fn matches(place: &Place, offer: &Offer) -> bool {
    place.from.is_none_or(|from| from == offer.from) && place.tag.is_none_or(|tag| tag == offer.tag)
}

fn meet(place: Place, offer: Offer) -> Met {
    let Offer { from, tag, dtype, len, .. } = offer;
    let what = if dtype != place.dtype {
        format!("has elements of {dtype}, and the receive of {}", place.dtype)
    } else if len > place.most {
        format!("has {len} bytes, and the receive room for {}", place.most)
    } else {
        return Met::Pair(place, offer);
    };
    let message = format!("the message of rank {from} under tag {tag} {what}");
    Met::Misfit(place, Error::new(ErrorKind::Mismatch, message).with_culprit(from))
}

impl Matching {
    /// A place is posted, or comes back because nothing came for it.
    pub(super) fn post(&mut self, place: Place) -> Option<Met> {
        let found = self.offers.iter().position(|offer| matches(&place, offer));
        let Some(offer) = found.and_then(|at| self.offers.get(at).copied()) else {
            let later = self.places.iter().position(|other| other.id > place.id);
            self.places.insert(later.unwrap_or(self.places.len()), place);
            return None;
        };
        let met = meet(place, offer);
        if matches!(met, Met::Pair(..)) {
            self.offers.retain(|other| *other != offer);
        }
        Some(met)
    }

    /// A message is offered, or again.
    pub(super) fn offer(&mut self, offer: Offer) -> Vec<Met> {
        let mut met = Vec::new();
        while let Some(at) = self.places.iter().position(|place| matches(place, &offer)) {
            let Some(place) = self.places.remove(at) else { break };
            met.push(meet(place, offer));
            if matches!(met.last(), Some(Met::Pair(..))) {
                return met;
            }
        }
        let later = |other: &Offer| other.from == offer.from && other.number > offer.number;
        let place = self.offers.iter().position(later);
        self.offers.insert(place.unwrap_or(self.offers.len()), offer);
        met
    }

    /// A message is not offered any more.
    pub(super) fn withdraw(&mut self, from: Rank, number: u64) {
        self.offers.retain(|offer| (offer.from, offer.number) != (from, number));
    }

    /// A place is not there any more.
    pub(super) fn cancel(&mut self, id: u64) {
        self.places.retain(|place| place.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(from: Rank, number: u64, tag: u32, len: usize) -> Offer {
        Offer { from, number, tag, dtype: DataType::F32, len }
    }

    fn place(id: u64, from: Option<Rank>, tag: Option<u32>) -> Place {
        Place { id, from, tag, dtype: DataType::F32, most: 8 }
    }

    fn pair(met: Option<Met>) -> (u64, u64) {
        match met {
            Some(Met::Pair(place, offer)) => (place.id, offer.number),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_and_places_meet_in_their_orders() {
        let mut matching = Matching::default();
        assert!(matching.offer(offer(1, 1, 5, 8)).is_empty());
        assert!(matching.offer(offer(1, 2, 5, 4)).is_empty());
        assert!(matching.offer(offer(2, 1, 6, 4)).is_empty());
        assert_eq!(pair(matching.post(place(1, None, Some(6)))), (1, 1));
        assert_eq!(pair(matching.post(place(2, Some(1), None))), (2, 1));
        assert!(matching.post(place(4, None, None)).is_some());
        assert!(matching.post(place(6, None, None)).is_none());
        // One that comes back goes where it was.
        assert!(matching.post(place(5, Some(1), None)).is_none());
        assert_eq!(pair(matching.offer(offer(1, 9, 0, 0)).pop()), (5, 9));
        matching.cancel(6);
        assert!(matching.offer(offer(3, 1, 0, 0)).is_empty());
        matching.withdraw(3, 1);
        assert!(matching.post(place(7, None, None)).is_none());
    }

    #[test]
    fn what_does_not_fit_stays_for_the_next() {
        let mut matching = Matching::default();
        let small = Place { most: 4, ..place(1, None, None) };
        let other = Place { dtype: DataType::I32, ..place(2, None, None) };
        for place in [small, other, place(3, None, None)] {
            assert!(matching.post(place).is_none());
        }
        let met = matching.offer(offer(0, 1, 0, 8));
        assert!(matches!(met[..], [Met::Misfit(..), Met::Misfit(..), Met::Pair(..)]), "{met:?}");
        assert!(matching.offer(offer(0, 2, 0, 8)).is_empty());
        assert!(matches!(matching.post(small), Some(Met::Misfit(..))));
        assert_eq!(pair(matching.post(place(4, None, None))), (4, 2));
    }
}
