//! Executes a random program on one rank. The rank chooses the order of its waits independently of
//! its peers.

use crate::calls::{Blocks, Counter, Group, Work, batch_begin, batch_end};
use crate::moves::{self, Lists};
use crate::program::{Asked, Collective, Exchange, Kind, Message, Program, Random, Step, Team};
use crate::strings::{self, Expected};
use crate::values::{contribution, reduction};
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::thread::{Scope, ScopedJoinHandle};

/// The guard bytes before and after every buffer that a call writes.
const GUARD: [u8; 32] = [0xa5; 32];
/// The content of an output before the call.
pub(crate) const RUBBISH: u8 = 0x77;
/// The maximum number of outstanding operations.
const MOST_PENDING: usize = 300;

/// A buffer between guard bytes.
pub(crate) struct Guarded(Vec<u8>);

impl Guarded {
    pub(crate) fn new(content: &[u8]) -> Self {
        Self([&GUARD[..], content, &GUARD[..]].concat())
    }

    fn at(&mut self, offset: usize) -> *mut u8 {
        self.0[GUARD.len() + offset..].as_mut_ptr()
    }

    /// Checks the guards and returns the content; the operation must have completed.
    fn content(&self, what: &str) -> &[u8] {
        let (before, rest) = self.0.split_at(GUARD.len());
        let (content, after) = rest.split_at(rest.len() - GUARD.len());
        assert!(before == GUARD && after == GUARD, "{what}: wrote outside the buffer");
        content
    }
}

/// The buffers of an operation and its expected result.
pub(crate) struct Memory {
    pub(crate) what: String,
    /// The input, which the library only reads.
    pub(crate) input: Vec<u8>,
    pub(crate) output: Guarded,
    pub(crate) offset: usize,
    pub(crate) expected: Vec<u8>,
    /// The blocks of a collective with one block per rank.
    pub(crate) lists: Lists,
    /// The expected byte strings, which arrive in memory of the library.
    pub(crate) strings: Option<Expected>,
}

impl Memory {
    fn check(&self) {
        self.strings.iter().for_each(|strings| strings.check(&self.what));
        let got = &self.output.content(&self.what)[self.offset..][..self.expected.len()];
        if got != self.expected {
            let at = got.iter().zip(&self.expected).position(|(a, b)| a != b);
            panic!("{}: first wrong byte at {at:?} of {}", self.what, got.len());
        }
    }
}

/// An issued operation that has not completed.
struct Pending {
    work: Work,
    memory: Memory,
}

/// The state of one rank in one group.
pub(crate) struct Runner<'s, 'p> {
    program: &'p Program,
    /// The scope for further threads.
    scope: &'s Scope<'s, 'p>,
    /// The threads that use subgroups of this group.
    teams: Vec<ScopedJoinHandle<'s, ()>>,
    group: Group,
    rank: usize,
    size: usize,
    random: Random,
    pending: Vec<Pending>,
    /// The buffers of works that were released before their completion, each with a counter of the
    /// completion.
    orphans: Vec<(Memory, &'static Counter)>,
    counter: &'static Counter,
    counted: usize,
}

impl<'s, 'p> Runner<'s, 'p> {
    /// Creates the state of a rank in a group of `size` ranks; `number` is the group's number.
    pub(crate) fn new(
        program: &'p Program,
        group: Group,
        (rank, size): (usize, usize),
        number: u64,
        scope: &'s Scope<'s, 'p>,
    ) -> Self {
        let seed = program.seed ^ (rank as u64 + 1) << 32 ^ (number + 1) << 48;
        Self {
            program,
            scope,
            teams: Vec::new(),
            group,
            rank,
            size,
            random: Random::new(seed),
            pending: Vec::new(),
            orphans: Vec::new(),
            counter: Counter::leaked(),
            counted: 0,
        }
    }

    /// Executes the steps and leaves the group.
    pub(crate) fn run(mut self, steps: &'p [Step]) {
        for step in steps {
            match step {
                Step::Collective(call) => self.collective(call, true),
                Step::Exchange(exchange) => self.exchange(exchange),
                Step::Batch(calls, exchange) => self.batch(calls, exchange),
                Step::Team(team) => self.team(team),
                Step::Settle => self.settle(),
            }
            self.look_around();
        }
        if self.program.leaves_early {
            self.group.release();
            self.wait_for_all();
        } else {
            self.wait_for_all();
            self.group.release();
        }
        self.counter.wait_for(self.counted);
        for (memory, counter) in &self.orphans {
            counter.wait_for(1);
            memory.check();
        }
        let mut failed = self.teams.into_iter().filter_map(|team| team.join().err());
        if let Some(panic) = failed.next() {
            resume_unwind(panic);
        }
    }

