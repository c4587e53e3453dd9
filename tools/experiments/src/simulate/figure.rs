//! The results of the simulation.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use make_model::Interval;
use serde_json::{Value, json};

use super::published;

/// A figure, and the paper's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: &'static str,
    /// Without a half where there is none.
    pub(super) interval: Interval,
    pub(super) runs: usize,
    pub(super) paper: Option<f64>,
}

impl Figure {
    /// The relative difference from the paper's value.
    pub(super) fn off(&self) -> Option<f64> {
        Some(self.interval.value / self.paper? - 1.0)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "value": self.interval.value,
            "unit": self.unit,
            // No number is null.
            "spread": self.interval.half,
            "runs": self.runs,
            "paper": self.paper,
        })
    }
}

/// A cost of a file: the name, the value that `make bench` has measured here, and the paper's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cost {
    pub(super) what: &'static str,
    pub(super) ours: Option<String>,
    pub(super) paper: &'static str,
}

/// The costs in the results of `make bench`, in this directory.
pub(super) fn costs(directory: &Path) -> Result<Vec<Cost>> {
    let path = directory.join("results.json");
    let results = match path.exists() {
        true => serde_json::from_str(&fs::read_to_string(&path)?)
            .with_context(|| format!("{} is of no use", path.display()))?,
        false => Value::Null,
    };
    let all = results["results"].as_array().cloned().unwrap_or_default();
    let of = |name: &str| {
        let figure = all.iter().find(|figure| figure["name"] == name)?;
        let (value, unit) = (figure["value"].as_f64()?, figure["unit"].as_str()?);
        Some(format!("{value:.1} {unit}"))
    };
    let costs = published::COSTS.iter().map(|(name, what, paper)| Cost {
        what,
        ours: of(name),
        paper,
    });
    Ok(costs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_read_from_results() -> Result<()> {
        let directory = tempfile::tempdir()?;
        assert!(
            costs(directory.path())?
                .iter()
                .all(|cost| cost.ours.is_none())
        );
        let results =
            json!({"results": [{"name": "make.open_write", "value": 41.25, "unit": "us"}]});
        fs::write(directory.path().join("results.json"), results.to_string())?;
        let costs = costs(directory.path())?;
        assert_eq!(costs[2].ours.as_deref(), Some("41.2 us"));
        assert_eq!(costs[0].ours, None);
        Ok(())
    }

    #[test]
    fn deviation_is_relative_to_paper() {
        let figure = Figure {
            name: "one".to_owned(),
            unit: "",
            interval: Interval {
                value: 1.1,
                half: f64::NAN,
            },
            runs: 10,
            paper: Some(1.0),
        };
        assert!((figure.off().unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(figure.to_json()["spread"], Value::Null);
    }
}
