//! The options of `outlive make` and `outlive speculate`.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use crate::units;

#[derive(Debug, Args)]
pub(crate) struct Make {
    /// Watch this directory and everything below, and do the work of `make` on every save
    #[arg(long)]
    pub(crate) watch: bool,
    /// Show the expected makes, the running and finished work, and the processes that wait
    #[arg(long, conflicts_with = "watch")]
    pub(crate) status: bool,
    /// Stop the watcher of this directory
    #[arg(long, conflicts_with_all = ["watch", "status"])]
    pub(crate) stop: bool,
    /// With --status: print JSON
    #[arg(long, requires = "status")]
    pub(crate) json: bool,
    /// Targets, variables and options of make; with --watch, the arguments that are expected until other arguments
    /// were more frequent lately
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "MAKE'S ARGUMENTS"
    )]
    pub(crate) arguments: Vec<OsString>,
}

/// The directory whose changes are kept back.
#[derive(Debug, Args)]
pub(crate) struct Tree {
    /// Directory whose changes are kept back [default: the current directory]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) tree: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Speculate {
    /// Begin a command, and keep the effects of the command back
    ///
    /// outlive prints the name of the speculation. The command runs in the background.
    Run(SpeculateRun),
    /// Show the effects and the output of a speculation
    ///
    /// outlive waits for the end of the command, and ends with the exit status of the command.
    Commit(Speculation),
    /// End a speculation, and every speculation with this one as an input, without any effect
    Abort(Speculation),
    /// List the speculations with progress and waiting processes
    List(SpeculateList),
    #[command(hide = true)]
    Keep(Tree),
}

#[derive(Debug, Args)]
pub(crate) struct SpeculateRun {
    /// Name of the speculation [default: the name of the program]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Begin when the speculation NAME has ended, and see the effects of NAME; repeat this option for more
    #[arg(long, value_name = "NAME")]
    pub(crate) input: Vec<String>,
    /// Abort the speculation if no commit comes within this time (ms, s, min, h) [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) tree: Tree,
    /// Command to run, and arguments of the command
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Speculation {
    /// Name of the speculation
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) tree: Tree,
}

#[derive(Debug, Args)]
pub(crate) struct SpeculateList {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) tree: Tree,
}