    /// Creates a subgroup with some other ranks and uses it in a further thread.
    fn team(&mut self, team: &'p Team) {
        let place = team.members.iter().position(|&member| member == self.rank);
        let made = self.group.team(team, self.size, place);
        assert_eq!(made.is_some(), place.is_some(), "{team:?} on rank {}", self.rank);
        let (Some(group), Some(rank)) = (made, place) else { return };
        let (program, scope, size) = (self.program, self.scope, team.members.len());
        let body = move || {
            Runner::new(program, group, (rank, size), team.id, scope).run(&team.steps);
        };
        self.teams.push(scope.spawn(body));
    }

    /// Makes a blocking or asynchronous collective; in a batch `may_block` is false.
    fn collective(&mut self, call: &Collective, may_block: bool) {
        let mut memory = prepare(self.program.seed, call, self.rank, self.size);
        if call.kind == Kind::MonitoredBarrier {
            // A monitored barrier blocks, which is impossible in a batch.
            if may_block {
                self.group.monitored_barrier();
            }
            return;
        }
        if memory.strings.is_some() {
            return self.strings(call, memory, may_block);
        }
        if !memory.lists.sends.is_empty() || !memory.lists.recvs.is_empty() {
            return self.moves(call, memory, may_block);
        }
        let send = match call.kind {
            _ if !memory.input.is_empty() => memory.input.as_ptr(),
            Kind::AllGather => {
                memory.output.at(memory.offset_of_send(call, self.rank)).cast_const()
            }
            _ => memory.output.at(0).cast_const(),
        };
        let recv = match call.kind {
            Kind::ReduceScatter => memory.output.at(memory.offset),
            _ => memory.output.at(0),
        };
        if may_block && self.random.one_in(2) {
            self.group.collective(call, send, recv, None);
            memory.check();
            return;
        }
        let mut work = Work::none();
        self.group.collective(call, send, recv, Some(&mut work));
        self.keep(Pending { work, memory });
    }

    /// Makes a collective with one block per rank.
    fn moves(&mut self, call: &Collective, mut memory: Memory, may_block: bool) {
        let Lists { sends_output, sends, recvs } = std::mem::take(&mut memory.lists);
        let input = if sends_output { memory.output.at(0) } else { memory.input.as_mut_ptr() };
        let output = memory.output.at(0);
        let blocks = Blocks {
            sends: sends.iter().map(|&(place, _)| input.wrapping_add(place).cast_const()).collect(),
            send_counts: sends.iter().map(|&(_, count)| count).collect(),
            recvs: recvs.iter().map(|&(place, _)| output.wrapping_add(place)).collect(),
            recv_counts: recvs.iter().map(|&(_, count)| count).collect(),
        };
        if may_block && self.random.one_in(2) {
            self.group.moves(call, &blocks, None);
            memory.check();
            return;
        }
        let mut work = Work::none();
        self.group.moves(call, &blocks, Some(&mut work));
        self.keep(Pending { work, memory });
    }

    /// Makes a collective of byte strings.
    fn strings(&mut self, call: &Collective, mut memory: Memory, may_block: bool) {
        if may_block && self.random.one_in(2) {
            self.group.strings(call, &mut memory, None);
            memory.check();
            return;
        }
        let mut work = Work::none();
        self.group.strings(call, &mut memory, Some(&mut work));
        self.keep(Pending { work, memory });
    }

    /// Posts the receives of this rank, then its sends.
    fn exchange(&mut self, exchange: &Exchange) {
        if exchange.asked == Asked::Exactly {
            for message in exchange.received_by(self.rank, &mut self.random) {
                self.receive(&message);
            }
            for message in exchange.sent_by(self.rank, &mut self.random) {
                self.send(&message, true);
            }
            return;
        }
        let asked = self.ask(exchange);
        for message in exchange.sent_by(self.rank, &mut self.random) {
            self.send(&message, true);
        }
        self.check_asked(exchange, asked);
    }

