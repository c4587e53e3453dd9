//! The options of `outlive make` and `outlive encapsulate`.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::Args;

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
    /// Targets, variables and options of make; with --watch, the arguments that are expected until other arguments were more
    /// frequent lately
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "MAKE'S ARGUMENTS"
    )]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Encapsulate {
    /// Name of the encapsulation [default: the name of the program]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Begin when the encapsulation NAME has ended, and see the effects of NAME; repeat this option for more
    #[arg(long, value_name = "NAME")]
    pub(crate) input: Vec<String>,
    /// Abort the encapsulation if no mandate comes within this time (ms, s, min, h) [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) timeout: Option<Duration>,
    /// Directory whose changes are kept back [default: the current directory]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) tree: Option<PathBuf>,
    /// Show the effects and the output of NAME, wait for the end of NAME, and end with the exit status of NAME
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "input", "timeout", "command"])]
    pub(crate) mandate: Option<String>,
    /// End NAME, and every encapsulation with NAME as an input, without any effect
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "input", "timeout", "command", "mandate"])]
    pub(crate) abort: Option<String>,
    /// List the encapsulations with progress and waiting processes
    #[arg(long, conflicts_with_all = ["name", "input", "timeout", "command", "mandate", "abort"])]
    pub(crate) list: bool,
    /// With --list: print JSON
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
    #[arg(long, hide = true)]
    pub(crate) keep: bool,
    /// Command to run, and arguments of the command
    #[arg(last = true)]
    pub(crate) command: Vec<OsString>,
}
