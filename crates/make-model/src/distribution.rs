//! Distributions that stand for the measured ones.

use rand::Rng;

/// The logarithm is normal: a peak, and a long tail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogNormal {
    /// Of the logarithm.
    mu: f64,
    /// Of the logarithm.
    sigma: f64,
}

impl LogNormal {
    /// The one with this median and this mean, which is not less: `mean = median * exp(sigma^2 / 2)`.
    #[must_use]
    pub fn of(median: f64, mean: f64) -> Self {
        let mu = median.ln();
        let sigma = (2.0 * (mean / median).ln()).max(0.0).sqrt();
        Self { mu, sigma }
    }

    /// Its mean.
    #[must_use]
    pub fn mean(&self) -> f64 {
        (self.mu + self.sigma * self.sigma / 2.0).exp()
    }

    /// Its median.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.mu.exp()
    }

    /// One of it.
    pub fn draw(&self, random: &mut impl Rng) -> f64 {
        (self.mu + self.sigma * normal(random)).exp()
    }
}

/// Box and Muller.
fn normal(random: &mut impl Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

/// With this mean, whatever was before.
pub(crate) fn exponential(mean: f64, random: &mut impl Rng) -> f64 {
    -mean * (1.0 - random.random::<f64>()).ln()
}

/// How many commands a request has: one with some probability, two with another, and else two and a geometric number
/// more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Commands {
    one: f64,
    two: f64,
    /// Of one more, again and again.
    more: f64,
}

impl Commands {
    /// The paper's: the median is 2, so at most half have one and at least half one or two; the mean is 4.39.
    #[must_use]
    pub fn of(one: f64, two: f64, mean: f64) -> Self {
        // mean = one + 2 two + (1 - one - two) (2 + 1 / (1 - more))
        let rest = 1.0 - one - two;
        let beyond = (mean - one - 2.0 * two) / rest - 2.0;
        let more = (1.0 - 1.0 / beyond).clamp(0.0, 0.999);
        Self { one, two, more }
    }

    /// The mean of it.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let rest = 1.0 - self.one - self.two;
        self.one + 2.0 * self.two + rest * (2.0 + 1.0 / (1.0 - self.more))
    }

    /// One of it.
    pub fn draw(&self, random: &mut impl Rng) -> usize {
        let at: f64 = random.random();
        if at < self.one {
            return 1;
        }
        if at < self.one + self.two {
            return 2;
        }
        let mut commands = 3;
        while random.random::<f64>() < self.more {
            commands += 1;
        }
        commands
    }
}
