//! The command line of the example `mnist`: what it says of bad values, and what it writes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

/// Runs the example, which `cargo test` puts next to the folder of the tests.
fn mnist(arguments: &[&str]) -> Output {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let example =
        profile.join("examples").join("mnist").with_extension(std::env::consts::EXE_EXTENSION);
    assert!(
        example.is_file(),
        "{} is missing: `cargo test --test cli` alone does not build it, `cargo build --example \
         mnist` does",
        example.display()
    );
    Command::new(example).args(arguments).output().unwrap()
}

/// Asserts that the example ends with `code` and has each of the `words` on stderr.
#[track_caller]
fn fails(arguments: &[&str], code: i32, words: &[&str]) {
    let output = mnist(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in: {stderr}");
    }
}

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a set of `n` blank images with labels 0, 1, … as uncompressed IDX files.
fn write_set(folder: &Path, set: &str, n: u8) {
    let pixels = vec![0; usize::from(n) * 28 * 28];
    let images = [&[0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, 28, 0, 0, 0, 28][..], &pixels].concat();
    let labels = [vec![0, 0, 8, 1, 0, 0, 0, n], (0..n).map(|i| i % 10).collect()].concat();
    fs::write(folder.join(format!("{set}-images-idx3-ubyte")), images).unwrap();
    fs::write(folder.join(format!("{set}-labels-idx1-ubyte")), labels).unwrap();
}

#[test]
fn an_option_that_the_level_refuses_is_named_with_the_level() {
    let refused = "`master_weights` cannot be set at opt level `O1<bf16>`";
    fails(&["--opt-level", "O1", "--master-weights", "true"], 2, &[refused, "choose `O2`"]);
    let refused = "`keep_batchnorm_fp32` cannot be set at opt level `O0`";
    fails(&["--opt-level", "O0", "--keep-batchnorm-fp32", "false"], 2, &[refused]);
}

#[test]
fn the_comparison_refuses_what_one_of_its_levels_refuses() {
    let refused = "`master_weights` cannot be set at opt level `O0`";
    fails(&["--all-levels", "--master-weights", "true"], 2, &[refused]);
    fails(&["--all-levels", "--opt-level", "O2"], 2, &["--all-levels", "--opt-level"]);
}

#[test]
fn a_zero_for_the_letter_o_gets_a_hint() {
    fails(&["--opt-level", "02"], 2, &["\"02\"", "the letter O, not the number zero"]);
}

#[test]
fn a_loss_scale_is_dynamic_or_a_positive_number() {
    let expected = "unknown loss scale \"abc\": expected \"dynamic\" or a number";
    fails(&["--loss-scale", "abc"], 2, &[expected]);
    fails(&["--loss-scale", "0"], 2, &["`loss_scale` is 0", "greater than zero"]);
    fails(&["--loss-scale", "-3"], 2, &["`loss_scale` is -3", "greater than zero"]);
}

#[test]
fn a_dtype_has_sixteen_bits() {
    fails(&["--dtype", "f64"], 2, &["unknown dtype \"f64\"", "\"f16\" or \"bf16\""]);
    fails(&["--dtype", "f32"], 2, &["`dtype` cannot be `f32` at opt level `O2`"]);
}

#[test]
fn o0_takes_no_dtype() {
    let refused = "`dtype` cannot be `bf16` at opt level `O0`";
    fails(&["--opt-level", "O0", "--dtype", "bf16"], 2, &[refused]);
}

#[test]
fn a_dtype_that_contradicts_the_level_is_refused() {
    let refused = "`dtype` cannot be `f16` at opt level `O3<bf16>`";
    fails(&["--opt-level", "O3<bf16>", "--dtype", "f16"], 2, &[refused]);
}

#[test]
fn a_setting_that_the_optimizer_refuses_is_named() {
    fails(&["--limit", "1", "--lr", "-1"], 2, &["-1", "it must be finite and not negative"]);
}

#[test]
fn a_device_has_a_name_that_is_known() {
    fails(&["--device", "abacus"], 2, &["expected cpu, cuda, cuda:N or mps"]);
}

#[test]
fn missing_data_is_named() {
    let nowhere = folder("nowhere").join("mnist");
    let nowhere = nowhere.to_str().unwrap();
    fails(&["--data", nowhere], 1, &["there is no folder", nowhere]);

    let empty = folder("empty");
    let missing = empty.join("t10k-images-idx3-ubyte");
    let words = ["there is no file", missing.to_str().unwrap()];
    fails(&["--data", empty.to_str().unwrap()], 1, &words);

    let half = folder("half");
    write_set(&half, "t10k", 2);
    write_set(&half, "train", 2);
    let missing = half.join("train-labels-idx1-ubyte");
    fs::remove_file(&missing).unwrap();
    let words = ["there is no file", missing.to_str().unwrap()];
    fails(&["--data", half.to_str().unwrap()], 1, &words);
}

#[test]
fn a_damaged_file_is_named() {
    let damaged = folder("damaged");
    write_set(&damaged, "t10k", 2);
    let labels = damaged.join("t10k-labels-idx1-ubyte");
    fs::write(&labels, [0, 0, 8, 1, 0, 0, 0, 9, 1, 2]).unwrap();
    let words = [labels.to_str().unwrap(), "its size does not match its header"];
    fails(&["--data", damaged.to_str().unwrap()], 1, &words);
}

#[test]
fn one_level_trains_on_a_folder_and_writes_its_numbers_and_plots() {
    let data = folder("one_level");
    write_set(&data, "t10k", 20);
    let [json, plots] = ["run.json", "plots"].map(|name| data.join(name));
    let arguments = [
        ["--data", data.to_str().unwrap()],
        ["--json", json.to_str().unwrap()],
        ["--plots", plots.to_str().unwrap()],
        ["--opt-level", "O2"],
        ["--dtype", "bf16"],
        ["--epochs", "2"],
        ["--batch-size", "8"],
    ];
    let output = mnist(&arguments.concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("opt_level             : O2<bf16>"), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("16 images to train on, 4 to test with"), "{stdout}");

    let document: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let [run] = &document["runs"].as_array().unwrap()[..] else { panic!("{document}") };
    let keys = [
        "accuracy",
        "dtype",
        "final_scale",
        "level",
        "optimizer_bytes",
        "seconds_per_epoch",
        "skipped",
        "speedup",
        "weight_bytes",
    ];
    let mut names: Vec<_> = run.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(names, keys);
    assert_eq!((&run["level"], &run["dtype"]), (&"O2".into(), &"bf16".into()));
    assert_eq!((&run["skipped"], &run["final_scale"]), (&0.into(), &1.0.into()));
    assert_eq!(run["speedup"], Value::Null);

    for plot in ["loss_curves.png", "accuracy.png"] {
        let png = fs::read(plots.join(plot)).unwrap();
        assert!(png.starts_with(b"\x89PNG"), "{plot}");
    }
}

/// tch's own autocast has libtorch print lines on deprecated calls, Apex prints some of its own.
#[test]
fn no_level_makes_libtorch_warn() {
    let data = folder("warnings");
    write_set(&data, "t10k", 20);
    let data = data.to_str().unwrap();
    for level in ["O0", "O1<bf16>", "O2<bf16>", "O3<bf16>"] {
        let output = mnist(&["--data", data, "--epochs", "1", "--opt-level", level]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(stderr.contains(&format!("opt_level             : {level}")), "{stderr}");
        assert!(!stderr.to_lowercase().contains("warn"), "{stderr}");
        assert!(!stderr.to_lowercase().contains("deprecat"), "{stderr}");
    }
}
