//! What is asked of a keeper, and what it answers.

use serde::{Deserialize, Serialize};

use crate::{
    command::{Command, Status},
    link::WaitingProcess,
};

/// What is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// That a command is done, concealed.
    Create(Box<Create>),
    /// That what it has done is shown, and what it still does.
    Commit(String),
    /// That it ends, and has never been.
    Abort(String),
    /// What there is.
    List,
}

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Create {
    /// What it is called from then on.
    pub name: String,
    /// What is done.
    pub command: Command,
    /// Those whose outputs it sees.
    pub inputs: Vec<String>,
    /// It is aborted if nobody has committed it by then, milliseconds.
    pub timeout: Option<u64>,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It was begun.
    Created,
    /// So many effects were shown, and it has ended so.
    Committed(usize, Status),
    /// These were aborted.
    Aborted(Vec<String>),
    /// What there is.
    Listed(Vec<Listed>),
    /// It cannot be done, and why.
    Refused(String),
}

/// One of those that there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// What it is called.
    pub name: String,
    /// What it does.
    pub arguments: Vec<String>,
    /// Those whose outputs it sees.
    pub inputs: Vec<String>,
    /// How far it is.
    pub state: ListedState,
    /// What it has done so far, which nobody sees.
    pub effects: usize,
    /// What waits until it is committed.
    pub waiting: Vec<WaitingProcess>,
}

/// How far one is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListedState {
    /// Its inputs have not ended.
    Waits,
    /// It runs.
    Runs,
    /// It has ended.
    Ended(Status),
    /// It could not begin, and why.
    Failed(String),
}
