//! Executes a random program on one rank. The rank chooses the order of its waits independently of
//! its peers.

use crate::block_moves::BlockLists;
use crate::c_api::{
    BlockArguments, CompletionCounter, GroupHandle, WorkHandle, batch_begin, batch_end,
};
use crate::operation_memory::{GuardedBuffer, OUTPUT_FILL_BYTE, OperationMemory, prepare};
use crate::program::{
    CollectiveCall, CollectiveKind, MessageExchange, PlannedMessage, ProgramStep, Random,
    RandomProgram, ReceiveMatching, SubgroupPlan,
};
use crate::values::contribution;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::thread::{Scope, ScopedJoinHandle};

/// The maximum number of outstanding operations.
const MAX_PENDING: usize = 300;

/// An issued operation that has not completed.
struct PendingOperation {
    work: WorkHandle,
    memory: OperationMemory,
}

/// The state of one rank in one group.
pub(crate) struct RankRunner<'s, 'p> {
    program: &'p RandomProgram,
    /// The scope for further threads.
    scope: &'s Scope<'s, 'p>,
    /// The threads that use subgroups of this group.
    subgroup_threads: Vec<ScopedJoinHandle<'s, ()>>,
    group: GroupHandle,
    rank: usize,
    size: usize,
    random: Random,
    pending: Vec<PendingOperation>,
    /// The buffers of works that were released before their completion, each with a counter of the
    /// completion.
    released_operations: Vec<(OperationMemory, &'static CompletionCounter)>,
    counter: &'static CompletionCounter,
    counted: usize,
}

impl<'s, 'p> RankRunner<'s, 'p> {
    /// Creates the state of a rank in a group of `size` ranks; `number` is the group's number.
    pub(crate) fn new(
        program: &'p RandomProgram,
        group: GroupHandle,
        (rank, size): (usize, usize),
        number: u64,
        scope: &'s Scope<'s, 'p>,
    ) -> Self {
        let seed = program.seed ^ (rank as u64 + 1) << 32 ^ (number + 1) << 48;
        Self {
            program,
            scope,
            subgroup_threads: Vec::new(),
            group,
            rank,
            size,
            random: Random::new(seed),
            pending: Vec::new(),
            released_operations: Vec::new(),
            counter: CompletionCounter::leaked(),
            counted: 0,
        }
    }

    /// Executes the steps and leaves the group.
    pub(crate) fn run(mut self, steps: &'p [ProgramStep]) {
        for step in steps {
            match step {
                ProgramStep::Collective(call) => self.run_collective(call, true),
                ProgramStep::Exchange(exchange) => self.run_exchange(exchange),
                ProgramStep::Batch(calls, exchange) => self.run_batch(calls, exchange),
                ProgramStep::Subgroup(team) => self.start_subgroup(team),
                ProgramStep::Synchronise => self.complete_all_and_synchronise(),
            }
            self.complete_some();
        }
        if self.program.leaves_early {
            self.group.release();
            self.wait_for_all();
        } else {
            self.wait_for_all();
            self.group.release();
        }
        self.counter.wait_for(self.counted);
        for (memory, counter) in &self.released_operations {
            counter.wait_for(1);
            memory.check();
        }
        let mut failed = self.subgroup_threads.into_iter().filter_map(|team| team.join().err());
        if let Some(panic) = failed.next() {
            resume_unwind(panic);
        }
    }

    /// Creates a subgroup with some other ranks and uses it in a further thread.
    fn start_subgroup(&mut self, team: &'p SubgroupPlan) {
        let subgroup_rank = team.members.iter().position(|&member| member == self.rank);
        let made = self.group.create_subgroup(team, self.size, subgroup_rank);
        assert_eq!(made.is_some(), subgroup_rank.is_some(), "{team:?} on rank {}", self.rank);
        let (Some(group), Some(rank)) = (made, subgroup_rank) else { return };
        let (program, scope, size) = (self.program, self.scope, team.members.len());
        let body = move || {
            RankRunner::new(program, group, (rank, size), team.id, scope).run(&team.steps);
        };
        self.subgroup_threads.push(scope.spawn(body));
    }

    /// Makes a blocking or asynchronous collective; in a batch `may_block` is false.
    fn run_collective(&mut self, call: &CollectiveCall, may_block: bool) {
        let mut memory = prepare(self.program.seed, call, self.rank, self.size);
        if call.kind == CollectiveKind::MonitoredBarrier {
            // A monitored barrier blocks, which is impossible in a batch.
            if may_block {
                self.group.monitored_barrier();
            }
            return;
        }
        if memory.strings.is_some() {
            return self.run_byte_strings(call, memory, may_block);
        }
        if !memory.block_lists.sends.is_empty() || !memory.block_lists.recvs.is_empty() {
            return self.run_block_move(call, memory, may_block);
        }
        let send = match call.kind {
            _ if !memory.input.is_empty() => memory.input.as_ptr(),
            CollectiveKind::AllGather => {
                memory.output.at(memory.send_offset(call, self.rank)).cast_const()
            }
            _ => memory.output.at(0).cast_const(),
        };
        let recv = match call.kind {
            CollectiveKind::ReduceScatter => memory.output.at(memory.offset),
            _ => memory.output.at(0),
        };
        if may_block && self.random.one_in(2) {
            self.group.issue_collective(call, send, recv, None);
            memory.check();
            return;
        }
        let mut work = WorkHandle::none();
        self.group.issue_collective(call, send, recv, Some(&mut work));
        self.keep_pending(PendingOperation { work, memory });
    }

