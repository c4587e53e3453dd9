//! Sections of man pages that are not made of the arguments: exit status, environment, files and examples.

use super::roff::plain;

/// A word, and the meaning of the word.
type Item = (&'static str, &'static str);

/// The sections of a page, in the order of the page.
pub(super) fn of(page: &str) -> String {
    let mut text = list("EXIT STATUS", 'B', exit_status(page));
    text += &list("ENVIRONMENT", 'B', environment(page));
    text += &list("FILES", 'I', files(page));
    text + &examples(page)
}

fn list(title: &str, font: char, items: &[Item]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let item = |(word, means): &Item| {
        let (word, means) = (plain(word), plain(means));
        format!(".TP\n\\f{font}{word}\\fR\n{means}\n")
    };
    let items: Vec<String> = items.iter().map(item).collect();
    format!(".SH \"{title}\"\n{}", items.concat())
}

/// Each with a sentence before the commands.
fn examples(page: &str) -> String {
    let examples = examples_of(page);
    if examples.is_empty() {
        return String::new();
    }
    let example = |(says, commands): &Item| {
        // An apostrophe that a shell understands where the page is copied from.
        let (says, commands) = (plain(says), plain(commands).replace('\'', "\\(aq"));
        format!(".PP\n{says}\n.PP\n.RS 4\n.nf\n{commands}\n.fi\n.RE\n")
    };
    let examples: Vec<String> = examples.iter().map(example).collect();
    format!(".SH EXAMPLES\n{}", examples.concat())
}

/// Pages of services and loggers. The codes are those of `exit.rs`.
const OF_SERVICES: &[Item] = &[
    (
        "0",
        "The command is done, or the server has ended by itself with status 0.",
    ),
    (
        "1",
        "The server ended before it listened, or the requested operation failed. Another try may help.",
    ),
    (
        "64",
        "The command line is wrong, or names a service that does not exist.",
    ),
    (
        "69",
        "An address, a network device or a logger is not there. A later try may help.",
    ),
    ("70", "A fault of outlive. Another try may help."),
    (
        "71",
        "This host or this kernel lacks something that outlive needs.",
    ),
    (
        "75",
        "Something is in the way, such as a port in use or another outlive serve. A later try may help.",
    ),
    (
        "77",
        "A permission is missing: capabilities, or a key that the logger knows.",
    ),
    (
        "78",
        "The configuration is wrong, or asks for something impossible.",
    ),
];
const OF_MAKE: &[Item] = &[
    (
        "the status of make",
        "outlive make ends as make would end here: with the exit status of make, or by the same signal.",
    ),
    (
        "0",
        "With --status, --stop or --watch: the command is done.",
    ),
    (
        "1",
        "make cannot be run. With --status or --stop: this directory has no watcher, or the watcher does not answer.",
    ),
    (
        "64",
        "The command line is wrong, make is not found, or this directory has a watcher already.",
    ),
    (
        "71",
        "This host, kernel, user or file system lacks something that --watch needs, such as root or /dev/fuse.",
    ),
];
const OF_SPECULATE: &[Item] = &[
    (
        "the status of the command",
        "outlive speculate commit ends as the command ended: with the same exit status, or by the same signal.",
    ),
    (
        "0",
        "The speculation has begun, the speculations are aborted, or the list is printed.",
    ),
    (
        "1",
        "The request is refused, or failed: the message gives the reason.",
    ),
    (
        "64",
        "The command line is wrong, or the command, the name or the directory cannot be used.",
    ),
    (
        "71",
        "This host, kernel or user lacks something that outlive speculate needs, such as root or /dev/fuse.",
    ),
];
const OF_LAB: &[Item] = &[
    ("0", "The command is done."),
    (
        "1",
        "The process that holds the lab is dead: outlive lab down removes the rest.",
    ),
    (
        "64",
        "The command line is wrong, or names a lab or a host that does not exist or is off.",
    ),
    ("70", "A fault of outlive, or of this host."),
    ("77", "The caller is not root."),
];
const OF_LAB_EXEC: &[Item] = &[
    (
        "the status of the command",
        "outlive becomes the command, which ends as usual.",
    ),
    ("64", "The command line is wrong."),
    (
        "125",
        "outlive failed: the lab or the host does not exist, or the host is off.",
    ),
    ("126", "The command cannot be run."),
    ("127", "The command is not found."),
];

