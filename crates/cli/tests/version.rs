//! `outlive version` beside the table of `CONTRIBUTING.md`.

use std::process::Command;

use serde_json::Value;

fn output(arguments: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_outlive"));
    let output = program
        .args(arguments)
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Name and version of each row of the table.
fn documented() -> Vec<(String, u64)> {
    let text = include_str!("../../../CONTRIBUTING.md");
    let rows = text
        .lines()
        .skip_while(|line| *line != "## Versions of formats");
    let rows = rows.skip(1).take_while(|line| !line.starts_with("## "));
    rows.filter_map(|row| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        let name = cells.next()?.replace('`', "");
        // Remarks behind the name are in parentheses.
        let name = name.split(" (").next()?.to_owned();
        Some((name, cells.next()?.parse().ok()?))
    })
    .collect()
}

#[test]
fn version_lists_the_formats_of_the_documented_table() {
    let page: Value = serde_json::from_str(&output(&["version", "--json"])).expect("JSON");
    let formats = page["formats"].as_array().expect("a list");
    let listed: Vec<_> = formats
        .iter()
        .map(|format| {
            let (name, version) = (&format["name"], &format["version"]);
            assert!(format["oldest"].as_u64() <= version.as_u64(), "{format}");
            let name = name.as_str().expect("a name").to_owned();
            (name, version.as_u64().expect("a number"))
        })
        .collect();
    let one_word = |name: &str| name.to_lowercase().replace([' ', '.'], "_");
    let documented = documented();
    let wanted = documented
        .iter()
        .map(|(name, version)| (one_word(name), *version));
    assert_eq!(listed, wanted.collect::<Vec<_>>());
    let text = output(&["version"]);
    for (name, version) in &documented {
        let mut lines = text.lines().filter(|line| line.starts_with(name));
        let is_of_version =
            |line: &str| line[name.len()..].trim().starts_with(&version.to_string());
        assert!(lines.any(is_of_version), "{name} {version} in {text}");
    }
}
