//! Servers of which it is known before they run that they cannot be rebuilt from a record: `outlive check` says so. `serve` finds
//! out by itself, of any server.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// Shells, whose scripts begin other programs.
const SHELLS: [&str; 7] = ["ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"];
/// Where nginx looks for its configuration, as Debian and others build it.
const NGINX: &str = "/etc/nginx/nginx.conf";

/// What the server of this command does that cannot be replayed; `None`: nobody knows yet. `program` is its file.
pub(crate) fn obstacle(command: &[OsString], program: &Path) -> Option<String> {
    if let Some(shell) = wrap::program::script_of(program).as_deref().and_then(name) {
        return SHELLS.contains(&shell).then(|| {
            format!("it is a script of {shell}, which begins the server: give the server itself, and not what begins it")
        });
    }
    match name(program)? {
        "memcached" => Some(
            "other threads than its first one serve its clients; --north=require needs a server that serves its clients from one thread".into(),
        ),
        "nginx" if !is_one_process(command) => Some(
            "its workers share memory; --north=require needs one process: `master_process off; daemon off;` in its configuration".into(),
        ),
        _ => None,
    }
}

fn name(program: &Path) -> Option<&str> {
    program.file_name()?.to_str()
}

/// Does nginx do without workers, or is its configuration out of sight?
fn is_one_process(command: &[OsString]) -> bool {
    let after = |option: &str| {
        let at = command.iter().position(|word| word == option)?;
        command.get(at + 1)
    };
    let given = after("-g").map(|words| words.to_string_lossy());
    let file = after("-c").map_or_else(|| PathBuf::from(NGINX), PathBuf::from);
    let file = after("-p").map_or_else(|| file.clone(), |prefix| Path::new(prefix).join(&file));
    let Ok(configuration) = fs::read_to_string(file) else {
        return true;
    };
    let says = |text: &str| says(text, "master_process", "off");
    says(&configuration) || given.is_some_and(|given| says(&given))
}

/// Does a configuration of nginx have this directive?
fn says(configuration: &str, directive: &str, value: &str) -> bool {
    let lines = configuration.lines();
    let lines = lines.map(|line| line.split_once('#').map_or(line, |(before, _)| before));
    let text: Vec<&str> = lines.collect();
    let text = text.join("\n");
    let mut statements = text.split([';', '{', '}']).map(str::split_whitespace);
    statements.any(|mut words| words.next() == Some(directive) && words.next() == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_found_where_they_count() {
        let says = |text| says(text, "master_process", "off");
        assert!(says("master_process off;"));
        assert!(says("daemon off; master_process\n  off ; events {}"));
        assert!(says("events {}\nmaster_process off;\n"));
        assert!(!says("# master_process off;\nworker_processes 2;"));
        assert!(!says("master_process on;"));
        assert!(!says("error_log master_process;"));
        assert!(!says(""));
    }

    #[test]
    fn servers_of_which_nothing_is_known_have_no_obstacle() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        let obstacle = |line| {
            obstacle(
                &words(line),
                Path::new(words(line)[0].to_str().expect("text")),
            )
        };
        assert_eq!(obstacle("/no/such/redis-server --port 1"), None);
        assert!(obstacle("/no/such/memcached -p 1").is_some_and(|why| why.contains("threads")));
        assert_eq!(obstacle("/no/such/nginx -c /no/such/nginx.conf"), None);
    }
}
