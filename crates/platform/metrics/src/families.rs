//! Families of metrics, as OpenMetrics text.

use std::{borrow::Cow, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet,
        text::encode,
    },
    metrics::{MetricType, exemplar::Exemplar},
    registry::{Registry, Unit as RegistryUnit},
};

use crate::{Histogram, Numbers};

/// A name and its value.
pub type Label = (&'static str, Cow<'static, str>);

/// The unit of a value. The name of the family ends with the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

impl Unit {
    const fn known(self) -> Option<&'static RegistryUnit> {
        match self {
            Self::None => None,
            Self::Bytes => Some(&RegistryUnit::Bytes),
            Self::Seconds => Some(&RegistryUnit::Seconds),
        }
    }
}

/// Where a role writes its families to. Names are given without unit and `_total`.
pub struct Families<'a>(DescriptorEncoder<'a>);

type Sample<V> = (Vec<Label>, V);

impl Families<'_> {
    /// A counter.
    ///
    /// # Errors
    /// There is no room for the text.
    pub fn counter(&mut self, name: &str, unit: Unit, help: &str, value: u64) -> fmt::Result {
        self.counters(name, unit, help, [(Vec::new(), value)])
    }

    /// Things of some kinds that are counted.
    ///
    /// # Errors
    /// As [`Families::counter`].
    pub fn counters<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        unit: Unit,
        help: &str,
        values: impl IntoIterator<Item = Sample<V>>,
    ) -> fmt::Result {
        self.family(
            name,
            unit,
            help,
            MetricType::Counter,
            values,
            |to, value| {
                to.encode_counter::<NoLabelSet, V, u64>(value, None::<&Exemplar<NoLabelSet, u64>>)
            },
        )
    }

    /// A value of this moment.
    ///
    /// # Errors
    /// As [`Families::counter`].
    pub fn gauge(
        &mut self,
        name: &str,
        unit: Unit,
        help: &str,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.gauges(name, unit, help, [(Vec::new(), value)])
    }

    /// Values of this moment, each with labels.
    ///
    /// # Errors
    /// As [`Families::counter`].
    pub fn gauges<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        unit: Unit,
        help: &str,
        values: impl IntoIterator<Item = Sample<V>>,
    ) -> fmt::Result {
        self.family(name, unit, help, MetricType::Gauge, values, |to, value| {
            to.encode_gauge(value)
        })
    }

    /// The present state: 1 for this state, 0 for all other states.
    ///
    /// # Errors
    /// As [`Families::counter`].
    pub fn state(
        &mut self,
        name: &str,
        help: &str,
        states: &[&'static str],
        is: &str,
    ) -> fmt::Result {
        let values = states
            .iter()
            .map(|state| (vec![("state", (*state).into())], u32::from(*state == is)));
        self.gauges(name, Unit::None, help, values)
    }

    /// Labels that never change while the role runs.
    ///
    /// # Errors
    /// As [`Families::counter`].
    pub fn info(&mut self, name: &str, help: &str, labels: Vec<Label>) -> fmt::Result {
        let values = [(Vec::new(), labels)];
        self.family(
            name,
            Unit::None,
            help,
            MetricType::Info,
            values,
            |to, labels| to.encode_info(labels),
        )
    }

    /// How often something took how long.
    ///
    /// # Errors
    /// As [`Families::counter`].
    pub fn histogram(&mut self, name: &str, help: &str, values: &Histogram) -> fmt::Result {
        self.histograms(name, help, [(Vec::new(), values)])
    }

    /// How often things of some kinds took how long.
    ///
    /// # Errors
    /// As [`Families::counter`].
    pub fn histograms<'h>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = Sample<&'h Histogram>>,
    ) -> fmt::Result {
        let kind = MetricType::Histogram;
        self.family(name, Unit::Seconds, help, kind, values, |to, values| {
            let (sum, count) = (values.sum(), values.count());
            to.encode_histogram::<NoLabelSet>(sum, count, &values.buckets(), None)
        })
    }

    fn family<V>(
        &mut self,
        name: &str,
        unit: Unit,
        help: &str,
        kind: MetricType,
        values: impl IntoIterator<Item = Sample<V>>,
        mut write: impl FnMut(&mut MetricEncoder<'_>, &V) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.known(), kind)?;
        for (labels, value) in values {
            if labels.is_empty() {
                write(&mut family, &value)?;
            } else {
                write(&mut family.encode_family(&labels)?, &value)?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Collected<N>(N);

impl<N: Numbers> Collector for Collected<N> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.families(&mut Families(encoder))
    }
}

/// All that there is to tell, as OpenMetrics text.
///
/// # Errors
/// The numbers cannot be written down.
pub fn text(numbers: impl Numbers) -> Result<String, fmt::Error> {
    let labels = numbers.labels().into_iter();
    let mut registry = Registry::with_labels(labels.map(|(name, value)| (name.into(), value)));
    registry.register_collector(Box::new(Collected(numbers)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
