//! What somebody does to a project, one thing after another.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::projects::Project;

/// How long somebody waits between the last save and asking for the build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Until all that can be done has been done.
    Long,
    /// Half of the time that the build takes.
    Half,
    /// Not at all.
    None,
}

/// What is done to a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Edit {
    /// More text at the end of the source file.
    Source(&'static str),
    /// At the end of the header.
    Header(&'static str),
    /// The source file ends where it did before the last edit of it.
    Mend,
}

/// An edit, and a build.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedBuild {
    pub(super) name: &'static str,
    pub(super) edit: Option<Edit>,
    pub(super) pause: Pause,
    pub(super) asks: Goals,
}

/// What is asked of make.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goals {
    /// What is asked usually, and this.
    Usual(&'static [&'static str]),
    /// This alone.
    Only(&'static [&'static str]),
    /// What installs the project.
    Install,
}

const USUALLY: Goals = Goals::Usual(&[]);
const MISTAKE: Edit = Edit::Source("this is no C\n");

/// A morning's work.
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
    /// Whether what is asked for is what is done unasked: what was asked for most often before.
    pub(super) fn is_expected(&self) -> bool {
        matches!(self.asks, Goals::Usual([]))
    }

    /// Whether several things are done at once: who says something first is by chance then.
    pub(super) fn is_in_parallel(&self) -> bool {
        let (Goals::Usual(also) | Goals::Only(also)) = self.asks else {
            return false;
        };
        also.iter().any(|word| word.starts_with("-j"))
    }
}

impl Edit {
    /// Does it to the project in that directory. `length` is that of the source file before the last edit of it.
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
