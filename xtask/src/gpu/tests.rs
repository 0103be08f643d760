use super::*;

/// Runs the script without a GPU, on programs that are shell scripts.
#[cfg(unix)]
fn results(programs: [(&str, &str); 4]) -> (bool, Value, String) {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    for (name, commands) in programs {
        let program = folder.path().join(name);
        fs::write(&program, format!("#!/bin/sh\n{commands}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = folder.path().join("run.py");
    fs::write(&script, SCRIPT).unwrap();
    let out = folder.path().join("out");
    let python = crate::python::find().unwrap();
    let status = Command::new(python).arg(&script).args(["--cpu", "--out"]).arg(&out).status();
    let read = |name| fs::read_to_string(out.join(name)).unwrap();
    let json = serde_json::from_str(&read("results.json")).unwrap();
    (status.unwrap().success(), json, read("results.md"))
}

const LISTED: &str =
    r#"[ "$1" = --list ] && echo "a_sum: test" || echo "test result: ok. 1 passed""#;
const PASSES: &str = "echo test result: ok. 1 passed";
/// Writes numbers to the file that its last argument names.
const MEASURES: &str = r#"for file; do :; done; echo '{"cases": [{"ms": 1.5}]}' > "$file""#;

#[cfg(unix)]
fn result<'j>(json: &'j Value, name: &str) -> &'j str {
    let steps = json["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["name"] == name).unwrap();
    step["result"].as_str().unwrap()
}

#[test]
#[cfg(unix)]
fn numbers_and_results_are_written() {
    let programs =
        [("gpu", LISTED), ("emulated_gpu", PASSES), ("step", MEASURES), ("mnist", MEASURES)];
    let (success, json, text) = results(programs);
    assert!(success, "{json:#}");
    assert_eq!(json["steps"].as_array().unwrap().len(), 5);
    assert_eq!(result(&json, "a sum"), "passed");
    let step = json["steps"].as_array().unwrap().iter().find(|s| s["name"] == "one optimizer step");
    assert_eq!(step.unwrap()["numbers"]["cases"][0]["ms"], 1.5);
    assert!(text.contains("| ms |\n| --- |\n| 1.5 |"), "{text}");
}

#[test]
#[cfg(unix)]
fn a_step_that_fails_is_reported_and_stops_no_other() {
    let programs = [
        ("gpu", LISTED),
        ("emulated_gpu", "echo out of memory; exit 3"),
        ("step", MEASURES),
        ("mnist", "kill -9 $$"),
    ];
    let (success, json, text) = results(programs);
    assert!(!success);
    assert_eq!(result(&json, "training is that of the cpu"), "failed (3)");
    assert_eq!(result(&json, "one optimizer step"), "passed");
    assert_eq!(result(&json, "MNIST, short"), "failed (-9)");
    assert!(text.contains("out of memory"), "{text}");
}

#[test]
#[cfg(unix)]
fn a_test_that_is_not_there_has_not_passed() {
    let nothing = "echo test result: ok. 0 passed";
    let programs =
        [("gpu", nothing), ("emulated_gpu", nothing), ("step", MEASURES), ("mnist", MEASURES)];
    let (success, json, _) = results(programs);
    assert!(!success);
    assert_eq!(result(&json, "gpu: list of tests"), "failed (no tests)");
    assert_eq!(result(&json, "training is that of the cpu"), "failed (did not run)");
}

#[test]
fn cargo_says_where_a_program_is() {
    let messages = r#"{"reason":"compiler-artifact","target":{"name":"gpu"},"executable":null}
        {"reason":"compiler-artifact","target":{"name":"gpu"},"executable":"/t/gpu-1f"}
        {"reason":"build-finished","success":true}"#;
    assert_eq!(executable(messages, "gpu"), Some(PathBuf::from("/t/gpu-1f")));
    assert_eq!(executable(messages, "step"), None);
}
