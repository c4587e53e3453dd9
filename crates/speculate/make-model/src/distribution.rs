//! Distributions that stand for the measured ones.

use rand::Rng;

use crate::statistics::mean;

/// The logarithm is normal: a peak, and a long tail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogNormal {
    /// Of the logarithm.
    mu: f64,
    /// Of the logarithm.
    sigma: f64,
}

impl LogNormal {
    /// The distribution with this median and this mean, which is not less than the median:
    /// `mean = median * exp(sigma^2 / 2)`.
    #[must_use]
    pub fn of(median: f64, mean: f64) -> Self {
        let mu = median.ln();
        let sigma = (2.0 * (mean / median).ln()).max(0.0).sqrt();
        Self { mu, sigma }
    }

    /// The distribution with this median, and this deviation of the logarithm.
    #[must_use]
    pub fn with(median: f64, sigma: f64) -> Self {
        Self {
            mu: median.ln(),
            sigma,
        }
    }

    /// Mean of the distribution.
    #[must_use]
    pub fn mean(&self) -> f64 {
        (self.mu + self.sigma * self.sigma / 2.0).exp()
    }

    /// Median of the distribution.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.mu.exp()
    }

    /// Draws a value.
    pub fn draw(&self, random: &mut impl Rng) -> f64 {
        (self.mu + self.sigma * normal(random)).exp()
    }
}

/// The distribution of times.
#[derive(Debug, Clone, PartialEq)]
pub enum Times {
    /// A single peak.
    LogNormal(LogNormal),
    /// Two kinds of times, of which the second is rarer.
    Two {
        /// The frequent times.
        usual: LogNormal,
        /// The rare times.
        other: LogNormal,
        /// Share of the rare times, between 0 and 1.
        others: f64,
    },
    /// Measured times, each with the same probability. An empty list means 0.
    Measured(Vec<f64>),
}

impl Times {
    /// Mean of the distribution.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::LogNormal(times) => times.mean(),
            Self::Two {
                usual,
                other,
                others,
            } => (1.0 - others) * usual.mean() + others * other.mean(),
            Self::Measured(times) => mean(times),
        }
    }

    /// Draws a time.
    pub fn draw(&self, random: &mut impl Rng) -> f64 {
        match self {
            Self::LogNormal(times) => times.draw(random),
            Self::Two {
                usual,
                other,
                others,
            } => match random.random::<f64>() < *others {
                true => other.draw(random),
                false => usual.draw(random),
            },
            Self::Measured(times) => one_of(times, random).unwrap_or(0.0),
        }
    }
}

/// Draws an element; all elements have the same probability.
fn one_of<T: Copy>(all: &[T], random: &mut impl Rng) -> Option<T> {
    (!all.is_empty()).then(|| all[random.random_range(0..all.len())])
}

/// A standard normal value, by the method of Box and Muller.
fn normal(random: &mut impl Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

/// With this mean, whatever was before.
pub(crate) fn exponential(mean: f64, random: &mut impl Rng) -> f64 {
    -mean * (1.0 - random.random::<f64>()).ln()
}

/// How many commands a request has.
#[derive(Debug, Clone, PartialEq)]
pub enum Commands {
    /// A single command with some probability, two commands with another probability, and else two and a geometric
    /// number more.
    Fitted {
        /// Share of requests with a single command, between 0 and 1.
        one: f64,
        /// Share of requests with two commands.
        two: f64,
        /// Probability of a further command, again and again.
        more: f64,
    },
    /// Measured numbers, each with the same probability. An empty list means 1.
    Measured(Vec<usize>),
}

impl Commands {
    /// The distribution of the paper, if at most half of the requests have a single command, and at least half have a
    /// single command or two: the median is 2. The mean of the paper is 4.39.
    #[must_use]
    pub fn of(one: f64, two: f64, mean: f64) -> Self {
        // mean = one + 2 two + (1 - one - two) (2 + 1 / (1 - more))
        let rest = 1.0 - one - two;
        let beyond = (mean - one - 2.0 * two) / rest - 2.0;
        let more = (1.0 - 1.0 / beyond).clamp(0.0, 0.999);
        Self::Fitted { one, two, more }
    }

    /// Mean of the distribution.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fitted { one, two, more } => {
                one + 2.0 * two + (1.0 - one - two) * (2.0 + 1.0 / (1.0 - more))
            }
            Self::Measured(counts) => mean(&floats(counts)),
        }
    }

    /// Mean number of commands that need no other command: all commands but the last, or the only command (figure 4).
    #[must_use]
    pub fn mean_sources(&self) -> f64 {
        match self {
            Self::Fitted { one, .. } => self.mean() - 1.0 + one,
            Self::Measured(counts) => {
                let sources: Vec<_> = counts.iter().map(|count| sources(*count)).collect();
                mean(&floats(&sources))
            }
        }
    }

    /// Draws a number of commands.
    pub fn draw(&self, random: &mut impl Rng) -> usize {
        let (one, two, more) = match self {
            Self::Fitted { one, two, more } => (*one, *two, *more),
            Self::Measured(counts) => return one_of(counts, random).unwrap_or(1).max(1),
        };
        let at: f64 = random.random();
        if at < one {
            return 1;
        }
        if at < one + two {
            return 2;
        }
        let mut commands = 3;
        while random.random::<f64>() < more {
            commands += 1;
        }
        commands
    }
}

