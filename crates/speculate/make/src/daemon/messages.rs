//! Requests to the daemon, and the answers.

use serde::{Deserialize, Serialize};

use crate::{
    command::{Command, Status},
    link::WaitingProcess,
};

/// A request to the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Run a command, concealed.
    Create(Box<Create>),
    /// Show the effects of a speculation, and all later ones.
    Commit(String),
    /// End a speculation without effects.
    Abort(String),
    /// List the speculations.
    List,
}

/// A new speculation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Create {
    /// Name of the speculation.
    pub name: String,
    /// The command.
    pub command: Command,
    /// Speculations whose effects the command sees.
    pub inputs: Vec<String>,
    /// Time until an abort without a commit, milliseconds.
    pub timeout: Option<u64>,
}

/// An answer of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The command has begun, or waits for its inputs.
    Created,
    /// Number of shown effects, and the end of the command.
    Committed(usize, Status),
    /// Names of the aborted speculations.
    Aborted(Vec<String>),
    /// All speculations.
    Listed(Vec<Listed>),
    /// The reason of a refusal.
    Refused(String),
}

/// A speculation in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Name of the speculation.
    pub name: String,
    /// Arguments of the command.
    pub arguments: Vec<String>,
    /// Speculations whose effects the command sees.
    pub inputs: Vec<String>,
    /// State of the command.
    pub state: ListedState,
    /// Number of effects so far.
    pub effects: usize,
    /// Processes that wait for the commit.
    pub waiting: Vec<WaitingProcess>,
}

/// State of a speculation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListedState {
    /// The inputs have not ended.
    Waits,
    /// The command runs.
    Runs,
    /// The command has ended.
    Ended(Status),
    /// The command could not begin, and the reason.
    Failed(String),
}
