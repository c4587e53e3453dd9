//! Medians with confidence intervals.

/// A value with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Middle of the interval.
    pub value: f64,
    /// Half of the width.
    pub half: f64,
}

impl Interval {
    /// As a part of the value.
    #[must_use]
    pub fn relative(&self) -> f64 {
        self.half / self.value
    }
}

/// The median; NaN for an empty list.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The mean; NaN for an empty list.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
    values.iter().sum::<f64>() / f64::from(count)
}

/// Mean and Student's interval of the results of independent runs. With fewer than two runs the interval is infinite.
#[must_use]
pub fn interval(runs: &[f64]) -> Interval {
    let value = mean(runs);
    if runs.len() < 2 {
        let half = f64::INFINITY;
        return Interval { value, half };
    }
    let n = f64::from(u32::try_from(runs.len()).unwrap_or(u32::MAX));
    let squares: f64 = runs.iter().map(|run| (run - value).powi(2)).sum();
    let error = (squares / (n - 1.0) / n).sqrt();
    let half = student(runs.len() - 1) * error;
    Interval { value, half }
}

/// The 97.5 % point of Student's t with this many degrees of freedom.
fn student(freedom: usize) -> f64 {
    const SMALL: [f64; 10] = [
        f64::INFINITY,
        12.706,
        4.303,
        3.182,
        2.776,
        2.571,
        2.447,
        2.365,
        2.306,
        2.262,
    ];
    let n = f64::from(u32::try_from(freedom).unwrap_or(u32::MAX));
    // Beyond, within two thousandths: the expansion of Cornish and Fisher.
    SMALL
        .get(freedom)
        .copied()
        .unwrap_or_else(|| 1.96 + 2.372 / n + 2.82 / (n * n))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

    use super::*;

    #[test]
    fn empty_and_small_samples() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!((mean(&[1.0, 2.0, 6.0]) - 3.0).abs() < 1e-9);
        assert!(median(&[]).is_nan() && mean(&[]).is_nan());
    }

    #[test]
    fn student_quantiles_equal_tables() {
        for (freedom, point) in [
            (1, 12.706),
            (9, 2.262),
            (10, 2.228),
            (30, 2.042),
            (120, 1.980),
        ] {
            assert!((student(freedom) / point - 1.0).abs() < 0.002, "{freedom}");
        }
    }

    #[test]
    fn interval_equals_textbook() {
        let interval = interval(&[1.0, 2.0, 3.0]);
        assert!((interval.value - 2.0).abs() < 1e-9);
        assert!((interval.half - 4.303 / 3f64.sqrt()).abs() < 1e-9);
        assert!((interval.relative() - interval.half / 2.0).abs() < 1e-9);
    }

    #[test]
    fn single_run_has_infinite_interval() {
        assert!(interval(&[1.0]).half.is_infinite());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn true_mean_is_in_95_percent_of_intervals(seed: u64, runs in 5..40usize) {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut hit = || {
                let drawn: Vec<f64> = (0..runs)
                    .map(|_| (0..6).map(|_| random.random::<f64>()).sum())
                    .collect();
                let interval = interval(&drawn);
                (interval.value - 3.0).abs() <= interval.half
            };
            let hits = (0..2000).filter(|_| hit()).count();
            prop_assert!((1850..1950).contains(&hits), "{hits}");
        }
    }
}
