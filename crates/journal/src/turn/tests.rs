use super::is_final;

#[test]
fn an_answer_is_what_is_not_an_interim_response() {
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
        assert!(is_final(answer.as_bytes()), "{answer}");
    }
}

#[test]
fn an_interim_response_or_what_may_become_one_is_not_an_answer() {
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
        assert!(!is_final(answer.as_bytes()), "{answer}");
    }
}
