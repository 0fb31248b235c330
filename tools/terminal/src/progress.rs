//! A line on standard error that shows the progress of an operation. The line exists only if
//! standard error is a terminal that can move its cursor (`TERM` is neither `dumb` nor unset). It
//! has no colours, so it need not read `NO_COLOR`.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A wait is shown if it takes longer than this.
const WAIT_SHOWN_AFTER: Duration = Duration::from_secs(2);
/// The interval at which the line of a wait is drawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// The largest number of updates per second that are drawn.
const MAX_DRAWS_PER_SECOND: u8 = 10;

const STEPS: &str = "{bar:16} {pos} of {len}, {elapsed}: {wide_msg}";
const TIME_SPAN: &str = "{bar:16} {elapsed}: {wide_msg}";
const WAIT: &str = "{spinner} {elapsed}: {wide_msg}";

/// The progress of an operation. Its line disappears when the operation is finished, or when this
/// value is dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// The thread that draws the line of a wait.
    drawer: Option<Drawer>,
}

/// A thread, and the channel whose end ends the thread.
#[derive(Debug)]
struct Drawer {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Creates the progress of an operation with this number of steps. The line is drawn only
    /// during calls of this value, so that it never disturbs a measurement between two calls.
    pub fn of_steps(steps: usize) -> Self {
        Self::drawn_by_caller(steps as u64, STEPS)
    }

    /// Creates the progress of an operation that takes this time. [`Self::set_elapsed`] draws the
    /// line.
    pub fn of_time_span(span: Duration) -> Self {
        Self::drawn_by_caller(whole_milliseconds(span), TIME_SPAN)
    }

    /// Creates the progress of a wait, whose end is unknown. A thread draws the line, for the first
    /// time after 2 s.
    pub fn of_wait(text: impl Into<String>) -> Self {
        let bar = new_bar(None, WAIT, ProgressDrawTarget::hidden());
        bar.set_message(text.into());
        let drawer = is_shown().then(|| Drawer::start(bar.clone()));
        Self { bar, drawer }
    }

    fn drawn_by_caller(length: u64, template: &str) -> Self {
        let target = match is_shown() {
            true => ProgressDrawTarget::stderr_with_hz(MAX_DRAWS_PER_SECOND),
            false => ProgressDrawTarget::hidden(),
        };
        Self { bar: new_bar(Some(length), template, target), drawer: None }
    }

    /// Sets the number of completed steps.
    pub fn set_steps(&self, steps: usize) {
        self.bar.set_position(steps as u64);
    }

    /// Sets the elapsed part of a time span.
    pub fn set_elapsed(&self, elapsed: Duration) {
        self.bar.set_position(whole_milliseconds(elapsed));
    }

    /// Sets the text after the numbers.
    pub fn set_text(&self, text: impl Into<String>) {
        self.bar.set_message(text.into());
    }

    /// Removes the line while `print` writes other output, and draws it again.
    pub fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }

    /// Removes the line. It is not drawn again.
    pub fn finish(&mut self) {
        if let Some(Drawer { stop, thread }) = self.drawer.take() {
            drop(stop);
            drop(thread.join());
        }
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Drawer {
    fn start(bar: ProgressBar) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let must_go_on = move |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        let thread = thread::spawn(move || {
            if must_go_on(WAIT_SHOWN_AFTER) {
                bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(MAX_DRAWS_PER_SECOND));
                bar.tick();
                while must_go_on(DRAW_INTERVAL) {
                    bar.tick();
                }
            }
        });
        Self { stop, thread }
    }
}

/// Returns true if standard error is a terminal that can show a changing line.
fn is_shown() -> bool {
    let terminal = std::env::var_os("TERM");
    std::io::stderr().is_terminal() && terminal.is_some_and(|kind| kind != "dumb")
}

fn new_bar(length: Option<u64>, template: &str, target: ProgressDrawTarget) -> ProgressBar {
    // A template of this file that is malformed leaves the default style; a test checks them all.
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
        .progress_chars("=> ");
    ProgressBar::with_draw_target(length, target)
        .with_style(style)
        .with_finish(ProgressFinish::AndClear)
}

fn whole_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for template in [STEPS, TIME_SPAN, WAIT] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn values_reach_the_bar_and_the_end_clears_it() {
        let progress = Progress::of_steps(7);
        progress.set_steps(3);
        progress.set_text("text");
        assert_eq!(progress.suspend(|| 5), 5);
        let bar = progress.bar.clone();
        assert_eq!((bar.position(), bar.length(), bar.message().as_str()), (3, Some(7), "text"));
        drop(progress);
        assert!(bar.is_finished());
        let span = Progress::of_time_span(Duration::from_secs(2));
        span.set_elapsed(Duration::from_millis(1500));
        assert_eq!((span.bar.position(), span.bar.length()), (1500, Some(2000)));
    }

    #[test]
    fn drawer_ends_with_its_wait() {
        let bar = new_bar(None, WAIT, ProgressDrawTarget::hidden());
        let wait = Progress { drawer: Some(Drawer::start(bar.clone())), bar };
        let bar = wait.bar.clone();
        drop(wait);
        assert!(bar.is_finished());
    }
}
