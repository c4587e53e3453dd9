//! Names of services in the completions of shells. The names are the directories of the run directory, which every user
//! may list.

use clap_complete::Shell;

/// Verbs of a service.
const VERBS: [&str; 6] = [
    "status",
    "events",
    "history",
    "switchover",
    "restart",
    "clean",
];

const BASH: &str = r#"
_outlive_and_services() {
    _outlive "$@"
    local verb="${COMP_WORDS[1]}" current="${COMP_WORDS[COMP_CWORD]}"
    if [[ $COMP_CWORD -gt 1 && " VERBS " == *" $verb "* && $current != -* && ${COMP_WORDS[COMP_CWORD-1]} != --?*dir && ${COMP_WORDS[COMP_CWORD-1]} != --history ]]; then
        local services=$(cd "${OUTLIVE_RUN_DIR:-/run/outlive}" 2>/dev/null && echo *)
        COMPREPLY=( "${COMPREPLY[@]}" $(compgen -W "${services#\*}" -- "$current") )
    fi
}
complete -F _outlive_and_services -o bashdefault -o default outlive
"#;

const ZSH: &str = r#"
_outlive_services() {
    local -a services=( ${OUTLIVE_RUN_DIR:-/run/outlive}/*(N/:t) )
    compadd -a services
}
"#;

const FISH: &str = r#"complete -c outlive -n "__fish_seen_subcommand_from VERBS" -f -a '(set -q OUTLIVE_RUN_DIR; or set -l OUTLIVE_RUN_DIR /run/outlive; command ls $OUTLIVE_RUN_DIR 2>/dev/null)' -d 'Service'
"#;

/// The script of a shell, with the names of services. The script of any other shell is unchanged.
pub(super) fn known_to(shell: Shell, script: String) -> String {
    let verbs = VERBS.join(" ");
    match shell {
        Shell::Bash => script.replace(" [SERVICE]", "") + &BASH.replace("VERBS", &verbs),
        Shell::Fish => script + &FISH.replace("VERBS", &verbs),
        Shell::Zsh => zsh(&script),
        _ => script,
    }
}

fn zsh(script: &str) -> String {
    let lines = script.lines().map(|line| match line {
        "autoload -U is-at-least" => format!("{line}\n{ZSH}"),
        line if line.starts_with("'::service -- ") => {
            line.replace(":_default'", ":_outlive_services'")
        }
        line => line.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}
