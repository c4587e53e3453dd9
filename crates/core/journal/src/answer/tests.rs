use super::{ends_with_interim, is_answer};
use proptest::prelude::*;

#[test]
fn final_response_is_recognised() {
    for answer in [
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 404 ",
        "HTTP/2 103",
        "HTTP/1.1  1",
        "http/1.1 100",
        "x",
        "\0",
        "HTTQ",
    ] {
        assert!(is_answer(answer.as_bytes()), "{answer}");
    }
}

#[test]
fn interim_response_is_no_response() {
    for answer in [
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n",
        "HTTP/1.x 1",
        "HTTP/1.1 ",
        "HTTP",
        "H",
        "",
    ] {
        assert!(!is_answer(answer.as_bytes()), "{answer}");
    }
}

#[test]
fn response_follows_interim_responses() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n";
    let continues = "HTTP/1.1 100 Continue\r\n\r\n";
    let bare = "HTTP/1.0 102\r\n\r\n";
    for interim in [
        hints,
        continues,
        bare,
        &format!("{continues}{hints}{hints}"),
    ] {
        for answer in ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 2", "x"] {
            assert!(
                is_answer(format!("{interim}{answer}").as_bytes()),
                "{interim}{answer}"
            );
        }
        for none in ["", "HTTP/1.1 ", "HTTP/1.1 102 Proc", continues] {
            assert!(
                !is_answer(format!("{interim}{none}").as_bytes()),
                "{interim}{none}"
            );
        }
    }
}

#[test]
fn malformed_interim_ends_search() {
    for interim in [
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "HTTP/1.1 100 Continue\n\n",
        "HTTP/1.1 100 Continue\r\r\n\r\n",
        "HTTP/1.1 1000\r\n\r\n",
        "HTTP/1.1 1x0 Continue\r\n\r\n",
    ] {
        assert!(
            !is_answer(format!("{interim}HTTP/1.1 200 OK\r\n\r\n").as_bytes()),
            "{interim}"
        );
    }
}

#[test]
fn last_output_is_classified() {
    let continues = "HTTP/1.1 100 Continue\r\n\r\n";
    let ok = "HTTP/1.1 200 OK\r\n\r\nbody";
    for (said, interim) in [
        (String::new(), false),
        (continues.to_owned(), true),
        (ok.to_owned(), false),
        (format!("{ok}{continues}"), true),
        (format!("{ok}{}", &continues[..14]), true),
        (format!("{ok}HT"), true),
        (format!("{continues}{ok}"), false),
        (
            format!("{ok}HTTP/1.1 103 Hints\r\nVia: HTTP/1.1 x\r\n\r\n"),
            true,
        ),
        (format!("{continues}{continues}"), true),
        ("any other protocol".to_owned(), false),
    ] {
        assert_eq!(ends_with_interim(said.as_bytes()), interim, "{said}");
    }
}

/// A whole interim response.
fn interim() -> impl Strategy<Value = String> {
    let fields = prop::collection::vec("[A-Za-z]{1,8}: [ -~]{0,12}\r\n", 0..3);
    let code = (100u16..200).prop_filter("it changes the protocol", |code| *code != 101);
    ("[01]", code, "[ -~]{0,8}", fields).prop_map(|(minor, code, reason, fields)| {
        format!("HTTP/1.{minor} {code} {reason}\r\n{}\r\n", fields.concat())
    })
}

proptest! {
    /// Interim responses, cut anywhere, are no response. A final response behind them is a response from the first
    /// byte that tells both kinds apart.
    #[test]
    fn interim_responses_are_skipped(
        before in prop::collection::vec(interim(), 0..4),
        code in 200u16..600,
    ) {
        let before = before.concat();
        let all = format!("{before}HTTP/1.1 {code} Reason\r\n\r\n");
        let tells = before.len() + "HTTP/1.1 2".len();
        for cut in 0..all.len() {
            prop_assert_eq!(is_answer(&all.as_bytes()[..cut]), cut >= tells, "{}", cut);
        }
    }

    /// A response remains a response, with any bytes behind.
    #[test]
    fn response_stays_response(
        before in prop::collection::vec(interim(), 0..2),
        said: Vec<u8>,
        more: Vec<u8>,
    ) {
        let said = [before.concat().as_bytes(), &said].concat();
        prop_assert!(!is_answer(&said) || is_answer(&[said, more].concat()));
    }

    /// A trailing interim response is found behind any output.
    #[test]
    fn trailing_interim_is_found(said: Vec<u8>, interim in interim(), cut: prop::sample::Index) {
        let begun = &interim.as_bytes()[..1 + cut.index(interim.len())];
        prop_assert!(ends_with_interim(&[&said, begun].concat()));
    }
}