    /// Makes a collective with one block per rank.
    fn run_block_move(
        &mut self,
        call: &CollectiveCall,
        mut memory: OperationMemory,
        may_block: bool,
    ) {
        let BlockLists { sends_output, sends, recvs } = std::mem::take(&mut memory.block_lists);
        let input = if sends_output { memory.output.at(0) } else { memory.input.as_mut_ptr() };
        let output = memory.output.at(0);
        let blocks = BlockArguments {
            sends: sends
                .iter()
                .map(|&(offset, _)| input.wrapping_add(offset).cast_const())
                .collect(),
            send_counts: sends.iter().map(|&(_, count)| count).collect(),
            recvs: recvs.iter().map(|&(offset, _)| output.wrapping_add(offset)).collect(),
            recv_counts: recvs.iter().map(|&(_, count)| count).collect(),
        };
        if may_block && self.random.one_in(2) {
            self.group.issue_block_move(call, &blocks, None);
            memory.check();
            return;
        }
        let mut work = WorkHandle::none();
        self.group.issue_block_move(call, &blocks, Some(&mut work));
        self.keep_pending(PendingOperation { work, memory });
    }

    /// Makes a collective of byte strings.
    fn run_byte_strings(
        &mut self,
        call: &CollectiveCall,
        mut memory: OperationMemory,
        may_block: bool,
    ) {
        if may_block && self.random.one_in(2) {
            self.group.strings(call, &mut memory, None);
            memory.check();
            return;
        }
        let mut work = WorkHandle::none();
        self.group.strings(call, &mut memory, Some(&mut work));
        self.keep_pending(PendingOperation { work, memory });
    }

    /// Posts the receives of this rank, then its sends.
    fn run_exchange(&mut self, exchange: &MessageExchange) {
        if exchange.matching == ReceiveMatching::Exactly {
            for message in exchange.received_by(self.rank, &mut self.random) {
                self.receive(&message);
            }
            for message in exchange.sent_by(self.rank, &mut self.random) {
                self.send(&message, true);
            }
            return;
        }
        let receives = self.post_wildcard_receives(exchange);
        for message in exchange.sent_by(self.rank, &mut self.random) {
            self.send(&message, true);
        }
        self.check_wildcard_receives(exchange, receives);
    }

    fn receive(&mut self, message: &PlannedMessage) {
        let PlannedMessage { id, from, tag, dtype, count, .. } = *message;
        let room = count + self.random.below(3);
        let mut memory = OperationMemory {
            description: format!("seed {}, rank {}: {message:?}", self.program.seed, self.rank),
            input: Vec::new(),
            output: GuardedBuffer::new(&vec![OUTPUT_FILL_BYTE; room * dtype.size()]),
            offset: 0,
            expected: contribution(id, from, dtype, 0, count),
            block_lists: BlockLists::default(),
            strings: None,
        };
        memory.expected.resize(room * dtype.size(), OUTPUT_FILL_BYTE);
        let mut work = WorkHandle::none();
        let buffer = memory.output.at(0);
        self.group.receive((Some(from), Some(tag)), (message, room), buffer, Some(&mut work));
        self.keep_pending(PendingOperation { work, memory });
    }

    fn send(&mut self, message: &PlannedMessage, may_block: bool) {
        let input = contribution(message.id, self.rank, message.dtype, 0, message.count);
        if may_block && self.random.one_in(3) {
            self.group.send(message, input.as_ptr(), None);
            return;
        }
        let mut work = WorkHandle::none();
        self.group.send(message, input.as_ptr(), Some(&mut work));
        let what = format!("seed {}, rank {}: sent {message:?}", self.program.seed, self.rank);
        let (output, expected, lists) =
            (GuardedBuffer::new(&[]), Vec::new(), BlockLists::default());
        let memory = OperationMemory {
            description: what,
            input,
            output,
            offset: 0,
            expected,
            block_lists: lists,
            strings: None,
        };
        self.keep_pending(PendingOperation { work, memory });
    }

    /// Posts receives from any source.
    fn post_wildcard_receives(
        &mut self,
        exchange: &MessageExchange,
    ) -> Vec<(PlannedMessage, WorkHandle, GuardedBuffer)> {
        let own = exchange.received_by(self.rank, &mut self.random);
        let room = own.iter().map(|message| message.count).max().unwrap_or(0);
        own.into_iter()
            .map(|message| {
                let tag = (exchange.matching == ReceiveMatching::AnySource).then_some(message.tag);
                let mut output =
                    GuardedBuffer::new(&vec![OUTPUT_FILL_BYTE; room * message.dtype.size()]);
                let mut work = WorkHandle::none();
                let buffer = output.at(0);
                self.group.receive((None, tag), (&message, room), buffer, Some(&mut work));
                (message, work, output)
            })
            .collect()
    }

