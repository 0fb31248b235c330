//! An engine: rank processes that stay alive and do what they are ordered, so that calls of ours
//! and of others take turns without being started anew. A rank that has nothing to do waits in the
//! kernel for its next order and uses no processor, whatever its library does while it waits. Each
//! has a pipe with a name for its orders; all answer through one, and each leaves its stamps in a
//! file.

use crate::Failure;
use crate::cell::Cell;
use crate::order::{DONE, NOT_OFFERED, Order, QUIT, Stamps};
use crate::stage::Stage;
use dist::base::deadline::Deadline;
use dist::sys::file::make_pipe;
use dist::sys::poll::Interest;
use dist::wait::io::ready_within;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The endings of the names: of a rank's orders and sample, after its number, and of what all
/// share.
pub(crate) const ORDERS: &str = ".orders";
pub(crate) const SAMPLE: &str = ".sample";
pub(crate) const ANSWERS: &str = ".answers";
const LOG: &str = ".log";

/// How long the ranks may take to come together: Python has much to load, and there may be many
/// ranks for few cores.
const STARTING: Duration = Duration::from_secs(180);

/// How long they may take for one order.
const ORDERED: Duration = Duration::from_secs(180);

/// How long they may take to leave.
const LEAVING: Duration = Duration::from_secs(10);

/// How often the driver looks whether somebody has ended.
const LOOK: Duration = Duration::from_millis(100);

/// How many lines of what an engine has said are told where it fails.
const SAID: usize = 12;

/// What makes an engine: which processes, and for what they are there.
pub(crate) trait Launch: fmt::Debug {
    /// Its name in tables.
    fn name(&self) -> &str;

    /// The commands that start all ranks. A rank finds its files at `place`, followed by its number
    /// and an ending.
    fn commands(&self, ranks: usize, place: &Path) -> Result<Vec<Command>, Failure>;

    /// Whether it is to take part in a cell.
    fn takes(&self, cell: &Cell) -> bool;

    /// It is no library to compare with, but what a program by hand takes.
    fn is_bound(&self) -> bool {
        false
    }
}

/// The running ranks of one.
#[derive(Debug)]
pub(crate) struct Engine {
    name: String,
    place: PathBuf,
    members: Vec<usize>,
    orders: Vec<File>,
    answers: File,
    /// What has come of answers, and is no whole line yet.
    half: String,
    /// A rank has answered that its library has nothing for the order.
    is_refused: bool,
}

