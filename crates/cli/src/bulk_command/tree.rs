//! A directory to receivers.

use std::{path::Path, time::Instant};

use bulk::{
    BulkError,
    sender::{Sender, Tree, TreeEvent, TreeReport},
};
use serde_json::json;
use serve::Priority;

use super::{SenderWatch, outcome_of, say};
use crate::{exit::Outcome, stdout, units::bytes_in_words};

pub(super) fn send(
    sender: &mut Sender<'_>,
    watch: &SenderWatch,
    source: &str,
    tree: Tree,
) -> Outcome {
    let began = Instant::now();
    let mut outcome = Outcome::Done;
    let report = sender.send_tree(tree, &mut |event| match event {
        TreeEvent::Begins(item) => watch.begin(item),
        TreeEvent::Progress(report) => show_progress(watch, source, &report),
        TreeEvent::Skipped { path, reason } => skipped(watch, path, reason),
        TreeEvent::Unreadable { path, error } => {
            watch.end();
            stdout::fail_in_one_line(error.code(), &format!("{}: {error}", path.display()));
            outcome = worse(outcome, error);
        }
        TreeEvent::NotStored {
            receiver,
            name,
            error,
        } => {
            watch.end();
            let at = &watch.names[receiver];
            let part = name.as_deref().unwrap_or(source);
            stdout::fail_in_one_line(error.code(), &format!("{part} to {at}: {error}"));
            outcome = worse(outcome, error);
        }
    });
    watch.end();
    if watch.stop.load(std::sync::atomic::Ordering::Relaxed) && outcome == Outcome::Done {
        let error = BulkError::Stopped;
        stdout::fail_in_one_line(error.code(), &format!("{source}: {error}"));
        return Outcome::Failed;
    }
    summarize(watch, source, &report, began.elapsed().as_secs_f64());
    outcome
}

/// One outcome of several failures: that of the first, or of all.
fn worse(before: Outcome, error: &BulkError) -> Outcome {
    let of_error = outcome_of(error);
    match before {
        Outcome::Done => of_error,
        _ if before == of_error => before,
        _ => Outcome::Failed,
    }
}

fn skipped(watch: &SenderWatch, path: &Path, reason: &str) {
    watch.end();
    let path = path.display().to_string();
    let words = format!("{path} is not sent: {reason}");
    let event = json!({"event": "skipped", "path": path, "reason": reason});
    say(watch.json, Priority::Warning, &words, event);
}

fn show_progress(watch: &SenderWatch, source: &str, report: &TreeReport) {
    let words = format!(
        "{source}: {}, {}",
        files_in_words(report.files),
        bytes_in_words(report.bytes)
    );
    watch.show(&words, || {
        json!({"event": "progress", "name": source, "files": report.files, "position": report.bytes})
    });
}

fn files_in_words(files: u64) -> String {
    match files {
        1 => "1 file".to_owned(),
        _ => format!("{files} files"),
    }
}

fn summarize(watch: &SenderWatch, source: &str, report: &TreeReport, seconds: f64) {
    let TreeReport {
        files,
        bytes,
        directories,
        links,
        skipped,
        failed,
    } = *report;
    let count = |count: u64, what: &str| match count {
        0 => String::new(),
        _ => format!(", {count} {what}"),
    };
    let words = format!(
        "{source}: {}, {} sent in {seconds:.1} s{}{}",
        files_in_words(files),
        bytes_in_words(bytes),
        count(skipped, "left out"),
        count(failed, "failed"),
    );
    let event = json!({
        "event": "done", "source": source, "files": files, "bytes": bytes, "directories": directories,
        "links": links, "skipped": skipped, "failed": failed, "seconds": seconds
    });
    let priority = match failed {
        0 => Priority::Notice,
        _ => Priority::Warning,
    };
    say(watch.json, priority, &words, event);
}
