//! The decisions, driven by a small model of what they decide about ([`world`]): tests by stage,
//! and properties over random histories.

mod calling;
mod deaths;
mod doubting;
mod expecting;
mod giving_up;
mod grafting;
mod judging;
mod peer;
mod properties;
mod sender;
mod splicing;
mod stages;
mod telling;
mod verifying;
mod waiting;
mod world;
