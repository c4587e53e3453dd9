//! Words in names that the house replaces by the terms of the field.
//!
//! A word with a capital is the name of a type. A word with `.rs` is the name of a file, and `*` stands for any
//! beginning. Any other word is part of the name of a function, a module or a file, between underscores.

/// A word, and the standard term.
pub(crate) struct Replaced {
    pub(crate) word: &'static str,
    pub(crate) standard: &'static str,
}

const fn replaced(word: &'static str, standard: &'static str) -> Replaced {
    Replaced { word, standard }
}

pub(crate) const REPLACED: &[Replaced] = &[
    replaced("*_of.rs", "the component that owns the state"),
    replaced("act.rs", "executor.rs"),
    replaced("adopting.rs", "adoption.rs"),
    replaced("again", "the condition"),
    replaced("ahead", "snd_*, unacked"),
    replaced("announcing.rs", "garp.rs"),
    replaced("Arrival", "InstreamSegment"),
    replaced("Asked", "Request"),
    replaced("asked.rs", "expected_targets.rs"),
    replaced("awake", "busy_poll"),
    replaced("befalls", "record_exit"),
    replaced("begin_anew", "register_instance"),
    replaced("beside.rs", "shared_state_guard.rs"),
    replaced("book", "lease_store"),
    replaced("bury", "reap"),
    replaced("changes.rs", "sysctl_backup.rs"),
    replaced("checking.rs", "preflight.rs"),
    replaced("comes_to_crash", "await_service_kill"),
    replaced("conceive", "fork_prepare"),
    replaced("condemn", "quarantine"),
    replaced("crosses", "is_shared_channel"),
    replaced("deaf", "disconnected"),
    replaced("desk", "rpc"),
    replaced("Dialed", "AttachedLogger"),
    replaced("Dialing", "DialAttempt"),
    replaced("dialing.rs", "dial.rs"),
    replaced("Embryo", "HalfOpen"),
    replaced("embryo", "half_open"),
    replaced("embryos", "half_open"),
    replaced("feed", "log_feed"),
    replaced("Follower", "Replication"),
    replaced("following.rs", "hot_replica.rs, replication.rs"),
    replaced("goes_on", "promote"),
    replaced("Ground", "Resources, Context"),
    replaced("Happening", "Event"),
    replaced("hasty", "early_ack"),
    replaced("hatch", "promote"),
    replaced("hear", "on_message"),
    replaced("Heard", "the message"),
    replaced("heard", "handover_report"),
    replaced("heed", "handle"),
    replaced("Held", "DeferredOutput"),
    replaced("heritage", "inherited_records"),
    replaced("inheriting.rs", "inheritance.rs"),
    replaced("intake", "ingest"),
    replaced("is_dispensable", "may_skip_replay"),
    replaced("is_talk", "is_ipc"),
    replaced("joining.rs", "outbound.rs"),
    replaced("keeper", "lease_client, daemon"),
    replaced("Kept", "Retained, Backup"),
    replaced("kept", "snapshot_tail, retained"),
    replaced("kin", "sibling"),
    replaced("kinship", "process_group"),
    replaced("later.rs", "output_commit/deferred.rs"),
    replaced("leads_to_kin", "is_shared_channel"),
    replaced("leasing.rs", "standby_eligibility.rs"),
    replaced("life", "incarnation"),
    replaced("lives", "incarnations"),
    replaced("look_at", "poll"),
    replaced("meanwhile.rs", "connect_during_outage.rs"),
    replaced("Mortal", "CrashableLogger"),
    replaced("News", "LinkEvent"),
    replaced("no_room.rs", "zero_window.rs"),
    replaced("nobody", "subject_condition_result"),
    replaced("nobodys_since", "unserved_since"),
    replaced("Note", "Determinant, ReadCursor, RingFrame"),
    replaced("Notes", "Determinants, ReadCursors"),
    replaced("notes.rs", "determinants.rs, read_cursors.rs"),
    replaced("nothing", "subject_condition_result"),
    replaced("noting", "determinants, read_cursors"),
    replaced("others", "coexistence, the subject"),
    replaced("outside", "syscall_gate"),
    replaced("own_addresses", "vip"),
    replaced("Passed", "ProcessReport"),
    replaced("pausing.rs", "snapshot_point.rs"),
    replaced("Place", "Position"),
    replaced("probing.rs", "prober.rs"),
    replaced("reaching.rs", "attachment.rs"),
    replaced("rehearsal", "shadow_replay"),
    replaced("relatives", "siblings"),
    replaced("releasing.rs", "log_truncation.rs"),
    replaced("renewing.rs", "record_reset.rs"),
    replaced("restoring.rs", "restoration.rs"),
    replaced("Room", "Sandbox, SocketBudget, MountNamespace"),
    replaced("room", "sandbox, budget"),
    replaced("rude", "abortive_close"),
    replaced("Said", "OutstreamSegment"),
    replaced("said", "divergence, ack_sent"),
    replaced("said_so_far", "snd_nxt"),
    replaced("seldom", "sparse_clients"),
    replaced("shipping", "determinant_sender"),
    replaced("somebody", "subject_condition_result"),
    replaced("spoken", "snd_*"),
    replaced("Standing", "ReplayPosition, HolderState, WatcherStatus"),
    replaced("standing_by", "standby"),
    replaced("Step", "a name of the stage"),
    replaced("surveying.rs", "survey.rs"),
    replaced("taking_over", "adoption"),
    replaced("talk", "ipc_replay"),
    replaced("talking", "commands"),
    replaced("tally", "counters"),
    replaced("tell", "emit"),
    replaced("telling", "narration"),
    replaced("those", "subject_condition_result"),
    replaced("together.rs", "prefetch.rs"),
    replaced("Told", "last_reported"),
    replaced("told", "ack_sent, last_reported"),
    replaced("Trouble", "Warning, with a code"),
    replaced("turn", "request, run_once, iteration"),
    replaced("turning", "event_loop"),
    replaced("twice", "ab_builds"),
    replaced("unconfirmed.rs", "unconfirmed_frames.rs"),
    replaced("unfound", "lookup_missed"),
    replaced("unknown.rs", "unknown_flows.rs"),
    replaced("Unsaid", "PendingIpcWrite"),
    replaced("was_for_nothing", "record_false_suspicion"),
    replaced("watching.rs", "liveness.rs"),
    replaced("Way", "Direction, Route"),
    replaced("weather", "datagram_faults"),
    replaced("what", "subject_condition_result"),
    replaced("who", "subject_condition_result"),
    replaced("whoever", "subject_condition_result"),
    replaced("Witness", "InvariantChecker"),
    replaced("World", "Model, Host"),
];