/// Number of commands that need no other command, of this number of commands.
pub(crate) fn sources(commands: usize) -> usize {
    commands.saturating_sub(1).max(1)
}

fn floats(counts: &[usize]) -> Vec<f64> {
    let float = |count: &usize| f64::from(u32::try_from(*count).unwrap_or(u32::MAX));
    counts.iter().map(float).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{SeedableRng as _, rngs::SmallRng};

    use super::*;
    use crate::statistics::median;

    const DRAW_COUNT: usize = 20_000;

    fn drawn(times: &Times, seed: u64) -> Vec<f64> {
        let mut random = SmallRng::seed_from_u64(seed);
        (0..DRAW_COUNT).map(|_| times.draw(&mut random)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn log_normal_has_requested_moments(
            middle in 0.1..100.0f64, more in 1.0..2.0f64, seed: u64,
        ) {
            let one = LogNormal::of(middle, middle * more);
            prop_assert!((one.median() / middle - 1.0).abs() < 1e-9);
            prop_assert!((one.mean() / middle / more - 1.0).abs() < 1e-9);
            let drawn = drawn(&Times::LogNormal(one), seed);
            prop_assert!((median(&drawn) / middle - 1.0).abs() < 0.07);
            prop_assert!((mean(&drawn) / middle / more - 1.0).abs() < 0.07);
        }

        #[test]
        fn commands_have_requested_mean(
            one in 0.05..0.5f64, two in 0.5..0.8f64, seed: u64,
        ) {
            let two = two - one;
            let commands = Commands::of(one, two, 4.39);
            prop_assert!((commands.mean() - 4.39).abs() < 1e-9);
            let mut random = SmallRng::seed_from_u64(seed);
            let drawn: Vec<_> = (0..DRAW_COUNT).map(|_| commands.draw(&mut random)).collect();
            prop_assert!((mean(&floats(&drawn)) / 4.39 - 1.0).abs() < 0.07);
            let sources: Vec<_> = drawn.iter().map(|count| sources(*count)).collect();
            prop_assert!((mean(&floats(&sources)) / commands.mean_sources() - 1.0).abs() < 0.07);
        }
    }

    #[test]
    fn mixture_has_requested_shares() {
        let times = Times::Two {
            usual: LogNormal::with(1.0, 0.1),
            other: LogNormal::with(100.0, 0.1),
            others: 0.25,
        };
        let drawn = drawn(&times, 1);
        let others = drawn.iter().filter(|time| **time > 10.0).count();
        assert!((4_800..5_200).contains(&others), "{others}");
        assert!((mean(&drawn) / times.mean() - 1.0).abs() < 0.03);
    }

    #[test]
    fn measured_times_are_the_only_draws() {
        let times = Times::Measured(vec![1.0, 2.0, 6.0]);
        assert!((times.mean() - 3.0).abs() < 1e-9);
        let drawn = drawn(&times, 2);
        assert!(drawn.iter().all(|time| [1.0, 2.0, 6.0].contains(time)));
        assert!((mean(&drawn) - 3.0).abs() < 0.1);
        let commands = Commands::Measured(vec![1, 2, 9]);
        assert!((commands.mean() - 4.0).abs() < 1e-9);
        assert!((commands.mean_sources() - 10.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn empty_measurement_draws_defaults() {
        let mut random = SmallRng::seed_from_u64(3);
        assert!(Times::Measured(Vec::new()).draw(&mut random) < f64::EPSILON);
        assert_eq!(Commands::Measured(Vec::new()).draw(&mut random), 1);
    }
}