    fn receive(&mut self, message: &Message) {
        let Message { id, from, tag, dtype, count, .. } = *message;
        let room = count + self.random.below(3);
        let mut memory = Memory {
            what: format!("seed {}, rank {}: {message:?}", self.program.seed, self.rank),
            input: Vec::new(),
            output: Guarded::new(&vec![RUBBISH; room * dtype.size()]),
            offset: 0,
            expected: contribution(id, from, dtype, 0, count),
            lists: Lists::default(),
            strings: None,
        };
        memory.expected.resize(room * dtype.size(), RUBBISH);
        let mut work = Work::none();
        let place = memory.output.at(0);
        self.group.receive((Some(from), Some(tag)), (message, room), place, Some(&mut work));
        self.keep(Pending { work, memory });
    }

    fn send(&mut self, message: &Message, may_block: bool) {
        let input = contribution(message.id, self.rank, message.dtype, 0, message.count);
        if may_block && self.random.one_in(3) {
            self.group.send(message, input.as_ptr(), None);
            return;
        }
        let mut work = Work::none();
        self.group.send(message, input.as_ptr(), Some(&mut work));
        let what = format!("seed {}, rank {}: sent {message:?}", self.program.seed, self.rank);
        let (output, expected, lists) = (Guarded::new(&[]), Vec::new(), Lists::default());
        let memory = Memory { what, input, output, offset: 0, expected, lists, strings: None };
        self.keep(Pending { work, memory });
    }

    /// Posts receives from any source.
    fn ask(&mut self, exchange: &Exchange) -> Vec<(Message, Work, Guarded)> {
        let own = exchange.received_by(self.rank, &mut self.random);
        let room = own.iter().map(|message| message.count).max().unwrap_or(0);
        own.into_iter()
            .map(|message| {
                let tag = (exchange.asked == Asked::FromAnybody).then_some(message.tag);
                let mut output = Guarded::new(&vec![RUBBISH; room * message.dtype.size()]);
                let mut work = Work::none();
                let place = output.at(0);
                self.group.receive((None, tag), (&message, room), place, Some(&mut work));
                (message, work, output)
            })
            .collect()
    }

    /// Waits for the receives in random order, and checks that each has the next message of its
    /// source.
    fn check_asked(&mut self, exchange: &Exchange, asked: Vec<(Message, Work, Guarded)>) {
        let mut order: Vec<usize> = (0..asked.len()).collect();
        self.random.shuffle(&mut order);
        order.iter().for_each(|&index| asked[index].1.wait());
        let own = exchange.messages.iter().filter(|message| message.to == self.rank);
        let mut sent: HashMap<(usize, i32), Vec<Message>> = HashMap::new();
        // The check takes the messages from the end.
        own.rev().for_each(|it| sent.entry((it.from, it.tag)).or_default().push(*it));
        for (asked, work, output) in asked {
            let what = format!("seed {}, rank {}: {asked:?}", self.program.seed, self.rank);
            let (source, tag, count) = work.received();
            let message = sent.get_mut(&(source, tag)).and_then(Vec::pop);
            let message = message.unwrap_or_else(|| panic!("{what}: {source} sent no more {tag}"));
            assert_eq!(count, message.count, "{what}: {message:?}");
            let mut expected = contribution(message.id, source, message.dtype, 0, count);
            let content = output.content(&what);
            expected.resize(content.len(), RUBBISH);
            assert!(content == expected, "{what}: not what {message:?} holds");
            work.release();
        }
    }

    /// Issues all calls in one batch, in an order that would deadlock without a batch.
    fn batch(&mut self, calls: &[Collective], exchange: &Exchange) {
        batch_begin();
        let mut sends = exchange.sent_by(self.rank, &mut self.random);
        let mut receives = exchange.received_by(self.rank, &mut self.random);
        sends.reverse();
        receives.reverse();
        let mut calls = calls.iter();
        let mut left = [sends.len(), receives.len(), calls.len()];
        while left.iter().sum::<usize>() > 0 {
            let kind = self.random.below(3);
            if left[kind] == 0 {
                continue;
            }
            left[kind] -= 1;
            match kind {
                0 => sends.pop().iter().for_each(|message| self.send(message, false)),
                1 => receives.pop().iter().for_each(|message| self.receive(message)),
                _ => calls.next().into_iter().for_each(|call| self.collective(call, false)),
            }
        }
        if self.random.one_in(2) {
            batch_end(None);
            return;
        }
        let mut work = Work::none();
        batch_end(Some(&mut work));
        if self.random.one_in(2) {
            work.wait();
        }
        work.release();
    }

