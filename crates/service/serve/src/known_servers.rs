//! Servers that are known not to be replayable before they run: `outlive check` reports the reason, and `serve` does
//! not start. `serve` detects any other such server at run time.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// Shells, whose scripts begin other programs.
const SHELLS: [&str; 7] = ["ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"];
/// Configuration of nginx in the builds of Debian and other distributions.
const NGINX: &str = "/etc/nginx/nginx.conf";

/// The part of this command's server that cannot be replayed; `None`: not known yet. `program` is the file of the
/// command.
pub(crate) fn obstacle(command: &[OsString], program: &Path) -> Option<String> {
    if let Some(shell) = north_host::program::script_of(program)
        .as_deref()
        .and_then(name)
    {
        return SHELLS.contains(&shell).then(|| {
            format!("it is a script of {shell}, which begins the server: give the server itself, and not what begins it")
        });
    }
    match name(program)? {
        "memcached" => Some(
            "other threads than its first one serve its clients; --stateful=require needs a server that serves its clients from one thread".into(),
        ),
        "nginx" if !is_one_process(command) => Some(
            "its workers share memory; --stateful=require needs one process: `master_process off; daemon off;` in its configuration".into(),
        ),
        _ => None,
    }
}

fn name(program: &Path) -> Option<&str> {
    program.file_name()?.to_str()
}

/// Does nginx run without workers, or is the configuration unknown?
fn is_one_process(command: &[OsString]) -> bool {
    let after = |option: &str| {
        let at = command.iter().position(|word| word == option)?;
        command.get(at + 1)
    };
    let given = after("-g").map(|words| words.to_string_lossy());
    let file = after("-c").map_or_else(|| PathBuf::from(NGINX), PathBuf::from);
    let file = after("-p").map_or_else(|| file.clone(), |prefix| Path::new(prefix).join(&file));
    let says = |text: &str| values(text, "master_process").any(|value| value == "off");
    let configured = match fs::read_to_string(&file) {
        Ok(text) => says(&text) || included(&file, &text).any(|text| says(&text)),
        Err(_) => true,
    };
    configured || given.is_some_and(|given| says(&given))
}

/// Readable files that a configuration of nginx includes; includes of included files are ignored.
fn included(file: &Path, text: &str) -> impl Iterator<Item = String> {
    let directory = file.parent().unwrap_or(Path::new("/")).to_owned();
    let patterns: Vec<String> = values(text, "include").collect();
    let files = patterns
        .into_iter()
        .flat_map(move |pattern| matching(&directory.join(pattern)));
    files.filter_map(|file| fs::read_to_string(file).ok())
}

/// The files of this path, whose last part may have a single `*`.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().and_then(|name| name.to_str());
    let Some((before, after)) = name.and_then(|name| name.split_once('*')) else {
        return vec![pattern.to_owned()];
    };
    let listed = fs::read_dir(pattern.parent().unwrap_or(pattern));
    let files = listed.into_iter().flatten().flatten();
    let files = files.map(|file| file.path()).filter(|path| {
        let name = self::name(path).unwrap_or_default();
        name.len() >= before.len() + after.len()
            && name.starts_with(before)
            && name.ends_with(after)
    });
    files.collect()
}

/// The values that a configuration of nginx gives to this directive.
fn values(configuration: &str, directive: &'static str) -> impl Iterator<Item = String> {
    let lines = configuration.lines();
    let lines = lines.map(|line| line.split_once('#').map_or(line, |(before, _)| before));
    let text: Vec<&str> = lines.collect();
    let text = text.join("\n");
    let statements = text.split([';', '{', '}']).map(str::split_whitespace);
    let found = statements.filter_map(|mut words| {
        let is_it = words.next() == Some(directive);
        words.next().filter(|_| is_it).map(str::to_owned)
    });
    found.collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_in_scope_are_found() {
        let says = |text| values(text, "master_process").any(|value| value == "off");
        assert!(says("master_process off;"));
        assert!(says("daemon off; master_process\n  off ; events {}"));
        assert!(says("events {}\nmaster_process off;\n"));
        assert!(!says("# master_process off;\nworker_processes 2;"));
        assert!(!says("master_process on;"));
        assert!(!says("error_log master_process;"));
        assert!(!says(""));
    }

    #[test]
    fn directives_in_included_files_are_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("written");
            path
        };
        let file = write("nginx.conf", "include one-*.conf;\nevents {}");
        let command = ["nginx", "-c", &file.to_string_lossy()].map(OsString::from);
        assert!(!is_one_process(&command));
        write("one-more.conf", "master_process off;");
        assert!(is_one_process(&command));
        write("nginx.conf", "include one-more.con;");
        assert!(!is_one_process(&command));
    }

    #[test]
    fn unknown_servers_have_no_obstacle() {
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
