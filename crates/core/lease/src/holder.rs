//! Asking for leases, and knowing until when a host may speak. Runs in `serve`, and in a standby.

use std::{collections::VecDeque, time::Duration};

use protocol::control::{Former, LeaseAnswer, LeaseRequest, Standing, Verdict};

use crate::Terms;

/// Requests whose answers are waited for; of more, the oldest are forgotten.
const OUTSTANDING_MAX: usize = 16;

/// Whether the host may speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speech {
    /// The host may not send for the service.
    Silent,
    /// The host may send up to this time of the host's clock. The time may be over already.
    Until(Duration),
    /// The host needs no lease: no standby can take over.
    Free,
}

impl Speech {
    /// Whether the host may send at `now`.
    #[must_use]
    pub fn at(self, now: Duration) -> bool {
        match self {
            Self::Silent => false,
            Self::Until(end) => now < end,
            Self::Free => true,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    First,
    Standby { effective_in: Option<u32> },
    Holds { epoch: u32, speech: Speech },
    Released { epoch: u32 },
    Superseded { epoch: u32 },
}

/// An instance of a service on this host, with the granted epoch or lease.
///
/// The caller sends the result of [`Holder::ask`] at [`Holder::asks_at`], and hands over each answer. Before the next
/// request, the caller must make the data plane enforce [`Holder::speech`], because the request confirms this to the
/// granter.
#[derive(Debug, Clone)]
pub struct Holder {
    service: String,
    instance: u64,
    host: u64,
    preference: u16,
    terms: Terms,
    role: Role,
    /// Of the logger that was heard last.
    logger_incarnation: u64,
    /// Of the newest request.
    number: u64,
    /// Of the newest request whose answer was heard.
    answered: u64,
    asked_at: Option<Duration>,
    /// When the present lease of another host may be over, as a standby was told.
    takeover_at: Option<Duration>,
    /// Another host serves as soon as this host is silent.
    standby: bool,
    /// The end of the epoch before the granted epoch.
    former: Former,
    /// Numbers of requests and the times of sending, in order.
    outstanding: VecDeque<(u64, Duration)>,
}

impl Holder {
    /// A host that serves no service yet, and takes part as the instance `instance`. With `first` the operator vouches
    /// that no host serves; otherwise the host is a standby. Lower values of `preference` are preferred.
    /// [`LeaseRequest`] explains `instance` and `host`.
    #[must_use]
    pub fn new(
        service: String,
        (host, instance): (u64, u64),
        preference: u16,
        first: bool,
        terms: Terms,
    ) -> Self {
        Self {
            service,
            instance,
            host,
            preference,
            terms,
            role: if first {
                Role::First
            } else {
                Role::Standby { effective_in: None }
            },
            logger_incarnation: 0,
            number: 0,
            answered: 0,
            asked_at: None,
            takeover_at: None,
            standby: false,
            former: Former::Unknown,
            outstanding: VecDeque::new(),
        }
    }

    /// A new `serve` of an instance whose `serve` has died. The data plane still has the state: `epoch` was granted,
    /// and `speech` is enforced. Answers to earlier requests no longer count.
    #[must_use]
    pub fn resumed(self, epoch: u32, speech: Speech) -> Self {
        Self {
            role: Role::Holds { epoch, speech },
            ..self
        }
    }

    /// When the next request is to be made; at once, if there was none.
    #[must_use]
    pub fn asks_at(&self) -> Duration {
        let interval = match self.role {
            // The next epoch may be due at any time.
            Role::First | Role::Standby { .. } => self.terms.eager_interval(),
            _ => self.terms.interval(),
        };
        let next = self
            .asked_at
            .map_or(Duration::ZERO, |asked| asked.saturating_add(interval));
        self.takeover_at.map_or(next, |at| at.min(next))
    }

    /// Makes a request, to be sent not before `now`. `None` once superseded: the host must take part again as another
    /// instance.
    pub fn ask(&mut self, now: Duration) -> Option<LeaseRequest> {
        let standing = match self.role {
            Role::First => Standing::First,
            Role::Standby { effective_in } => Standing::Standby { effective_in },
            Role::Holds { epoch, speech } => Standing::Holds {
                epoch,
                speaks: speech.at(now),
                leased: speech != Speech::Free,
                answered: self.answered,
            },
            Role::Released { epoch } => Standing::Released { epoch },
            Role::Superseded { .. } => return None,
        };
        // Above the numbers of an earlier `serve` of this instance, which asked at most once per nanosecond.
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.number = self.number.saturating_add(1).max(nanos);
        self.asked_at = Some(now);
        self.takeover_at = None;
        if self.outstanding.len() == OUTSTANDING_MAX {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back((self.number, now));
        Some(LeaseRequest {
            instance: self.instance,
            host: self.host,
            number: self.number,
            life: self.logger_incarnation,
            preference: self.preference,
            standing,
            service: self.service.clone(),
        })
    }

    /// Takes an answer that arrived at `now`. Returns whether [`Holder::speech`] or [`Holder::epoch`] may have
    /// changed.
    ///
    /// Answers count in the order of the requests: an answer to an older request than the newest answered request is
    /// ignored.
    pub fn on_answer(&mut self, now: Duration, answer: &LeaseAnswer) -> bool {
        if answer.instance != self.instance {
            return false;
        }
        let known = self.outstanding.iter().find(|(n, _)| *n == answer.number);
        let Some(&(number, sent)) = known else {
            return false;
        };
        if answer.life != self.logger_incarnation {
            // Another logger, or the same logger after a death. Answers of the former logger that are under way,
            // perhaps without a lease, belong to requests up to here: no such answer counts.
            self.logger_incarnation = answer.life;
            self.outstanding.clear();
            self.asked_at = None;
            return false;
        }
        self.outstanding.retain(|(other, _)| *other > number);
        self.standby = matches!(answer.verdict, Verdict::Lease { standby: true, .. });
        if let Verdict::Lease {
            term_us, former, ..
        } = answer.verdict
        {
            self.former = former;
            // The logger's term counts, and sets the interval of requests.
            let term = Duration::from_micros(u64::from(term_us));
            self.terms.term = term.max(Terms::SHORTEST_TERM);
        }
        self.takeover_at = match answer.verdict {
            Verdict::Standby { again_us, .. } if again_us > 0 => {
                Some(now.saturating_add(Duration::from_micros(again_us.into())))
            }
            _ => None,
        };
        self.answered = number;
        let before = self.role;
        self.role = self.after(now, sent, answer.verdict);
        self.role != before
    }

    fn after(&self, now: Duration, sent: Duration, verdict: Verdict) -> Role {
        match (self.role, verdict) {
            (role @ (Role::Released { .. } | Role::Superseded { .. }), verdict) => match verdict {
                Verdict::Superseded { epoch } => Role::Superseded { epoch },
                _ => role,
            },
            (_, Verdict::Superseded { epoch }) => Role::Superseded { epoch },
            (role, Verdict::Wait) => role,
            (role, Verdict::Lease { epoch, term_us, .. }) => {
                let term = Duration::from_micros(u64::from(term_us));
                let end = self.terms.speaks_until(sent, term);
                let speech = match role {
                    // A late answer: the lease would silence the host without need. To stay without a lease is safe,
                    // because the next request says that the host is not leased.
                    Role::Holds {
                        speech: Speech::Free,
                        ..
                    } if end <= now => Speech::Free,
                    Role::Holds {
                        speech: Speech::Until(earlier),
                        ..
                    } => Speech::Until(end.max(earlier)),
                    _ => Speech::Until(end),
                };
                Role::Holds { epoch, speech }
            }
            (_, Verdict::Free { epoch }) => Role::Holds {
                epoch,
                speech: Speech::Free,
            },
            (
                Role::First | Role::Standby { .. },
                Verdict::Standby {
                    epoch, effective, ..
                },
            ) => {
                let earlier = match self.role {
                    Role::Standby { effective_in } => effective_in,
                    _ => None,
                };
                Role::Standby {
                    effective_in: if effective { Some(epoch) } else { earlier },
                }
            }
            // From a granter without memory of the grant: the host falls silent when the lease expires.
            (role @ Role::Holds { .. }, Verdict::Standby { .. }) => role,
        }
    }

    /// Gives the epoch up, or the role of a standby. The caller has silenced the data plane for good: this instance
    /// sends no more packets. Later requests report the release to the granter until the granter answers.
    pub fn release(&mut self) {
        let epoch = match self.role {
            Role::Holds { epoch, .. } => epoch,
            Role::First | Role::Standby { .. } => 0,
            Role::Released { .. } | Role::Superseded { .. } => return,
        };
        self.role = Role::Released { epoch };
        self.asked_at = None;
    }

    /// Whether another host would serve as soon as this host is silent, as far as the granter knows.
    #[must_use]
    pub const fn has_standby(&self) -> bool {
        self.standby
    }

    /// The end of the epoch before, as granted with the present epoch.
    #[must_use]
    pub const fn former(&self) -> Former {
        self.former
    }

    /// Whether the host may speak.
    #[must_use]
    pub const fn speech(&self) -> Speech {
        match self.role {
            Role::Holds { speech, .. } => speech,
            _ => Speech::Silent,
        }
    }

    /// The epoch that this instance holds, if any.
    #[must_use]
    pub const fn epoch(&self) -> Option<u32> {
        match self.role {
            Role::Holds { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// The newest epoch of another host in which this host was told that a takeover is possible.
    #[must_use]
    pub const fn stands_by(&self) -> Option<u32> {
        match self.role {
            Role::Standby { effective_in } => effective_in,
            _ => None,
        }
    }

    /// Between two requests.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.terms.interval()
    }

    /// If this instance is superseded: the epoch of another host, or the former epoch of this host.
    #[must_use]
    pub const fn superseded(&self) -> Option<u32> {
        match self.role {
            Role::Superseded { epoch } => Some(epoch),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
