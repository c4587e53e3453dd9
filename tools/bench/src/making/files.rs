//! The cost of an open and of a commit (the paper's mandate), for each file, beside the paper's 18, 8, 8 and 31 ms.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::super::Bench;
use super::super::figure::Figure;
use harness::archive::run;
use harness::task::{Programs, cache};

/// Files that are opened.
const FILE_COUNT: usize = 2000;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let place = cache(None, "files")?;
    let samples =
        (0..bench.rounds.max(3)).map(|_| one_round(&bench.stage.testbed.programs, &place));
    let samples = samples.collect::<Result<Vec<_>>>()?;
    fs::remove_dir_all(&place)?;
    let column = |which: usize| samples.iter().map(|one| one[which]).collect::<Vec<f64>>();
    let how = |what: &str| {
        format!(
            "{what}, {FILE_COUNT} files of 100 bytes, what it takes longer than without, for each"
        )
    };
    Ok(vec![
        Figure::of(
            "make.open_read",
            "us",
            &column(0),
            how("`cat` of files that nobody has read yet (the paper: 18 ms)"),
        ),
        Figure::of(
            "make.open_read.again",
            "us",
            &column(1),
            how("the same once more (the paper: 10 ms)"),
        ),
        Figure::of(
            "make.open_write",
            "us",
            &column(2),
            how("new files by `split` (the paper: 8 ms)"),
        ),
        Figure::of(
            "make.mandate",
            "us",
            &column(3),
            format!(
                "from the question to the end, for each of {FILE_COUNT} files read and {FILE_COUNT} written (the paper: 8 and 31 ms)"
            ),
        ),
    ])
}

/// Reading, reading again, writing, microseconds more for each file than without; and mandating.
fn one_round(programs: &Programs, place: &Path) -> Result<[f64; 4]> {
    let (plain, _) = timed(place, None)?;
    let (concealed, mandate) = timed(place, Some(&programs.outlive))?;
    let each = |which: usize| (concealed[which] - plain[which]) * 1e6 / FILE_COUNT as f64;
    Ok([
        each(0),
        each(1),
        each(2),
        mandate * 1e6 / (2 * FILE_COUNT) as f64,
    ])
}

/// Seconds for each of three steps, and for the mandate.
fn timed(place: &Path, outlive: Option<&Path>) -> Result<([f64; 3], f64)> {
    let tree = place.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    fs::create_dir_all(tree.join("new"))?;
    for number in 0..FILE_COUNT {
        fs::write(tree.join(format!("file{number:04}")), [b'x'; 100])?;
    }
    fs::write(place.join("large"), vec![b'x'; 100 * FILE_COUNT])?;
    let script = format!(
        "t() {{ date +%s.%N >>times; }}; t; cat file* >/dev/null; t; cat file* >/dev/null; t; \
         split -a 4 -b 100 {} new/; t",
        place.join("large").display()
    );
    let mut mandate = 0.0;
    match outlive {
        None => {
            let mut plain = Command::new("sh");
            run(plain.args(["-c", &script]).current_dir(&tree))?;
        }
        Some(outlive) => {
            let speculate = |arguments: &[&str]| {
                let mut command = Command::new(outlive);
                command.arg("speculate").args(arguments);
                command.current_dir(&tree).stdin(Stdio::null());
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                let output = command.output()?;
                ensure!(
                    output.status.success(),
                    "outlive speculate: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                anyhow::Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            };
            speculate(&["run", "--name", "it", "--", "sh", "-c", &script])?;
            let began = Instant::now();
            while !speculate(&["list", "--json"])?.contains("\"ended\"") {
                ensure!(
                    began.elapsed() < Duration::from_secs(120),
                    "it does not end"
                );
                thread::sleep(Duration::from_millis(20));
            }
            let began = Instant::now();
            speculate(&["commit", "it"])?;
            mandate = began.elapsed().as_secs_f64();
        }
    }
    let times = fs::read_to_string(tree.join("times"))?;
    let times = times
        .lines()
        .map(str::parse::<f64>)
        .collect::<Result<Vec<_>, _>>()?;
    let [a, b, c, d] = times[..].try_into().context("four times")?;
    Ok(([b - a, c - b, d - c], mandate))
}