    /// Waits for the receives in random order, and checks that each has the next message of its
    /// source.
    fn check_wildcard_receives(
        &mut self,
        exchange: &MessageExchange,
        receives: Vec<(PlannedMessage, WorkHandle, GuardedBuffer)>,
    ) {
        let mut order: Vec<usize> = (0..receives.len()).collect();
        self.random.shuffle(&mut order);
        order.iter().for_each(|&index| receives[index].1.wait());
        let own = exchange.messages.iter().filter(|message| message.to == self.rank);
        let mut sent: HashMap<(usize, i32), Vec<PlannedMessage>> = HashMap::new();
        // The check takes the messages from the end.
        own.rev().for_each(|it| sent.entry((it.from, it.tag)).or_default().push(*it));
        for (asked, work, output) in receives {
            let what = format!("seed {}, rank {}: {asked:?}", self.program.seed, self.rank);
            let (source, tag, count) = work.received_message();
            let message = sent.get_mut(&(source, tag)).and_then(Vec::pop);
            let message = message.unwrap_or_else(|| panic!("{what}: {source} sent no more {tag}"));
            assert_eq!(count, message.count, "{what}: {message:?}");
            let mut expected = contribution(message.id, source, message.dtype, 0, count);
            let content = output.content(&what);
            expected.resize(content.len(), OUTPUT_FILL_BYTE);
            assert!(content == expected, "{what}: not what {message:?} holds");
            work.release();
        }
    }

    /// Issues all calls in one batch, in an order that would deadlock without a batch.
    fn run_batch(&mut self, calls: &[CollectiveCall], exchange: &MessageExchange) {
        batch_begin();
        let mut sends = exchange.sent_by(self.rank, &mut self.random);
        let mut receives = exchange.received_by(self.rank, &mut self.random);
        sends.reverse();
        receives.reverse();
        let mut calls = calls.iter();
        let mut remaining = [sends.len(), receives.len(), calls.len()];
        while remaining.iter().sum::<usize>() > 0 {
            let kind = self.random.below(3);
            if remaining[kind] == 0 {
                continue;
            }
            remaining[kind] -= 1;
            match kind {
                0 => sends.pop().iter().for_each(|message| self.send(message, false)),
                1 => receives.pop().iter().for_each(|message| self.receive(message)),
                _ => calls.next().into_iter().for_each(|call| self.run_collective(call, false)),
            }
        }
        if self.random.one_in(2) {
            batch_end(None);
            return;
        }
        let mut work = WorkHandle::none();
        batch_end(Some(&mut work));
        if self.random.one_in(2) {
            work.wait();
        }
        work.release();
    }

    fn keep_pending(&mut self, pending: PendingOperation) {
        if self.random.one_in(4) {
            pending.work.count_completion(self.counter);
            self.counted += 1;
        }
        if self.random.one_in(12) {
            let counter = CompletionCounter::leaked();
            pending.work.count_completion(counter);
            pending.work.release();
            self.released_operations.push((pending.memory, counter));
            return;
        }
        self.pending.push(pending);
    }

    /// Waits, with some probability, for some of the pending operations in random order.
    fn complete_some(&mut self) {
        while self.pending.len() > MAX_PENDING || !self.pending.is_empty() && self.random.one_in(3)
        {
            let index = self.random.below(self.pending.len());
            let work = &self.pending[index].work;
            let done = match self.random.below(3) {
                0 => work.test(),
                1 => work.wait_briefly(),
                _ => {
                    work.wait();
                    true
                }
            };
            if done {
                self.complete(index);
            }
        }
    }

    fn complete(&mut self, index: usize) {
        let PendingOperation { work, memory } = self.pending.swap_remove(index);
        memory.check();
        work.release();
    }

    fn wait_for_all(&mut self) {
        while !self.pending.is_empty() {
            let index = self.random.below(self.pending.len());
            self.pending[index].work.wait();
            self.complete(index);
        }
    }

    /// Completes all operations of the group, on all ranks.
    fn complete_all_and_synchronise(&mut self) {
        self.wait_for_all();
        for (memory, counter) in std::mem::take(&mut self.released_operations) {
            counter.wait_for(1);
            memory.check();
        }
        self.group.issue_collective(&BARRIER, std::ptr::null(), std::ptr::null_mut(), None);
    }
}

const BARRIER: CollectiveCall = CollectiveCall {
    id: 0,
    kind: CollectiveKind::Barrier,
    dtype: crate::values::ElementType::U8,
    op: crate::values::ReductionOperator::Sum,
    count: 0,
    root: 0,
    in_place: false,
};
