//! The cost of a command without work.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::super::Bench;
use super::super::figure::Figure;
use super::seconds;
use builds::Watcher;
use harness::task::cache;

/// Commands of the makefile.
const COMMAND_COUNT: usize = 200;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let place = cache(None, "commands")?;
    let tree = place.join("tree");
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds.max(3) {
        bench.interrupt.check()?;
        fs::create_dir_all(&tree)?;
        save(&tree, "to begin with", "")?;
        let watcher = Watcher::over(&tree, &bench.stage.testbed.programs.outlive, &[])?;
        watcher.has_finished(&bench.interrupt)?;
        // First no command has run before; then all have.
        for (more, remark) in [(&mut first, "first"), (&mut again, "again")] {
            watcher.is_saved_soon()?;
            save(&tree, &round.to_string(), remark)?;
            let unasked = watcher.has_finished(&bench.interrupt)?.as_secs_f64();
            let plain = seconds(Command::new("make").current_dir(&tree))?;
            more.push((unasked - plain) * 1e3 / COMMAND_COUNT as f64);
        }
        watcher.end()?;
    }
    fs::remove_dir_all(&place)?;
    let how = |what: &str| {
        format!(
            "a makefile with {COMMAND_COUNT} of `/bin/true`, {what}, unasked: what it takes longer than by make, for each"
        )
    };
    Ok(vec![
        Figure::of(
            "make.command",
            "ms",
            &first,
            how("none of which was done before"),
        ),
        Figure::of(
            "make.command.again",
            "ms",
            &again,
            how("all of which have been done"),
        ),
    ])
}

/// Commands with `word`, which makes a command new, and with a remark, which does not.
fn save(tree: &Path, word: &str, remark: &str) -> Result<()> {
    let makefile = format!(
        "# {remark}\nall: $(addprefix x,$(shell seq {COMMAND_COUNT}))\nx%:\n\t@/bin/true $* {word}\n.PHONY: all\n"
    );
    // Whole, or not at all.
    let new = tree.with_extension("new");
    fs::write(&new, makefile)?;
    Ok(fs::rename(new, tree.join("Makefile"))?)
}
