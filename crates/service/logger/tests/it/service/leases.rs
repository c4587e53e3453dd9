//! Leases that a logger with a directory grants.

use super::*;

/// A host that requests a lease, from a logger with a directory.
struct Asker {
    logger: Running,
    directory: tempfile::TempDir,
    attached: Attached,
    request: LeaseRequest,
}

impl Asker {
    fn new() -> Self {
        let (key, ring) = keys();
        let directory = tempfile::tempdir().expect("a directory");
        let logger = Running::start(ServiceConfig {
            directory: Some(directory.path().to_owned()),
            ..config(ring, "127.0.0.1:0")
        });
        let attached = Attached::to(&logger, &key, 1);
        let request = LeaseRequest {
            instance: 1,
            host: 2,
            number: 0,
            life: 0,
            preference: 0,
            standing: Standing::First,
            service: "test".into(),
        };
        Self {
            logger,
            directory,
            attached,
            request,
        }
    }

    fn verdict(&mut self, standing: Standing) -> Verdict {
        (self.request.number, self.request.standing) = (self.request.number + 1, standing);
        match self.attached.ask(&Request::Lease(self.request.clone())) {
            Response::Lease(answer) => {
                self.request.life = answer.life;
                answer.verdict
            }
            other => panic!("{other:?}"),
        }
    }

    /// A request of the holder of epoch 1, with the number of the last answer.
    fn holds(&mut self) -> Verdict {
        let answered = self.request.number;
        self.verdict(Standing::Holds {
            epoch: 1,
            speaks: true,
            leased: true,
            answered,
        })
    }

    fn is_granted(&mut self) {
        assert_eq!(self.verdict(Standing::First), Verdict::Wait);
        let granted = self.verdict(Standing::First);
        assert!(is_lease(granted), "{granted:?}");
    }
}

fn is_lease(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Lease { epoch: 1, .. })
}

/// A grant is stored before the answer, and the host need not request again.
#[test]
fn who_asks_for_a_lease_is_told_when_it_is_kept() {
    let mut asker = Asker::new();
    asker.is_granted();
    let book = std::fs::read_to_string(asker.directory.path().join("leases.json"));
    assert!(book.expect("it is kept").contains("\"epoch\":1"));
}

/// While the end of a lease's need cannot be stored, the host keeps a lease as before, and continues to send.
#[test]
fn who_serves_goes_on_while_nothing_can_be_noted() {
    let mut asker = Asker::new();
    asker.is_granted();
    std::fs::remove_dir_all(asker.directory.path()).expect("removed");
    let told = |event: Event| matches!(event, Event::Warning { reason, .. } if reason.contains("no host is granted"));
    // The warning comes with the next answer after the failed write.
    loop {
        let prolonged = asker.holds();
        assert!(is_lease(prolonged), "{prolonged:?}");
        if asker.logger.events.try_iter().any(told) {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    std::fs::create_dir(asker.directory.path()).expect("a directory");
    while is_lease(asker.holds()) {
        thread::sleep(Duration::from_millis(10));
    }
}
