//! The kernel's programs and the model, driven with one vocabulary.

mod both;
mod kernel;
mod outer;
mod seen;
mod segments;

pub(crate) use both::{Both, Out, other_key};
pub(crate) use kernel::{Frame, Kernel, Leased, Pinned, RingFrame, digesting_settings, settings};
pub(crate) use outer::{Outer, outer_of, unwrap};
pub(crate) use segments::*;

pub(crate) use south_model::Verdict::{self, Next, RedirectIngress};
/// Marks of packets to the logger, relative to [`MARK`]: mirrored segments before the link adds
/// headers, and finished datagrams.
pub(crate) const SEGMENT: u32 = 3;
pub(crate) const TO_LOGGER: u32 = 4;
pub(crate) const DROP: Verdict = Verdict::Drop;
pub(crate) const WITHHELD: Verdict = Verdict::Withheld;