fn exit_status(page: &str) -> &'static [Item] {
    match page {
        "outlive-make" => OF_MAKE,
        page if page.starts_with("outlive-speculate") => OF_SPECULATE,
        "outlive-lab-exec" => OF_LAB_EXEC,
        _ if page.starts_with("outlive-lab") => OF_LAB,
        "outlive-man" | "outlive-completions" | "outlive-key" => &[],
        _ => OF_SERVICES,
    }
}

const LOG: Item = (
    "OUTLIVE_LOG",
    "Level of the messages beside the events: error, warn (the default), info or debug.",
);

const CACHES: Item = (
    "TMPDIR, CCACHE_DIR, CARGO_HOME, GOCACHE, npm_config_cache, XDG_CACHE_HOME, XDG_CONFIG_HOME, HOME",
    "Places of directories whose changes are kept back (see FILES).",
);

fn environment(page: &str) -> &'static [Item] {
    match page {
        "outlive-make" => &[
            LOG,
            (
                "XDG_RUNTIME_DIR",
                "Directory for the library and the program of outlive that make calls (see FILES).",
            ),
            CACHES,
        ],
        page if page.starts_with("outlive-speculate") => &[LOG, CACHES],
        _ if page.starts_with("outlive-lab") => &[
            LOG,
            (
                "OUTLIVE_LAB_DIR",
                "Directory of all labs, as with --lab-dir.",
            ),
        ],
        "outlive-man" | "outlive-completions" | "outlive-key" => &[],
        _ => &[
            LOG,
            (
                "OUTLIVE_RUN_DIR",
                "Directory of sockets, locks and private mounts, as with --run-dir.",
            ),
            (
                "STATE_DIRECTORY",
                "Directory of the history where --history is not given; systemd sets this variable.",
            ),
            (
                "NOTIFY_SOCKET, WATCHDOG_USEC",
                "Set by systemd: outlive serve, standby, logger and balance tell that they are ready, and that they go on.",
            ),
        ],
    }
}

const TEMPORARY: Item = (
    "/tmp, /var/tmp, $TMPDIR",
    "Changes below these directories are kept back, as changes below the project's directory are.",
);
const REPOSITORY: Item = (
    ".git",
    "Changes of the repository around the project's directory are kept back, too.",
);
const KEPT_AT_HOME: Item = (
    "~/.cache/ccache, ~/.ccache, ~/.cargo, ~/.cache/go-build, ~/.config/go/telemetry, ~/.npm",
    "Changes of these caches are kept back, too, if the directories exist. The variables above name other places.",
);

fn files(page: &str) -> &'static [Item] {
    match page {
        "outlive-make" => &[
            TEMPORARY,
            REPOSITORY,
            KEPT_AT_HOME,
            (
                "$XDG_RUNTIME_DIR, /run, /var/lib/outlive",
                "The first of these directories that can be written to, and from which programs may run, has the library and the program that make calls.",
            ),
        ],
        page if page.starts_with("outlive-speculate") => &[TEMPORARY, REPOSITORY, KEPT_AT_HOME],
        _ if page.starts_with("outlive-lab") => &[
            (
                "/run/outlive-lab/NAME/log",
                "Messages of the process that holds the lab (--lab-dir, OUTLIVE_LAB_DIR).",
            ),
            (
                "/run/outlive-lab/NAME/hosts/HOST/",
                "OUTLIVE_RUN_DIR of the commands on a host.",
            ),
        ],
        "outlive-man" | "outlive-completions" | "outlive-key" => &[],
        _ => &[
            (
                "/run/outlive/NAME/",
                "Socket, lock and notes of a service (--run-dir, OUTLIVE_RUN_DIR).",
            ),
            (
                "/run/outlive/.balance/NAME/",
                "Socket, lock and notes of outlive balance.",
            ),
            (
                "/run/outlive/.objects/NAME/",
                "Socket, lock and notes of outlive objects.",
            ),
            (
                "/etc/outlive/NAME.toml",
                "Options of outlive@NAME.service (--config).",
            ),
            (
                "/etc/outlive/logger.toml",
                "Options of outlive-logger.service.",
            ),
            (
                "/var/lib/outlive/history/NAME/events.jsonl",
                "Events of a service (--history).",
            ),
        ],
    }
}

