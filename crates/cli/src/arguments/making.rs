//! What can be asked of builds and commands that are done before they are asked for.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::Args;

use crate::units;

#[derive(Debug, Args)]
pub(crate) struct Make {
    /// Watch this directory and what is in it, and do on every save what `make` would do
    #[arg(long)]
    pub(crate) watch: bool,
    /// Say what is expected, what is being done, and what is done
    #[arg(long, conflicts_with = "watch")]
    pub(crate) status: bool,
    /// End who watches this directory
    #[arg(long, conflicts_with_all = ["watch", "status"])]
    pub(crate) stop: bool,
    /// With --status: as JSON
    #[arg(long, requires = "status")]
    pub(crate) json: bool,
    /// Targets, variables and options of make; with --watch, those that are expected until others were asked for more often lately
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "MAKE'S ARGUMENTS"
    )]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Encapsulate {
    /// What it is called from then on; without, as its program
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// It begins when that one has ended, and sees what it has done; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) input: Vec<String>,
    /// Abort it if nobody has mandated it by then (ms, s, min, h)
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub(crate) timeout: Option<Duration>,
    /// Whose changes are kept, in place of this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) tree: Option<PathBuf>,
    /// Show what it has done and says, wait until it ends, and end with its status
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "input", "timeout", "command"])]
    pub(crate) mandate: Option<String>,
    /// End it, and all that have it as an input, as if they had never been
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "input", "timeout", "command", "mandate"])]
    pub(crate) abort: Option<String>,
    /// Say which there are, how far they are, and what waits
    #[arg(long, conflicts_with_all = ["name", "input", "timeout", "command", "mandate", "abort"])]
    pub(crate) list: bool,
    /// With --list: as JSON
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
    #[arg(long, hide = true)]
    pub(crate) keep: bool,
    /// What is run, with its arguments
    #[arg(last = true)]
    pub(crate) command: Vec<OsString>,
}
