//! Machines and what they do: first come, first served, what was asked for before what was not (section 5).

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use crate::distribution::sources;
use crate::workload::{Request, Setting};

/// What became of each request, in the order in which they were made.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Seconds from the request until all was there.
    pub responses: Vec<f64>,
    /// Seconds that machines were busy.
    pub busy: f64,
    /// Of those, what was begun and aborted.
    pub aborted: f64,
    /// Busy machines, once a minute.
    pub utilization: Vec<usize>,
}

/// One command of one request; an aborted one is that command's first try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    request: usize,
    command: usize,
    aborted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    /// A machine is done with it.
    Done(Task, usize),
    /// Its sources are as they will be when it is asked for: the try before is aborted.
    Changed(Task),
    /// It may begin.
    Ready(Task),
    Asked(usize),
    Minute,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at: f64,
    number: u64,
    what: What,
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

/// All requests, one way or the other.
#[must_use]
pub fn run(requests: &[Request], setting: &Setting, optimistic: bool) -> Outcome {
    let mut world = World::new(requests, setting, optimistic);
    world.begin();
    while let Some(event) = world.events.pop() {
        world.now = event.at;
        world.happens(event.what);
    }
    world.outcome
}

struct World<'a> {
    requests: &'a [Request],
    setting: &'a Setting,
    optimistic: bool,
    now: f64,
    events: BinaryHeap<Event>,
    numbers: u64,
    /// Waiting: what was asked for, and what was not.
    asked: VecDeque<Task>,
    unasked: VecDeque<Task>,
    /// What runs where, and since when.
    running: BTreeMap<Task, (usize, f64)>,
    idle: Vec<usize>,
    /// Machines that were needed so far, where there are as many as that.
    machines: usize,
    left: Vec<usize>,
    has_asked: Vec<bool>,
    /// What has become of all so far; a request without an answer has no number.
    outcome: Outcome,
}

impl<'a> World<'a> {
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

    fn at(&mut self, at: f64, what: What) {
        self.numbers += 1;
        let number = self.numbers;
        self.events.push(Event { at, number, what });
    }

    fn begin(&mut self) {
        for (request, asked) in self.requests.iter().enumerate() {
            self.at(asked.at, What::Asked(request));
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
                    self.at(at, What::Ready(task(true)));
                    self.at(it.changed, What::Changed(task(true)));
                }
                if command < sources {
                    self.at(it.changed, What::Ready(task(false)));
                }
            }
        }
        self.at(0.0, What::Minute);
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Ready(task) => self.ready(task),
            What::Changed(task) => self.abort(task),
            What::Done(task, machine) => {
                // One that was aborted has left the machine before.
                if self
                    .running
                    .get(&task)
                    .is_some_and(|(on, _)| *on == machine)
                {
                    self.leave(task);
                    self.done(task);
                }
            }
            What::Asked(request) => self.ask(request),
            What::Minute => {
                self.outcome.utilization.push(self.running.len());
                if self.now + 60.0 <= self.setting.horizon {
                    self.at(self.now + 60.0, What::Minute);
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

    /// In whichever queue it waits: it may be asked for in the moment in which it changes.
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
            // The fast ones first: they have the lowest numbers, and the last is taken.
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
        // What waits for a machine goes before what nobody has asked for.
        let of_request = |task: &Task| task.request == request;
        self.asked
            .extend(self.unasked.iter().copied().filter(of_request));
        self.unasked.retain(|task| task.request != request);
        if self.left[request] == 0 {
            self.respond(request);
        }
    }

    /// All is done. A mandate proceeds in parallel with what still runs (section 3.4), and those of one request with
    /// each other: the paper's figures do not come out where each command's costs a second by itself.
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
            self.at(self.now + takes, What::Done(task, machine));
        }
    }
}