fn examples_of(page: &str) -> &'static [Item] {
    match page {
        "outlive" => &[(
            "Protect nginx, and look at the service:",
            "outlive serve --address 10.0.0.10:80 --name web -- nginx -g 'daemon off;'\noutlive status web",
        )],
        "outlive-serve" => &[
            (
                "Protect nginx, with the record on this host:",
                "outlive serve --address 10.0.0.10:80 -- nginx -g 'daemon off;'",
            ),
            (
                "Read the options from a file:",
                "outlive serve --config /etc/outlive/web.toml --name web",
            ),
            (
                "Keep the record on another machine, so that connections outlive a restart of this host, too:",
                "outlive serve --address 10.0.0.10:80 --address-device eth0 --logger 10.0.0.9:7600 --key-file keys -- nginx -g 'daemon off;'",
            ),
            (
                "Rebuild the state of redis, and make checkpoints:",
                "outlive serve --address 10.0.0.10:6379 --stateful=require --checkpoint-at 256MiB -- redis-server --bind 10.0.0.10 --protected-mode no --save ''",
            ),
        ],
        "outlive-standby" => &[
            (
                "Serve on one host, and stand by on another host, with the same options:",
                "a# outlive serve   --address 10.0.0.10:80 --address-device eth0 --logger 10.0.0.9:7600 --key-file keys -- nginx -g 'daemon off;'\nb# outlive standby --address 10.0.0.10:80 --address-device eth0 --logger 10.0.0.9:7600 --key-file keys -- nginx -g 'daemon off;'",
            ),
            (
                "Read the options from a file, as outlive@web.service with standby.conf does:",
                "outlive standby --config /etc/outlive/web.toml --name web",
            ),
        ],
        "outlive-logger" => &[
            (
                "Make a key, and keep records on disk:",
                "(umask 077; outlive key > keys)\noutlive logger --listen 10.0.0.9:7600 --key-file keys --dir /var/lib/outlive-logger",
            ),
            (
                "Declare the host of the service web gone for good:",
                "outlive logger release web --logger 10.0.0.9:7600 --key-file keys",
            ),
        ],
        "outlive-objects" => &[(
            "Serve as a member of the pool of the balancer at 10.0.0.1; the line is the same on each host:",
            "outlive objects --pool 10.0.0.1:7700 --key-file keys -- nginx -g 'daemon off;'",
        )],
        "outlive-balance" => &[
            (
                "Balance a pool, and bring the address up on eth0:",
                "(umask 077; outlive key > keys)\noutlive balance --address 10.0.0.10:80 --address-device eth0 --listen 10.0.0.1:7700 --key-file keys",
            ),
            ("Show the members of the pool:", "outlive balance status"),
            (
                "Two balancers with the table in etcd; the line is the same on both hosts, but for --listen:",
                "outlive balance --address 10.0.0.10:80 --listen 10.0.0.1:7700 --key-file keys --register etcd://10.0.0.5:2379",
            ),
        ],
        "outlive-send" => &[
            (
                "Send a file to two hosts at the same time:",
                "outlive send disk.qcow2 10.0.0.2:7601 10.0.0.3:7601 --key-file keys",
            ),
            (
                "Send a directory, as an archive:",
                "tar -c www | outlive send - 10.0.0.2:7601/www.tar --key-file keys",
            ),
        ],
        "outlive-receive" => &[(
            "Make a key, and receive files:",
            "(umask 077; outlive key > keys)\noutlive receive /srv/images --listen 10.0.0.2:7601 --key-file keys",
        )],
        "outlive-balance-status" => &[(
            "Show the members of the pool as JSON:",
            "outlive balance status --json",
        )],
        "outlive-logger-release" => &[(
            "Declare the host of the service web gone for good:",
            "outlive logger release web --logger 10.0.0.9:7600 --key-file keys",
        )],
        "outlive-switchover" => &[(
            "Hand the service web over to the other host:",
            "outlive switchover web",
        )],
        "outlive-restart" => &[(
            "Start another version of the server, with all connections:",
            "outlive restart web",
        )],
        "outlive-status" => &[
            (
                "Show all services, balancers and members of this host:",
                "outlive status",
            ),
            (
                "Show one service with every connection, as JSON:",
                "outlive status --connections --json web",
            ),
        ],
        "outlive-events" => &[
            (
                "Show the events of a service, and continue with new events:",
                "outlive events --follow web",
            ),
            (
                "Select the deaths of the server:",
                "outlive events --json web | jq 'select(.event == \"died\")'",
            ),
        ],
        "outlive-history" => &[
            (
                "Show the events of the last twelve hours:",
                "outlive history web --since 12h",
            ),
            (
                "Show who asked for a switchover or a restart:",
                "outlive history web --json | jq 'select(.event == \"operator_request\")'",
            ),
        ],
        "outlive-check" => &[
            ("Check this host alone:", "outlive check"),
            (
                "Check an address and a command:",
                "outlive check --address 10.0.0.10:80 -- nginx -g 'daemon off;'",
            ),
            (
                "Check the options of a file:",
                "outlive check --config /etc/outlive/web.toml --name web",
            ),
            (
                "Check whether the members of a pool have the same objects:",
                "outlive check --pool 10.0.0.1:7700 --key-file keys --url /big.iso",
            ),
            (
                "Check whether a logger answers:",
                "outlive check --logger 10.0.0.9:7600 --key-file keys",
            ),
        ],
        "outlive-clean" => &[(
            "End a server whose outlive serve was killed, and remove the remains:",
            "outlive clean --kill web",
        )],
        "outlive-key" => &[(
            "Make a key file that only its owner may read:",
            "(umask 077; outlive key > keys)",
        )],
        "outlive-make" => &[
            (
                "Watch a project, save a file, and show the finished build:",
                "outlive make --watch &\n$EDITOR src/parser.c\noutlive make",
            ),
            (
                "Show the state of the watcher, and stop the watcher:",
                "outlive make --status\noutlive make --stop",
            ),
        ],
        "outlive-speculate" => &[(
            "Build, test the result, and show the effects of both commands at the end:",
            "outlive speculate run --name build -- make -C src\noutlive speculate run --name test --input build -- ./src/test\noutlive speculate list\noutlive speculate commit test",
        )],
        "outlive-lab" => &[(
            "Download by a link with losses, and kill the server:",
            "outlive lab up\noutlive lab exec server -- outlive serve --address 10.0.0.1:80 -- nginx -g 'daemon off;' &\noutlive lab loss client 1\noutlive lab exec client -- curl -O http://10.0.0.1/large &\noutlive lab kill server nginx\noutlive lab down",
        )],
        "outlive-lab-exec" => &[(
            "Show the services of a host:",
            "outlive lab exec server -- outlive status",
        )],
        "outlive-version" => &[(
            "Compare the formats of two hosts before an upgrade:",
            "diff <(outlive version) <(ssh other outlive version)",
        )],
        "outlive-man" => &[(
            "Write the pages to a directory that man searches:",
            "outlive man /usr/local/share/man",
        )],
        "outlive-completions" => &[(
            "Each shell looks for the script in a directory of its own:",
            "outlive completions bash > /usr/share/bash-completion/completions/outlive\noutlive completions zsh > /usr/local/share/zsh/site-functions/_outlive\noutlive completions fish > /usr/share/fish/vendor_completions.d/outlive.fish",
        )],
        _ => &[],
    }
}
