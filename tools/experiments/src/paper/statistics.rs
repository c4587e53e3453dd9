//! The statistics of the paper: least squares with the coefficient of determination, and 95 % intervals by Student's
//! t.

/// Half the width of the 95 % interval in standard errors, by degrees of freedom from 1 to 10.
const T_TABLE: [f64; 10] = [
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
];
/// The same for the normal distribution.
const NORMAL_QUANTILE: f64 = 1.959_964;

/// A mean with a confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mean {
    pub(super) mean: f64,
    /// Of the sample; 0 for a single value.
    pub(super) deviation: f64,
    /// The mean is within this distance of the true mean, with 95 % confidence; infinite for a single value.
    pub(super) within: f64,
}

impl Mean {
    /// `None` for an empty slice.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let count = number(values.len());
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        match values.len() {
            0 => None,
            1 => Some(Self {
                mean,
                deviation: 0.0,
                within: f64::INFINITY,
            }),
            more => {
                let deviation = (squares / (count - 1.0)).sqrt();
                Some(Self {
                    mean,
                    deviation,
                    within: student_t(more - 1) * deviation / count.sqrt(),
                })
            }
        }
    }
}

/// A straight line through points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    pub(super) slope: f64,
    pub(super) intercept: f64,
    /// How much of the variance the line explains, R².
    pub(super) determination: f64,
    /// The slope is within this distance of the true slope, with 95 % confidence, if the points scatter independently
    /// about a line.
    pub(super) within: f64,
}

impl Line {
    /// The least-squares fit; `None` for fewer than three points, or for points with the same x.
    pub(super) fn through(points: &[(f64, f64)]) -> Option<Self> {
        if points.len() < 3 {
            return None;
        }
        let count = number(points.len());
        let (mean_x, mean_y) = (
            points.iter().map(|(x, _)| x).sum::<f64>() / count,
            points.iter().map(|(_, y)| y).sum::<f64>() / count,
        );
        let sum = |of: fn(f64, f64) -> f64| -> f64 {
            points.iter().map(|(x, y)| of(x - mean_x, y - mean_y)).sum()
        };
        let (xx, xy, yy) = (sum(|x, _| x * x), sum(|x, y| x * y), sum(|_, y| y * y));
        if xx <= 0.0 || yy <= 0.0 {
            return None;
        }
        let slope = xy / xx;
        let residual = (yy - slope * xy).max(0.0);
        let error = (residual / (count - 2.0) / xx).sqrt();
        Some(Self {
            slope,
            intercept: mean_y - slope * mean_x,
            determination: 1.0 - residual / yy,
            within: student_t(points.len() - 2) * error,
        })
    }
}

/// The 97.5 % quantile of Student's t: from a table, and beyond the table by the Cornish–Fisher expansion (Abramowitz
/// and Stegun, 26.7.5), which is right to four digits there.
fn student_t(freedom: usize) -> f64 {
    if let Some(known) = freedom.checked_sub(1).and_then(|at| T_TABLE.get(at)) {
        return *known;
    }
    let n = number(freedom);
    let terms = [
        (NORMAL_QUANTILE.powi(3) + NORMAL_QUANTILE) / 4.0,
        (5.0 * NORMAL_QUANTILE.powi(5) + 16.0 * NORMAL_QUANTILE.powi(3) + 3.0 * NORMAL_QUANTILE)
            / 96.0,
        (3.0 * NORMAL_QUANTILE.powi(7)
            + 19.0 * NORMAL_QUANTILE.powi(5)
            + 17.0 * NORMAL_QUANTILE.powi(3)
            - 15.0 * NORMAL_QUANTILE)
            / 384.0,
    ];
    terms.iter().rev().fold(0.0, |sum, term| (sum + term) / n) + NORMAL_QUANTILE
}

/// Counts here are far below the limit of exact floats.
#[allow(clippy::cast_precision_loss)]
pub(super) fn number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, known: f64) {
        assert!(
            (value - known).abs() < 6e-4 * known.abs().max(1.0),
            "{value} is not {known}"
        );
    }

    #[test]
    fn quantiles_equal_tables() {
        for (freedom, known) in [
            (1, 12.706),
            (9, 2.2622),
            (11, 2.2010),
            (19, 2.0930),
            (30, 2.0423),
            (120, 1.9799),
        ] {
            near(student_t(freedom), known);
        }
        near(student_t(1_000_000), NORMAL_QUANTILE);
    }

    #[test]
    fn interval_equals_students() {
        let mean = Mean::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        near(mean.mean, 5.0);
        near(mean.deviation, 2.13809);
        near(mean.within, 2.3646 * 2.13809 / 8f64.sqrt());
        assert_eq!(Mean::of(&[]), None);
        assert_eq!(Mean::of(&[3.0]).unwrap().within, f64::INFINITY);
    }

    /// The first of Anscombe's quartet: y = 3.0001 + 0.5001 x, R² = 0.6665, and a standard
    /// error of 0.1179 for the slope.
    #[test]
    fn regression_equals_textbook() {
        let x = [10.0, 8.0, 13.0, 9.0, 11.0, 14.0, 6.0, 4.0, 12.0, 7.0, 5.0];
        let y = [
            8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68,
        ];
        let points: Vec<_> = x.into_iter().zip(y).collect();
        let line = Line::through(&points).unwrap();
        near(line.slope, 0.5001);
        near(line.intercept, 3.0001);
        near(line.determination, 0.6665);
        near(line.within, 2.2622 * 0.1179);
    }

    #[test]
    fn exact_line_has_no_error() {
        let points: Vec<_> = (0..10)
            .map(|x| (f64::from(x), 3.0 * f64::from(x) - 1.0))
            .collect();
        let line = Line::through(&points).unwrap();
        near(line.slope, 3.0);
        near(line.determination, 1.0);
        assert!(line.within < 1e-6);
    }

    #[test]
    fn degenerate_points_have_no_line() {
        assert_eq!(Line::through(&[(0.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(Line::through(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(Line::through(&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]), None);
    }
}
