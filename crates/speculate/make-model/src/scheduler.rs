//! Machines and their schedule: first come, first served, requested commands before speculative ones (section 5).

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use crate::distribution::sources;
use crate::workload::{Request, Setting};

/// The results of the requests, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Response time, seconds.
    pub responses: Vec<f64>,
    /// Busy time of the machines, seconds.
    pub busy: f64,
    /// Busy time for aborted commands, seconds.
    pub aborted: f64,
    /// Busy machines, once a minute.
    pub utilization: Vec<usize>,
}

/// A command of a request; an aborted one is the first try of that command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    request: usize,
    command: usize,
    aborted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum EventKind {
    /// The command has ended on this machine.
    Done(Task, usize),
    /// The sources reach their last state: the earlier try is aborted.
    Changed(Task),
    /// The command may begin.
    Ready(Task),
    Asked(usize),
    Minute,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at: f64,
    number: u64,
    kind: EventKind,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest: that is to be the earliest.
        other
            .at
            .total_cmp(&self.at)
            .then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Simulates all requests, optimistically or pessimistically.
#[must_use]
pub fn run(requests: &[Request], setting: &Setting, optimistic: bool) -> Outcome {
    let mut simulation = Simulation::new(requests, setting, optimistic);
    simulation.begin();
    while let Some(event) = simulation.events.pop() {
        simulation.now = event.at;
        simulation.happens(event.kind);
    }
    simulation.outcome
}

struct Simulation<'a> {
    requests: &'a [Request],
    setting: &'a Setting,
    optimistic: bool,
    now: f64,
    events: BinaryHeap<Event>,
    numbers: u64,
    /// Waiting commands: requested ones, and speculative ones.
    asked: VecDeque<Task>,
    unasked: VecDeque<Task>,
    /// Running commands with machine and start time.
    running: BTreeMap<Task, (usize, f64)>,
    idle: Vec<usize>,
    /// Number of machines that were needed so far, with unlimited machines.
    machines: usize,
    left: Vec<usize>,
    has_asked: Vec<bool>,
    /// The results so far; a request without a response has no number.
    outcome: Outcome,
}

impl<'a> Simulation<'a> {
    fn new(requests: &'a [Request], setting: &'a Setting, optimistic: bool) -> Self {
        let machines = setting.machines.unwrap_or(0);
        Self {
            requests,
            setting,
            optimistic,
            now: 0.0,
            events: BinaryHeap::new(),
            numbers: 0,
            asked: VecDeque::new(),
            unasked: VecDeque::new(),
            running: BTreeMap::new(),
            idle: (0..machines).rev().collect(),
            machines,
            left: requests
                .iter()
                .map(|request| request.commands.len())
                .collect(),
            has_asked: vec![false; requests.len()],
            outcome: Outcome {
                responses: vec![f64::NAN; requests.len()],
                busy: 0.0,
                aborted: 0.0,
                utilization: Vec::new(),
            },
        }
    }

    fn at(&mut self, at: f64, kind: EventKind) {
        self.numbers += 1;
        let number = self.numbers;
        self.events.push(Event { at, number, kind });
    }

    fn begin(&mut self) {
        for (request, asked) in self.requests.iter().enumerate() {
            self.at(asked.at, EventKind::Asked(request));
            if !self.optimistic {
                continue;
            }
            let sources = sources(asked.commands.len());
            for (command, it) in asked.commands.iter().enumerate() {
                let task = |aborted| Task {
                    request,
                    command,
                    aborted,
                };
                if let Some(at) = it.aborted.filter(|_| command < sources) {
                    self.at(at, EventKind::Ready(task(true)));
                    self.at(it.changed, EventKind::Changed(task(true)));
                }
                if command < sources {
                    self.at(it.changed, EventKind::Ready(task(false)));
                }
            }
        }
        self.at(0.0, EventKind::Minute);
    }

