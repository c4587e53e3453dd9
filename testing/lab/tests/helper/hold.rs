//! Makes a lab with a process on each of two hosts, prints `ready` with the names of the namespaces and the lab's
//! directory, and drops the lab at the end of standard input: for tests that kill the helper before.

use std::io::{Read, Write};

use lab::{Impairment, Lab, Output};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lab = Lab::new("hold")?;
    let mut sleepers = Vec::new();
    let mut names = Vec::new();
    for name in ["one", "two"] {
        let host = lab.add_host(name)?;
        host.impair(&Impairment::with_seed(0))?;
        sleepers.push(host.spawn(host.command("sleep").arg("1000"), &Output::Null)?);
        names.push(host.namespace().to_owned());
    }
    let mut stdout = std::io::stdout();
    writeln!(
        stdout,
        "ready {} {}",
        names.join(" "),
        lab.directory().display()
    )?;
    stdout.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
