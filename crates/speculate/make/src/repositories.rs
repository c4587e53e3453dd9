//! Git repositories around a project. git looks for a repository in the outer directories, and stops at the end of a
//! file system, which the top of each concealed tree is; and git writes to that repository.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use conceal::world::World;

use crate::{command::Command, environment::Environment};

/// Entry at the top of a working tree: the directory of the repository, or a file with the path of that directory.
const GIT_ENTRY: &str = ".git";
/// Prefix of the path in such a file (gitrepository-layout(5)).
const GIT_FILE_PREFIX: &str = "gitdir: ";
/// File of a further working tree with the path of the shared directory (gitrepository-layout(5)).
const COMMON_DIRECTORY_FILE: &str = "commondir";

/// Variable and value that let git look for a repository beyond the file system of the working directory.
const ACROSS_FILE_SYSTEMS: (&str, &str) = ("GIT_DISCOVERY_ACROSS_FILESYSTEM", "1");

/// The directory of the repository that contains this directory.
#[must_use]
pub fn git_directory_of(directory: &Path) -> Option<PathBuf> {
    let top = directory
        .ancestors()
        .find(|top| top.join(GIT_ENTRY).exists())?;
    let kept = top.join(GIT_ENTRY);
    if kept.is_dir() {
        return Some(kept);
    }
    let read_path = |file: &Path, before: &str| {
        let text = fs::read_to_string(file).ok()?;
        Some(PathBuf::from(text.strip_prefix(before)?.trim_end()))
    };
    let kept = top.join(read_path(&kept, GIT_FILE_PREFIX)?);
    let common = read_path(&kept.join(COMMON_DIRECTORY_FILE), "").map(|common| kept.join(common));
    Some(common.unwrap_or(kept))
}

/// The environment of a command, with [`ACROSS_FILE_SYSTEMS`] unless the tree is a top of a repository or the command
/// has the variable.
pub(crate) fn with_git_discovery(command: &Command, world: &World) -> Environment {
    let mut environment = command.environment.clone();
    let mut trees = world.real().places().map(|(_, place)| place);
    let is_top =
        trees.any(|tree| command.directory.starts_with(tree) && tree.join(GIT_ENTRY).exists());
    if !is_top && !has_git_discovery(command) {
        environment.set(ACROSS_FILE_SYSTEMS.0, ACROSS_FILE_SYSTEMS.1);
    }
    environment
}

/// The command without a variable that was added for the command that began this one.
pub(crate) fn without_git_discovery(mut command: Command, by: &Command) -> Command {
    let (name, value) = ACROSS_FILE_SYSTEMS;
    if !has_git_discovery(by) && command.environment.get(name) == Some(OsStr::new(value)) {
        command.environment.remove(name);
    }
    command
}

fn has_git_discovery(command: &Command) -> bool {
    command.environment.get(ACROSS_FILE_SYSTEMS.0).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_directory_is_found() {
        let all = tempfile::TempDir::new().expect("a directory");
        let place = |name: &str| all.path().join(name);
        for name in [
            "one/.git/worktrees/two",
            "one/.git/modules/three",
            "one/in/it",
            "two/in",
            "one/three/in",
        ] {
            fs::create_dir_all(place(name)).expect("a directory");
        }
        let say = |name: &str, text: &str| fs::write(place(name), text).expect("a file");
        let two = place("one/.git/worktrees/two");
        say("two/.git", &format!("gitdir: {}\n", two.display()));
        say("one/.git/worktrees/two/commondir", "../..\n");
        say("one/three/.git", "gitdir: ../.git/modules/three\n");
        let kept = |name: &str| {
            git_directory_of(&place(name)).map(|kept| kept.canonicalize().expect("it is there"))
        };
        let real = |name: &str| Some(place(name).canonicalize().expect("it is there"));
        for directory in ["one", "one/in/it", "two", "two/in"] {
            assert_eq!(kept(directory), real("one/.git"), "{directory}");
        }
        assert_eq!(kept("one/three/in"), real("one/.git/modules/three"));
        assert_eq!(git_directory_of(Path::new("/")), None);
    }
}