    fn happens(&mut self, kind: EventKind) {
        match kind {
            EventKind::Ready(task) => self.ready(task),
            EventKind::Changed(task) => self.abort(task),
            EventKind::Done(task, machine) => {
                // The task of an aborted command has left the machine before.
                if self
                    .running
                    .get(&task)
                    .is_some_and(|(on, _)| *on == machine)
                {
                    self.leave(task);
                    self.done(task);
                }
            }
            EventKind::Asked(request) => self.ask(request),
            EventKind::Minute => {
                self.outcome.utilization.push(self.running.len());
                if self.now + 60.0 <= self.setting.horizon {
                    self.at(self.now + 60.0, EventKind::Minute);
                }
            }
        }
        self.assign();
    }

    fn ready(&mut self, task: Task) {
        match self.has_asked[task.request] {
            true => self.asked.push_back(task),
            false => self.unasked.push_back(task),
        }
    }

    /// Removes the task from the queues: a request may come in the moment of a change.
    fn abort(&mut self, task: Task) {
        self.unasked.retain(|waiting| *waiting != task);
        self.asked.retain(|waiting| *waiting != task);
        if self.running.contains_key(&task) {
            self.leave(task);
        }
    }

    fn leave(&mut self, task: Task) {
        if let Some((machine, since)) = self.running.remove(&task) {
            self.outcome.busy += self.now - since;
            if task.aborted {
                self.outcome.aborted += self.now - since;
            }
            self.idle.push(machine);
            // Fast machines come first: fast machines have the lowest numbers, and the last entry is taken.
            self.idle.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    fn done(&mut self, task: Task) {
        if task.aborted {
            return;
        }
        let request = task.request;
        self.left[request] -= 1;
        let commands = self.requests[request].commands.len();
        if self.left[request] == 1 && commands > 1 && task.command < commands - 1 {
            let command = commands - 1;
            self.ready(Task {
                request,
                command,
                aborted: false,
            });
        }
        if self.left[request] == 0 && self.has_asked[request] {
            self.respond(request);
        }
    }

    fn ask(&mut self, request: usize) {
        self.has_asked[request] = true;
        if !self.optimistic {
            for command in 0..sources(self.requests[request].commands.len()) {
                self.asked.push_back(Task {
                    request,
                    command,
                    aborted: false,
                });
            }
            return;
        }
        // Requested commands first.
        let of_request = |task: &Task| task.request == request;
        self.asked
            .extend(self.unasked.iter().copied().filter(of_request));
        self.unasked.retain(|task| task.request != request);
        if self.left[request] == 0 {
            self.respond(request);
        }
    }

    /// Ends a request. A mandate proceeds in parallel with running commands (section 3.4), and the mandates of a
    /// request with each other: otherwise the figures differ from those of the paper.
    fn respond(&mut self, request: usize) {
        let asked = self.requests[request].at;
        let mandate = if self.optimistic {
            self.setting.mandate
        } else {
            0.0
        };
        self.outcome.responses[request] = (self.now - asked).max(mandate);
    }

    fn assign(&mut self) {
        while !(self.asked.is_empty() && self.unasked.is_empty()) {
            if self.idle.is_empty() && self.setting.machines.is_none() {
                self.idle.push(self.machines);
                self.machines += 1;
            }
            let Some(machine) = self.idle.pop() else {
                return;
            };
            let Some(task) = self.asked.pop_front().or_else(|| self.unasked.pop_front()) else {
                return;
            };
            let time = self.requests[task.request].commands[task.command].time;
            let conceal = if self.optimistic {
                self.setting.conceal
            } else {
                0.0
            };
            let faster = if machine < self.setting.fast {
                2.0
            } else {
                1.0
            };
            let takes = (time + conceal) / self.setting.speed / faster;
            self.running.insert(task, (machine, self.now));
            self.at(self.now + takes, EventKind::Done(task, machine));
        }
    }
}
