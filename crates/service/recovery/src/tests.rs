//! Tests of the decisions with a small [`model`] of the environment: tests by stage, and properties over random
//! histories.

mod client_probe;
mod deaths;
mod doubt;
mod expectation;
mod give_up;
mod graft;
mod model;
mod peer;
mod properties;
mod sender;
mod serving_report;
mod splice;
mod stages;
mod verdict;
mod verification;
mod waiting_client;
