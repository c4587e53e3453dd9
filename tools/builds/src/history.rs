//! The edits of a project, in order.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::projects::Project;

/// Pause between the last save and the request for the build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Until the watcher is idle.
    Long,
    /// Half of the build time.
    Half,
    /// No pause.
    None,
}

/// A change of a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Edit {
    /// Appends text to the source file.
    Source(&'static str),
    /// Appends text to the header.
    Header(&'static str),
    /// Cuts the source file to its length before the last edit.
    Mend,
}

/// An edit and a build.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedBuild {
    pub(super) name: &'static str,
    pub(super) edit: Option<Edit>,
    pub(super) pause: Pause,
    pub(super) asks: Goals,
}

/// Arguments of make.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goals {
    /// The usual arguments and these.
    Usual(&'static [&'static str]),
    /// These arguments alone.
    Only(&'static [&'static str]),
    /// The arguments that install the project.
    Install,
}

const USUALLY: Goals = Goals::Usual(&[]);
const MISTAKE: Edit = Edit::Source("this is no C\n");

/// The edits of a morning.
pub(super) const HISTORY: [PlannedBuild; 14] = [
    step("from nothing", None, Pause::Long, USUALLY),
    step(
        "a comment",
        Some(Edit::Source("/* A remark. */\n")),
        Pause::Long,
        USUALLY,
    ),
    step(
        "a function",
        Some(Edit::Source(
            "int of_no_use(void);\nint of_no_use(void) { return 3; }\n",
        )),
        Pause::Half,
        USUALLY,
    ),
    step(
        "a header",
        Some(Edit::Header("/* Another remark. */\n")),
        Pause::Long,
        USUALLY,
    ),
    step("a mistake", Some(MISTAKE), Pause::Long, USUALLY),
    step("mended", Some(Edit::Mend), Pause::Long, USUALLY),
    step(
        "a header, at once",
        Some(Edit::Header("/* A third one. */\n")),
        Pause::None,
        USUALLY,
    ),
    step("nothing", None, Pause::Long, USUALLY),
    step(
        "a header, -j2",
        Some(Edit::Header("/* A fourth one. */\n")),
        Pause::Half,
        Goals::Usual(&["-j2", "-s"]),
    ),
    step(
        "a mistake, -k",
        Some(MISTAKE),
        Pause::Long,
        Goals::Usual(&["-k"]),
    ),
    step("mended, half", Some(Edit::Mend), Pause::Half, USUALLY),
    step("install", None, Pause::Long, Goals::Install),
    step("clean", None, Pause::None, Goals::Only(&["clean"])),
    step("again", None, Pause::Half, USUALLY),
];

const fn step(name: &'static str, edit: Option<Edit>, pause: Pause, asks: Goals) -> PlannedBuild {
    PlannedBuild {
        name,
        edit,
        pause,
        asks,
    }
}

impl PlannedBuild {
    /// Whether the request is the expected one: the most frequent earlier request.
    pub(super) fn is_expected(&self) -> bool {
        matches!(self.asks, Goals::Usual([]))
    }

    /// Whether the make is parallel: the order of the output then varies.
    pub(super) fn is_in_parallel(&self) -> bool {
        let (Goals::Usual(also) | Goals::Only(also)) = self.asks else {
            return false;
        };
        also.iter().any(|word| word.starts_with("-j"))
    }
}

impl Edit {
    /// Performs the edit in that directory. `length` is the length of the source file before the last edit.
    pub(super) fn carry_out(
        self,
        project: &Project,
        directory: &Path,
        length: &mut u64,
    ) -> Result<()> {
        let (name, text) = match self {
            Self::Source(text) => (project.source, text),
            Self::Header(text) => (project.header, text),
            Self::Mend => (project.source, ""),
        };
        let path = directory.join(name);
        let mut file = OpenOptions::new()
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot edit {}", path.display()))?;
        match self {
            Self::Source(_) => *length = fs::metadata(&path)?.len(),
            Self::Header(_) => {}
            Self::Mend => file.set_len(*length)?,
        }
        Ok(file.write_all(text.as_bytes())?)
    }
}