/// Words that a type has in its name.
pub(crate) fn of_type(name: &str) -> impl Iterator<Item = &'static Replaced> {
    REPLACED
        .iter()
        .filter(move |replaced| replaced.word == name)
}

/// Words that a function or a module has in its name.
pub(crate) fn of_function(name: &str) -> impl Iterator<Item = &'static Replaced> {
    let is_word =
        |word: &str| !word.ends_with(".rs") && word.starts_with(|c: char| c.is_lowercase());
    let mut words = REPLACED.iter();
    std::iter::from_fn(move || {
        words.find(|replaced| is_word(replaced.word) && contains(name, replaced.word))
    })
}

/// Words that a file has in its name: the last parts of a path, without the crate.
pub(crate) fn of_file(name: &str) -> impl Iterator<Item = &'static Replaced> {
    let stem = name.strip_suffix(".rs").unwrap_or(name);
    let files = REPLACED
        .iter()
        .filter(move |replaced| match replaced.word.strip_prefix('*') {
            Some(end) => name.ends_with(end),
            None => replaced.word == name,
        });
    files.chain(of_function(stem))
}

/// Whether the parts of a name have the parts of a word, one after the other.
fn contains(name: &str, word: &str) -> bool {
    let name: Vec<&str> = name.split('_').collect();
    let word: Vec<&str> = word.split('_').collect();
    name.windows(word.len()).any(|parts| parts == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(of: impl Iterator<Item = &'static Replaced>) -> Vec<&'static str> {
        of.map(|replaced| replaced.word).collect()
    }

    #[test]
    fn names_are_compared_by_whole_parts() {
        assert_eq!(words(of_function("look_at_link")), ["look_at"]);
        assert_eq!(words(of_function("outlook_at")), [""; 0]);
        assert_eq!(
            words(of_function("heed_what_is_said")),
            ["heed", "said", "what"]
        );
        assert_eq!(words(of_type("Standing")), ["Standing"]);
        assert_eq!(words(of_type("StandingOrder")), [""; 0]);
    }

    #[test]
    fn files_have_patterns_and_words() {
        assert_eq!(words(of_file("link_of.rs")), ["*_of.rs"]);
        assert_eq!(words(of_file("kinship.rs")), ["kinship"]);
        assert_eq!(words(of_file("act.rs")), ["act.rs"]);
        assert_eq!(words(of_file("act_now.rs")), [""; 0]);
    }

    #[test]
    fn words_are_sorted_and_unique() {
        let order = |replaced: &Replaced| {
            (
                replaced.word.to_lowercase().replace(['*', '.'], " "),
                replaced.word,
            )
        };
        let is_sorted = REPLACED
            .windows(2)
            .all(|two| order(&two[0]) < order(&two[1]));
        assert!(is_sorted);
    }
}