impl Engine {
    /// Starts the ranks, and waits until they have come together.
    pub(crate) fn start(
        launch: &dyn Launch,
        ranks: usize,
        stage: &mut Stage,
    ) -> Result<Self, Failure> {
        // The number makes the place new if the same engine is started again.
        let place = format!("{}-{ranks}-{}", launch.name(), stage.started());
        let place = stage.folder().join(place);
        let name = launch.name().to_owned();
        // Opened both ways, which does not wait for the other side; to the ranks the pipe ends when
        // the driver does.
        let open = |path: PathBuf| {
            let opened =
                make_pipe(&path).and_then(|()| File::options().read(true).write(true).open(&path));
            opened.map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))
        };
        let orders = (0..ranks).map(|rank| open(file(&place, Some(rank), ORDERS)));
        let orders = orders.collect::<Result<Vec<File>, Failure>>()?;
        let answers = open(file(&place, None, ANSWERS))?;
        let (members, half) = (Vec::new(), String::new());
        let mut engine = Self { name, place, members, orders, answers, half, is_refused: false };
        let log = file(&engine.place, None, LOG);
        for mut command in launch.commands(ranks, &engine.place)? {
            engine.members.push(stage.start(&mut command, &log)?);
        }
        engine.await_answers(stage, &Deadline::after(STARTING), "to come together")?;
        Ok(engine)
    }

    /// Its name in tables.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Has all ranks carry out an order; what each has measured. `None`: the library has nothing
    /// for that.
    pub(crate) fn run(
        &mut self,
        order: &Order,
        stage: &mut Stage,
    ) -> Result<Option<Vec<Stamps>>, Failure> {
        // Also where all answers come at once.
        stage.look()?;
        self.is_refused = false;
        self.tell(&order.line())?;
        let what = format!("for {} of {} elements", order.op.name(), order.count);
        self.await_answers(stage, &Deadline::after(ORDERED), &what)?;
        if self.is_refused {
            return Ok(None);
        }
        let read = |rank: usize| {
            let path = file(&self.place, Some(rank), SAMPLE);
            let bytes = fs::read(&path).map_err(|cause| cause.to_string());
            let stamps = bytes.and_then(|bytes| {
                Stamps::decode(&bytes, order.calls).ok_or_else(|| "it is no sample".to_owned())
            });
            stamps.map_err(|why| Failure::new(format!("{}: {why}", path.display())))
        };
        (0..self.orders.len()).map(read).collect::<Result<_, _>>().map(Some)
    }

    /// Lets the ranks leave; what has not ended then is ended.
    pub(crate) fn end(mut self, stage: &mut Stage) -> Result<(), Failure> {
        self.tell(&format!("{QUIT}\n"))?;
        if !stage.await_ends(&self.members, &Deadline::after(LEAVING))? {
            stage.end(&self.members)?;
        }
        Ok(())
    }

    /// Ends the ranks of an engine that has failed.
    pub(crate) fn abandon(self, stage: &mut Stage) -> Result<(), Failure> {
        stage.end(&self.members)
    }

    fn tell(&mut self, line: &str) -> Result<(), Failure> {
        for orders in &mut self.orders {
            let told = orders.write_all(line.as_bytes());
            told.map_err(|cause| Failure::new(format!("{}: {cause}", self.name)))?;
        }
        Ok(())
    }

    /// Waits until each rank has answered once.
    fn await_answers(
        &mut self,
        stage: &mut Stage,
        deadline: &Deadline,
        what: &str,
    ) -> Result<(), Failure> {
        let mut missing = self.orders.len();
        while missing > 0 {
            let slice = deadline.capped(LOOK);
            let is_ready = ready_within(self.answers.as_fd(), Interest::READ, &slice);
            if is_ready.map_err(|cause| self.failed(&cause.to_string()))? {
                missing -= self.take_answers()?.min(missing);
                continue;
            }
            stage.look()?;
            let ended = self.members.iter().filter_map(|&number| stage.ending(number)).next();
            if let Some(ending) = ended {
                let how = ending.shell_status();
                return Err(self.failed(&format!("a process of it has ended with status {how}")));
            }
            if deadline.has_passed() {
                let seconds = deadline.allowed().as_secs();
                return Err(self.failed(&format!("it needs more than {seconds} s {what}")));
            }
        }
        Ok(())
    }

    /// Reads what there is of answers; how many there are.
    fn take_answers(&mut self) -> Result<usize, Failure> {
        let mut bytes = [0; 4096];
        let got = self.answers.read(&mut bytes).map_err(|cause| self.failed(&cause.to_string()))?;
        self.half.push_str(&String::from_utf8_lossy(&bytes[..got]));
        let mut count = 0;
        while let Some((line, rest)) = self.half.split_once('\n') {
            let (line, rest) = (line.to_owned(), rest.to_owned());
            self.half = rest;
            match line.split_once(' ') {
                Some((_, DONE)) => count += 1,
                Some((_, NOT_OFFERED)) => {
                    self.is_refused = true;
                    count += 1;
                }
                Some((rank, what)) => return Err(self.failed(&format!("rank {rank}: {what}"))),
                None => return Err(self.failed(&format!("an answer that is none: {line}"))),
            }
        }
        Ok(count)
    }

    /// A failure of this engine, with the last that it has said.
    fn failed(&self, why: &str) -> Failure {
        let said = fs::read(file(&self.place, None, LOG)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(SAID)..];
        let said: String = last.iter().map(|line| format!("\n  | {line}")).collect();
        Failure::new(format!("{}: {why}{said}", self.name))
    }
}

/// The name of a file at a place.
fn file(place: &Path, rank: Option<usize>, ending: &str) -> PathBuf {
    let rank = rank.map_or_else(String::new, |rank| format!(".{rank}"));
    PathBuf::from(format!("{}{rank}{ending}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_place_and_rank() {
        let place = Path::new("/tmp/x/ours-2");
        assert_eq!(file(place, Some(1), ORDERS), PathBuf::from("/tmp/x/ours-2.1.orders"));
        assert_eq!(file(place, None, ANSWERS), PathBuf::from("/tmp/x/ours-2.answers"));
    }
}
