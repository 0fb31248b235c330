//! What the ranks of a group say of themselves when they come together: one object each, which the
//! others read without trusting it.
//!
//! Must not know: what is done with it.

use super::Exchange;
use crate::base::error::{Error, ErrorKind, Result};
use serde_json::Value;

/// What one rank says.
#[derive(Debug)]
pub(super) struct Fields(Value);

impl Fields {
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.0.get(name)?.as_str().map(str::to_owned)
    }

    pub(super) fn integer<T: TryFrom<i64>>(&self, name: &str) -> Option<T> {
        T::try_from(self.0.get(name)?.as_i64()?).ok()
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name)?.as_bool()
    }
}

/// Tells all ranks what this one says, and reads what each of them does, in their order.
///
/// # Errors
/// `Mismatch` naming a rank of which `read` makes nothing; those of [`Exchange::all`].
pub(super) fn exchange<T>(
    exchange: &dyn Exchange,
    phase: &str,
    mine: &Value,
    over: &dyn Fn() -> Option<Error>,
    read: impl Fn(&Fields) -> Option<T>,
) -> Result<Vec<T>> {
    let cards = exchange.all(phase, mine.to_string().as_bytes(), over)?;
    let card = |(rank, bytes): (usize, &Vec<u8>)| {
        let fields = serde_json::from_slice(bytes).ok().map(Fields);
        fields.and_then(|fields| read(&fields)).ok_or_else(|| {
            let message = format!(
                "what rank {rank} says of itself cannot be read: has it the same back end, of the same version?"
            );
            Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
        })
    };
    cards.iter().enumerate().map(card).collect()
}

/// Checks that all ranks ask for the same back ends.
///
/// # Errors
/// `Mismatch` naming the first one that asks for others than rank 0.
pub(super) fn check_maps<'c>(maps: impl IntoIterator<Item = &'c str>) -> Result<()> {
    let mut maps = maps.into_iter().enumerate();
    let Some((_, first)) = maps.next() else { return Ok(()) };
    let Some((rank, other)) = maps.find(|(_, map)| *map != first) else { return Ok(()) };
    let message = format!("rank {rank} asks for the back ends {other}, and rank 0 for {first}");
    Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use serde_json::json;

    /// What is heard of the ranks, whatever this one says.
    struct Heard(Vec<Vec<u8>>);

    impl Exchange for Heard {
        fn all(&self, _: &str, _: &[u8], _: &dyn Fn() -> Option<Error>) -> Result<Vec<Vec<u8>>> {
            Ok(self.0.clone())
        }

        fn give_up(&self, _: &Error) {}

        fn given_up(&self) -> Option<Error> {
            None
        }
    }

    fn hear(cards: &[&str]) -> Result<Vec<(String, u32, bool)>> {
        let heard = Heard(cards.iter().map(|card| card.as_bytes().to_vec()).collect());
        let read = |of: &Fields| Some((of.text("name")?, of.integer("pid")?, of.flag("shares")?));
        exchange(&heard, "test", &json!({}), &|| None, read)
    }

    #[test]
    fn who_says_what_cannot_be_read_is_named() {
        let good = r#"{"name": "a", "pid": 7, "shares": true}"#;
        assert_eq!(hear(&[good, good]).unwrap()[1], ("a".to_owned(), 7, true));
        let bad = [
            "",
            "[]",
            "\u{1}",
            r#"{"name": 1, "pid": 7, "shares": true}"#,
            r#"{"name": "a", "pid": -1, "shares": true}"#,
            r#"{"name": "a", "pid": 4294967296, "shares": true}"#,
            r#"{"name": "a", "pid": 7}"#,
        ];
        for bad in bad {
            let error = hear(&[good, bad]).unwrap_err();
            assert_eq!((error.kind(), error.culprit()), (ErrorKind::Mismatch, Some(1)), "{bad}");
        }
    }

    #[test]
    fn who_asks_for_other_back_ends_is_named() {
        assert!(check_maps(["a", "a"]).is_ok() && check_maps([]).is_ok());
        assert_eq!(check_maps(["a", "a", "b", "c"]).unwrap_err().culprit(), Some(2));
    }
}
