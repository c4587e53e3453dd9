//! Who asks for what, and when.

use rand::Rng;

use crate::distribution::{Commands, LogNormal, exponential};

/// What is drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// Commands of a request (figure 5).
    pub commands: Commands,
    /// Seconds of a command of a request with several (figure 3).
    pub times: LogNormal,
    /// Of the only one of a request: many end early with an error (section 4.3).
    pub single: LogNormal,
    /// Seconds between a change of a target's sources and the request (figure 2).
    pub out_of_date: LogNormal,
}

/// What is varied (sections 6.1 to 6.6).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// Machines; `None`: as many as are needed.
    pub machines: Option<usize>,
    /// Of those, how many are twice as fast.
    pub fast: usize,
    /// Who asks.
    pub users: usize,
    /// Mean seconds between a user's requests.
    pub think: f64,
    /// Seconds that are simulated.
    pub horizon: f64,
    /// By how much all machines are faster than those that were measured.
    pub speed: f64,
    /// Out-of-date times are multiplied by it.
    pub out_of_date: f64,
    /// Commands that are begun once more than is needed, and aborted, per command.
    pub aborted: f64,
    /// Seconds that concealment adds to a command; they shrink with `speed`.
    pub conceal: f64,
    /// Seconds that a mandate takes.
    pub mandate: f64,
}

/// One command of a request: the last one needs what all others make (figure 4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Command {
    /// Seconds that it runs on a machine of those that were measured.
    pub time: f64,
    /// When its sources were changed last.
    pub changed: f64,
    /// When an encapsulation of it was begun that `changed` made worthless.
    pub aborted: Option<f64>,
}

/// What is asked for at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// When.
    pub at: f64,
    /// What it takes.
    pub commands: Vec<Command>,
}

impl Setting {
    /// The paper's baseline, with this many users.
    #[must_use]
    pub fn baseline(users: usize) -> Self {
        Self {
            machines: Some(10),
            fast: 0,
            users,
            think: 360.0,
            horizon: 36_000.0,
            speed: 1.0,
            out_of_date: 1.0,
            aborted: 0.39,
            conceal: 2.0,
            mandate: 1.0,
        }
    }
}

impl Workload {
    /// Fitted to the figures that the paper states.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            commands: Commands::of(0.35, 0.25, 4.39),
            times: LogNormal::of(22.0, 30.0),
            single: LogNormal::of(12.0, 18.0),
            out_of_date: LogNormal::of(32.0, 378.0),
        }
    }

    /// All requests, by time.
    pub fn requests(&self, setting: &Setting, random: &mut impl Rng) -> Vec<Request> {
        let mut requests = Vec::new();
        for _ in 0..setting.users {
            let mut before = 0.0;
            loop {
                let at = before + exponential(setting.think, random);
                if at > setting.horizon {
                    break;
                }
                requests.push(self.request(before, at, setting, random));
                before = at;
            }
        }
        requests.sort_by(|a, b| a.at.total_cmp(&b.at));
        requests
    }

    /// Nothing is changed before the last request was made.
    fn request(&self, before: f64, at: f64, setting: &Setting, random: &mut impl Rng) -> Request {
        let count = self.commands.draw(random);
        let times = if count == 1 { self.single } else { self.times };
        let mut commands: Vec<_> = (0..count)
            .map(|_| {
                let ago = self.out_of_date.draw(random) * setting.out_of_date;
                let changed = (at - ago).max(before);
                let aborted = (random.random::<f64>() < setting.aborted).then(|| {
                    let ago = self.out_of_date.draw(random) * setting.out_of_date;
                    (changed - ago).max(before)
                });
                Command {
                    time: times.draw(random),
                    changed,
                    aborted,
                }
            })
            .collect();
        // The last waits for the others.
        if let [others @ .., last] = &mut commands[..]
            && let Some(first) = others
                .iter()
                .map(|command| command.changed)
                .reduce(f64::min)
        {
            last.changed = first;
        }
        Request { at, commands }
    }
}
