//! Takeover by another host.

mod clock;
mod deaths;
mod duplicate_names;
mod host_loss;
mod hosts;
mod long_download;
mod matrix;
mod output_verification;
mod phases;
mod silence;
mod upgrade;
