//! What a rank and the driver say to each other: orders come through one pipe, answers go through
//! another, samples into a file.

use crate::engine::{ANSWERS, ORDERS, SAMPLE};
use crate::order::{DONE, NOT_OFFERED, Order, QUIT, Stamps};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;

/// A rank's end of the pipes.
#[derive(Debug)]
pub(crate) struct Post {
    rank: usize,
    sample: PathBuf,
    orders: BufReader<File>,
    answers: File,
}

impl Post {
    /// Opens the pipes at a place.
    ///
    /// # Errors
    /// Why that fails, in words.
    pub(crate) fn open(rank: usize, place: &str) -> Result<Self, String> {
        let told = |what: &'static str| move |cause| format!("{what}: {cause}");
        let file = |ending: &str| PathBuf::from(format!("{place}.{rank}{ending}"));
        let orders = BufReader::new(File::open(file(ORDERS)).map_err(told("the orders"))?);
        let answers = File::options().write(true).open(format!("{place}{ANSWERS}"));
        let answers = answers.map_err(told("the answers"))?;
        Ok(Self { rank, sample: file(SAMPLE), orders, answers })
    }

    /// Does what a rank lives for, and tells the driver if that fails.
    ///
    /// # Errors
    /// That of `life`.
    pub(crate) fn tell(
        mut self,
        life: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let outcome = life(&mut self);
        if let Err(message) = &outcome {
            // If nobody listens any more, there is nobody to tell.
            drop(self.answer(&format!("error: {message}")));
        }
        outcome
    }

    /// Has orders carried out until there are no more. `None`: there is nothing for an order.
    ///
    /// # Errors
    /// That of `carry_out`, or why the driver cannot be understood.
    pub(crate) fn obey(
        &mut self,
        carry_out: &mut dyn FnMut(&Order) -> Result<Option<Stamps>, String>,
    ) -> Result<(), String> {
        let mut ready = DONE;
        loop {
            self.answer(ready)?;
            let mut line = String::new();
            self.orders.read_line(&mut line).map_err(|cause| format!("reading orders: {cause}"))?;
            // No line at all: the driver has gone.
            if line.is_empty() || line.trim_end() == QUIT {
                return Ok(());
            }
            let order = Order::parse(&line).ok_or_else(|| format!("not an order: {line}"))?;
            ready = NOT_OFFERED;
            if let Some(stamps) = carry_out(&order)? {
                fs::write(&self.sample, stamps.encode())
                    .map_err(|cause| format!("writing the sample: {cause}"))?;
                ready = DONE;
            }
        }
    }

    fn answer(&mut self, what: &str) -> Result<(), String> {
        let line = format!("{} {what}\n", self.rank);
        self.answers.write_all(line.as_bytes()).map_err(|cause| format!("answering: {cause}"))
    }
}