    fn keep(&mut self, pending: Pending) {
        if self.random.one_in(4) {
            pending.work.count_in(self.counter);
            self.counted += 1;
        }
        if self.random.one_in(12) {
            let counter = Counter::leaked();
            pending.work.count_in(counter);
            pending.work.release();
            self.orphans.push((pending.memory, counter));
            return;
        }
        self.pending.push(pending);
    }

    /// Waits, with some probability, for some of the pending operations in random order.
    fn look_around(&mut self) {
        while self.pending.len() > MOST_PENDING || !self.pending.is_empty() && self.random.one_in(3)
        {
            let index = self.random.below(self.pending.len());
            let work = &self.pending[index].work;
            let done = match self.random.below(3) {
                0 => work.test(),
                1 => work.wait_a_little(),
                _ => {
                    work.wait();
                    true
                }
            };
            if done {
                self.finish(index);
            }
        }
    }

    fn finish(&mut self, index: usize) {
        let Pending { work, memory } = self.pending.swap_remove(index);
        memory.check();
        work.release();
    }

    fn wait_for_all(&mut self) {
        while !self.pending.is_empty() {
            let index = self.random.below(self.pending.len());
            self.pending[index].work.wait();
            self.finish(index);
        }
    }

    /// Completes all operations of the group, on all ranks.
    fn settle(&mut self) {
        self.wait_for_all();
        for (memory, counter) in std::mem::take(&mut self.orphans) {
            counter.wait_for(1);
            memory.check();
        }
        self.group.collective(&BARRIER, std::ptr::null(), std::ptr::null_mut(), None);
    }
}

const BARRIER: Collective = Collective {
    id: 0,
    kind: Kind::Barrier,
    dtype: crate::values::Type::U8,
    op: crate::values::Op::Sum,
    count: 0,
    root: 0,
    in_place: false,
};

impl Memory {
    /// Returns the offset of the input in the output for an all-gather in place.
    fn offset_of_send(&self, call: &Collective, rank: usize) -> usize {
        rank * call.count * call.dtype.size()
    }
}

/// Returns the buffers of a collective on one rank.
fn prepare(seed: u64, call: &Collective, rank: usize, size: usize) -> Memory {
    let Collective { id, kind, dtype, op, count, root, in_place } = *call;
    let bytes = count * dtype.size();
    let what = format!("seed {seed}, rank {rank} of {size}: {call:?}");
    let own = |count| contribution(id, rank, dtype, 0, count);
    let of_all = |from| reduction(id, size, (dtype, op), from, count);
    let rubbish = |len| vec![RUBBISH; len];
    // The values: the input if it is separate, the initial output, and the offset and the content
    // of the expected result.
    let (input, output, offset, expected) = match kind {
        Kind::AllReduce if in_place => (Vec::new(), own(count), 0, of_all(0)),
        Kind::AllReduce => (own(count), rubbish(bytes), 0, of_all(0)),
        Kind::Reduce if rank != root => (own(count), Vec::new(), 0, Vec::new()),
        Kind::Reduce if in_place => (Vec::new(), own(count), 0, of_all(0)),
        Kind::Reduce => (own(count), rubbish(bytes), 0, of_all(0)),
        Kind::Broadcast => {
            let held = if rank == root { own(count) } else { rubbish(bytes) };
            (Vec::new(), held, 0, contribution(id, root, dtype, 0, count))
        }
        Kind::AllGather => {
            let blocks = (0..size).flat_map(|rank| contribution(id, rank, dtype, 0, count));
            let mut held = rubbish(size * bytes);
            if in_place {
                held[rank * bytes..][..bytes].copy_from_slice(&own(count));
            }
            (if in_place { Vec::new() } else { own(count) }, held, 0, blocks.collect())
        }
        Kind::ReduceScatter if in_place => {
            (Vec::new(), own(size * count), rank * bytes, of_all(rank * count))
        }
        Kind::ReduceScatter => (own(size * count), rubbish(bytes), 0, of_all(rank * count)),
        Kind::Barrier | Kind::MonitoredBarrier => (Vec::new(), Vec::new(), 0, Vec::new()),
        Kind::BroadcastBytes | Kind::AllGatherBytes | Kind::GatherBytes | Kind::ScatterBytes => {
            return strings::prepare(what, call, rank, size);
        }
        _ => return moves::prepare(what, call, rank, size),
    };
    let lists = Lists::default();
    Memory { what, input, output: Guarded::new(&output), offset, expected, lists, strings: None }
}
