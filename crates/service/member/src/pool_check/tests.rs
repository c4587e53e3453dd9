use super::*;

fn head(etag: Option<&str>, modified: &str, len: u64) -> Head {
    Head {
        status: 206,
        complete_len: Some(len),
        etag: etag.map(str::to_owned),
        last_modified: Some(modified.to_owned()),
        ..Head::default()
    }
}

fn judged(heads: &[Head], check: VersionCheck) -> Finding {
    let responses: Vec<Response> = heads.iter().cloned().map(Response::Head).collect();
    let names = ["web1", "web2", "web3"];
    let responses: Vec<(&str, &Response)> = names.into_iter().zip(&responses).collect();
    of_object("/x", &responses, responses.len(), check)
}

#[test]
fn equal_objects_agree() {
    let object = head(Some("\"a\""), "Mon", 7);
    let finding = judged(&[object.clone(), object], VersionCheck::Etag);
    assert!(finding.ok, "{finding:?}");
    assert_eq!(finding.answer, "206, strong ETag, 2 of 2 members agree");
}

#[test]
fn different_objects_are_shown_with_a_remedy() {
    let first = head(Some("\"5af9-7\""), "Mon", 7);
    for (second, check, code, words) in [
        (
            head(Some("\"5afa-7\""), "Tue", 7),
            VersionCheck::Etag,
            "etag",
            "rsync -t",
        ),
        (
            head(Some("\"b\""), "Mon", 7),
            VersionCheck::Etag,
            "etag",
            "use-inode",
        ),
        (
            head(Some("\"5af9-7\""), "Mon", 8),
            VersionCheck::Etag,
            "length",
            "other bytes",
        ),
        (
            head(None, "Tue", 7),
            VersionCheck::Modified,
            "last_modified",
            "rsync -t",
        ),
    ] {
        let finding = judged(&[first.clone(), second], check);
        assert_eq!((finding.ok, finding.warning), (false, false));
        assert_eq!(finding.code, Some(code), "{finding:?}");
        assert!(finding.answer.contains(words), "{finding:?}");
        assert!(finding.answer.contains("on web2"), "{finding:?}");
    }
}

#[test]
fn objects_without_full_protection_are_warnings() {
    let object = head(Some("\"a\""), "Mon", 7);
    let chunked = Head {
        is_chunked: true,
        ..object.clone()
    };
    let compressed = Head {
        is_compressed_on_the_fly: true,
        ..object.clone()
    };
    let whole = Head {
        status: 200,
        ..object.clone()
    };
    for (other, code) in [
        (chunked, "chunked"),
        (compressed, "gzip"),
        (whole, "no_ranges"),
    ] {
        let finding = judged(&[object.clone(), other], VersionCheck::Etag);
        assert!(!finding.ok && finding.warning, "{finding:?}");
        assert_eq!(finding.code, Some(code));
    }
}

#[test]
fn objects_without_validators_fail() {
    let object = Head {
        etag: Some("W/\"a\"".into()),
        last_modified: None,
        ..head(None, "", 7)
    };
    let finding = judged(&[object.clone(), object], VersionCheck::Etag);
    assert_eq!(finding.code, Some("no_validator"), "{finding:?}");
    let missing = Head {
        status: 404,
        ..Head::default()
    };
    let finding = judged(&[missing], VersionCheck::Etag);
    assert_eq!(finding.code, Some("status"));
    let failed = Response::Failed("refused".into());
    let finding = of_object("/x", &[("web1", &failed)], 1, VersionCheck::Etag);
    assert_eq!(finding.code, Some("server"));
}

#[test]
fn settings_of_a_host_are_judged() {
    let good = Answer {
        has_timestamps: true,
        has_sack: true,
        addresses_elsewhere: Vec::new(),
        responses: Vec::new(),
    };
    assert!(of_host("web1", &Ok(good.clone())).ok);
    let without = Answer {
        has_timestamps: false,
        ..good.clone()
    };
    let finding = of_host("web1", &Ok(without));
    assert!(
        finding.answer.contains("net.ipv4.tcp_timestamps=1"),
        "{finding:?}"
    );
    let elsewhere = Answer {
        addresses_elsewhere: vec!["10.0.0.10 (eth0)".into()],
        ..good
    };
    assert_eq!(
        of_host("web1", &Ok(elsewhere)).code,
        Some("address_elsewhere")
    );
    let silent = Err("no answer".to_owned());
    assert_eq!(
        of_host("web1", &silent).code,
        Some("member_does_not_answer")
    );
    let https_pool = [SocketAddr::from(([10, 0, 0, 10], HTTPS_PORT))];
    assert!(https(&https_pool).is_some_and(|finding| finding.warning));
}

#[test]
fn targets_with_blanks_are_none() {
    assert!(probe::is_target("/a?b=c"));
    for target in ["a", "/a b", "/a\r\nX: y", ""] {
        assert!(!probe::is_target(target), "{target:?}");
    }
}
