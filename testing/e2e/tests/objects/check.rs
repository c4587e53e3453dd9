//! `outlive check --pool`.

use e2e::pool::{POOL_PORT, Pool};
use serde_json::Value;

fn check(pool: &Pool, more: &[&str]) -> std::process::Output {
    let balancer = &pool.balancer;
    let at = format!("[{}]:{POOL_PORT}", balancer.host.address().ipv6());
    let keys = pool.scene.directory().join("pool.keys");
    let keys = keys.to_string_lossy();
    let words = ["check", "--pool", &at, "--key-file", &keys];
    balancer.outlive(&[&words[..], more].concat())
}

fn findings(output: &std::process::Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON")
}

fn about(findings: &[Value], question: &str) -> Value {
    let mut all = findings.iter();
    let found = all.find(|finding| finding["question"] == question);
    found
        .unwrap_or_else(|| panic!("no {question}: {findings:?}"))
        .clone()
}

#[test]
fn members_with_equal_objects_agree() {
    let pool = Pool::of("objects-check", 2);
    let output = check(&pool, &["--url", "/big.bin", "--url", "/small/3"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("members: web1, web2"), "{text}");
    let agreed = "ok   /big.bin: 206, strong ETag, 2 of 2 members agree";
    assert!(text.contains(agreed), "{text}");
    assert!(text.contains("ok   /small/3: "), "{text}");
    // The check joined no pool.
    assert!(pool.balancer.events_of("refused").is_empty());
    assert_eq!(pool.balancer.events_of("joined").len(), 2);
    pool.stop();
}

#[test]
fn missing_object_and_wrong_setting_are_found() {
    let pool = Pool::of("objects-check-bad", 2);
    let second = &pool.members[1].program.host;
    second
        .sysctl("net.ipv4.tcp_timestamps", "0")
        .expect("a setting");
    let output = check(&pool, &["--url", "/none", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let findings = findings(&output);
    assert_eq!(about(&findings, "web1")["ok"], true);
    let setting = about(&findings, "web2");
    assert_eq!(setting["code"], "tcp_setting");
    let remedy = setting["answer"].as_str().expect("words");
    assert!(remedy.contains("net.ipv4.tcp_timestamps=1"), "{remedy}");
    assert_eq!(about(&findings, "/none")["code"], "status");
    pool.stop();
}

#[test]
fn absent_balancer_and_other_key_are_reported() {
    let mut pool = Pool::of("objects-check-none", 1);
    let other = pool.balancer.outlive(&["key"]);
    let keys = pool.scene.write("other.keys", other.stdout);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&keys, mode).expect("a mode");
    let at = format!("[{}]:{POOL_PORT}", pool.balancer.host.address().ipv6());
    let keys = keys.to_string_lossy().into_owned();
    let arguments = ["check", "--pool", &at, "--key-file", &keys];
    let refused = pool.members[0].program.outlive(&arguments);
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    pool.balancer.kill();
    let absent = check(&pool, &[]);
    assert_eq!(absent.status.code(), Some(69), "{absent:?}");
    let words = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(words.contains("outlive balance"), "{words}");
}
