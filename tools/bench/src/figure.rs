//! Figures: a median, the spread, and an aim.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use harness::quantile::quantile;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

/// The bound that a figure should keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) enum Aim {
    AtLeast(f64),
    AtMost(f64),
}

impl Aim {
    fn met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, "≥ {}", number(*bound)),
            Self::AtMost(bound) => write!(f, "≤ {}", number(*bound)),
        }
    }
}

impl From<Aim> for String {
    fn from(aim: Aim) -> Self {
        aim.to_string()
    }
}

impl TryFrom<String> for Aim {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        let (sign, bound) = text
            .split_once(' ')
            .context("an aim is a sign and a number")?;
        let bound = f64::from_str(bound)?;
        match sign {
            "≥" => Ok(Self::AtLeast(bound)),
            "≤" => Ok(Self::AtMost(bound)),
            _ => bail!("{sign} is no sign of an aim"),
        }
    }
}

/// A result.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Figure {
    /// Dotted, for scripts: `download.nginx.ratio`.
    pub(super) name: String,
    /// The median.
    #[serde(deserialize_with = "maybe_none")]
    pub(super) value: f64,
    pub(super) unit: String,
    #[serde(deserialize_with = "maybe_none")]
    pub(super) min: f64,
    #[serde(deserialize_with = "maybe_none")]
    pub(super) max: f64,
    pub(super) samples: usize,
    pub(super) aim: Option<Aim>,
    /// A promise, not a speed: a missed promise fails the bench.
    pub(super) promise: bool,
    /// The method of the measurement.
    pub(super) how: String,
    /// The reason why the value is not better.
    pub(super) bound: String,
}

impl Figure {
    /// The median of samples, which must not be empty.
    pub(super) fn of(
        name: impl Into<String>,
        unit: &'static str,
        samples: &[f64],
        how: impl Into<String>,
    ) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self {
            name: name.into(),
            value: quantile(&sorted, 0.5),
            unit: unit.to_owned(),
            min: quantile(&sorted, 0.0),
            max: quantile(&sorted, 1.0),
            samples: sorted.len(),
            aim: None,
            promise: false,
            how: how.into(),
            bound: String::new(),
        }
    }

    pub(super) fn aim(mut self, aim: Aim, bound: impl Into<String>) -> Self {
        self.aim = Some(aim);
        self.bound = bound.into();
        self
    }

    pub(super) fn promise(mut self) -> Self {
        self.promise = true;
        self
    }

    /// Whether the aim is met, if there is an aim.
    pub(super) fn met(&self) -> Option<bool> {
        self.aim.map(|aim| aim.met_by(self.value))
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "min": self.min,
            "max": self.max,
            "samples": self.samples,
            "aim": self.aim,
            "met": self.met(),
            "promise": self.promise,
            "how": self.how,
            "bound": self.bound,
        })
    }

    /// The value with the unit.
    pub(super) fn shown(&self) -> String {
        format!("{} {}", number(self.value), self.unit)
            .trim()
            .to_owned()
    }

    /// `0.93–0.99`
    pub(super) fn spread(&self) -> String {
        format!("{}–{}", number(self.min), number(self.max))
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({}", self.name, self.shown(), self.spread())?;
        match (self.aim, self.met()) {
            (Some(aim), Some(true)) => write!(f, "; aim {aim}: met)"),
            (Some(aim), _) => write!(f, "; aim {aim}: MISSED)"),
            (None, _) => write!(f, ")"),
        }
    }
}

/// JSON has no NaN: a missing measurement is `null` there.
fn maybe_none<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// A ratio, and both figures of the ratio: the plain and the protected measurement.
pub(super) fn compared(
    name: &str,
    other: &str,
    unit: &'static str,
    [plain, protected]: [&[f64]; 2],
    how: &str,
) -> [Figure; 3] {
    let ratios = ratios(plain, protected);
    [
        Figure::of(format!("{name}.ratio"), "", &ratios, how),
        Figure::of(format!("{name}.plain"), unit, plain, how),
        Figure::of(format!("{name}.{other}"), unit, protected, how),
    ]
}

/// A single figure of several runs.
pub(super) fn column<const N: usize>(runs: &[[f64; N]], which: usize) -> Vec<f64> {
    runs.iter().map(|run| run[which]).collect()
}

/// Each of `protected` divided by the neighbour in `plain`.
pub(super) fn ratios(plain: &[f64], protected: &[f64]) -> Vec<f64> {
    plain.iter().zip(protected).map(|(a, b)| b / a).collect()
}

/// Three digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        a if a >= 100.0 || a == 0.0 || value.fract() == 0.0 => format!("{value:.0}"),
        a if a >= 10.0 => format!("{value:.1}"),
        a if a >= 0.01 => format!("{value:.3}"),
        a => {
            // Three decimals would show 0.0004 as 0.000.
            let digits = (3..12)
                .find(|digits| a * 10f64.powi(*digits) >= 100.0)
                .unwrap_or(12);
            let digits = usize::try_from(digits).unwrap_or(12);
            let text = format!("{value:.digits$}");
            text.trim_end_matches('0').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_is_median_with_spread() {
        let figure = Figure::of("x", "", &[3.0, 1.0, 2.0], "");
        assert_eq!(
            (figure.value, figure.min, figure.max, figure.samples),
            (2.0, 1.0, 3.0, 3)
        );
        assert_eq!(figure.met(), None);
    }

    #[test]
    fn aims_include_their_bounds() {
        let figure = |aim| Figure::of("x", "", &[0.95], "").aim(aim, "").met();
        assert_eq!(figure(Aim::AtLeast(0.95)), Some(true));
        assert_eq!(figure(Aim::AtLeast(0.951)), Some(false));
        assert_eq!(figure(Aim::AtMost(0.95)), Some(true));
        assert_eq!(figure(Aim::AtMost(0.949)), Some(false));
    }

    #[test]
    fn figure_round_trip() -> Result<()> {
        let aim = Aim::AtMost(0.2);
        let figure = Figure::of("x", "ms", &[1.0, 2.5], "by hand").aim(aim, "the copy");
        let read: Figure = serde_json::from_value(figure.promise().to_json())?;
        assert_eq!(read.aim, Some(aim));
        assert!(read.promise && read.met() == Some(false) && read.bound == "the copy");
        assert_eq!(
            (read.shown(), read.spread()),
            ("2.500 ms".into(), "1–2.500".into())
        );
        let none: Figure = serde_json::from_value(Figure::of("x", "", &[], "").to_json())?;
        assert!(none.value.is_nan() && none.aim.is_none());
        Ok(())
    }

    #[test]
    fn small_values_have_digits_that_matter() {
        assert_eq!(number(0.000_361_49), "0.000361");
        assert_eq!(Aim::AtMost(0.001).to_string(), "≤ 0.001");
        assert_eq!((number(0.0), number(0.02)), ("0".into(), "0.020".into()));
    }

    #[test]
    fn missing_measurement_meets_no_aim() {
        let figure = Figure::of("x", "", &[], "").aim(Aim::AtMost(1.0), "");
        assert_eq!(figure.met(), Some(false));
    }

    #[test]
    fn runs_are_compared_pair_by_pair() {
        assert_eq!(ratios(&[1.0, 2.0], &[0.5, 2.0]), [0.5, 1.0]);
    }
}
