use super::*;
use std::collections::BTreeSet;

#[test]
fn codes_are_pinned() {
    let codes = UnprotectedReason::ALL.map(UnprotectedReason::code);
    assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(UnprotectedReason::HandshakeNotSeen.code(), 6);
}

#[test]
fn every_code_leads_back_and_no_other_code_leads_anywhere() {
    for code in 0..=u8::MAX {
        let reason = UnprotectedReason::from_code(code);
        assert_eq!(reason.is_some(), (1..=9).contains(&code));
        assert!(reason.is_none_or(|reason| reason.code() == code));
    }
}

#[test]
fn each_reason_has_words_of_its_own() {
    let words: BTreeSet<_> = UnprotectedReason::ALL
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(words.len(), UnprotectedReason::ALL.len());
}
