//! Medians, and how sure of them one may be.

/// A value and how far from it the true one is, with 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// In the middle.
    pub value: f64,
    /// To either side.
    pub half: f64,
}

impl Interval {
    /// As a part of the value.
    #[must_use]
    pub fn relative(&self) -> f64 {
        self.half / self.value
    }
}

/// The middle one; NaN of nothing.
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

/// NaN of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
    values.iter().sum::<f64>() / f64::from(count)
}

/// Of the medians of independent runs: their mean, and Student's interval.
#[must_use]
pub fn median_interval(medians: &[f64]) -> Interval {
    let value = mean(medians);
    let n = f64::from(u32::try_from(medians.len()).unwrap_or(u32::MAX));
    let squares: f64 = medians.iter().map(|median| (median - value).powi(2)).sum();
    let error = (squares / (n - 1.0) / n).sqrt();
    let half = student(medians.len().saturating_sub(1)) * error;
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
    // Beyond, within a thousandth: the expansion of Cornish and Fisher.
    SMALL
        .get(freedom)
        .copied()
        .unwrap_or_else(|| 1.96 + 2.372 / n + 2.82 / (n * n))
}
