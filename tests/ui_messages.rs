//! What the compiler says to the programs in `ui-tests/` is in the user's words.

use std::{
    collections::BTreeSet,
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use tch_amp::{
    AmpConfig, AnyLevel, Rounding,
    config::{DType, LossScaleConfig},
};

/// Parts of types that users neither write nor read about.
const INSIDES: [&str; 5] = ["typenum", "UInt<", "UTerm", "PhantomData", "{closure"];

/// Paths that trybuild writes for files that differ from machine to machine.
const ELSEWHERE: [&str; 5] = ["$CARGO", "$RUST", "$WORKSPACE", "/home/", "/root/"];

/// A program that must not compile, and what the compiler said to it.
struct Program {
    /// `"option/o1_master_weights"`
    name: String,
    source: String,
    stderr: String,
}

impl Program {
    fn all() -> Vec<Self> {
        let read = |path: PathBuf| fs::read_to_string(&path).unwrap_or_default();
        let program = |name: &String| Self {
            name: name.clone(),
            source: read(ui_tests().join(format!("{name}.rs"))),
            stderr: read(ui_tests().join(format!("{name}.stderr"))),
        };
        names("rs").iter().map(program).collect()
    }

    /// What Apex or torch does, by the comment that the program begins with.
    fn comment(&self) -> Option<&str> {
        self.source.lines().next()?.strip_prefix("// ")
    }

    /// The first line of the first error, without its code.
    fn first_line(&self) -> &str {
        first_line(self.stderr.lines().next().unwrap_or_default())
    }

    /// What is written under the program's lines, in all errors, before the notes begin.
    fn labels(&self) -> Vec<String> {
        let mut labels = Vec::new();
        let mut in_snippet = false;
        for line in self.stderr.lines() {
            let line = line.trim_start();
            match line.strip_prefix('|') {
                Some(text) if in_snippet => {
                    let text = text.trim_start_matches([' ', '|', '^', '-', '_', '/']).trim_end();
                    if !text.is_empty() {
                        labels.push(text.to_owned());
                    }
                }
                _ if line.starts_with("error") => in_snippet = true,
                _ if ["=", "note", "help"].iter().any(|end| line.starts_with(end)) => {
                    in_snippet = false;
                }
                _ => {}
            }
        }
        labels
    }

    /// What should not be in the program's files.
    fn complaints(&self, private: &BTreeSet<String>) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut complain = |what: String| complaints.push(format!("{}: {what}", self.name));
        if !self.comment().is_some_and(|line| line.contains("Apex") || line.contains("torch")) {
            complain("the first line does not say what Apex or torch does".to_owned());
        }
        let headings = self.stderr.lines().filter(|line| line.starts_with("error")).map(first_line);
        for text in headings.map(str::to_owned).chain(self.labels()) {
            if let Some(insides) = INSIDES.iter().find(|insides| text.contains(**insides)) {
                complain(format!("`{insides}` in: {text}"));
            }
            if let Some(module) = modules(&text).find(|module| private.contains(*module)) {
                complain(format!("private module `{module}` in: {text}"));
            }
        }
        if let Some(path) = ELSEWHERE.iter().find(|path| self.stderr.contains(**path)) {
            complain(format!("`{path}` in the messages"));
        }
        complaints
    }
}

/// A first line without `error[E0277]: `.
fn first_line(line: &str) -> &str {
    line.split_once(": ").map_or("", |(_, text)| text)
}

/// Each `name` of a `name::` in a text.
fn modules(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split("::").collect::<Vec<_>>();
    let before = parts.len() - 1;
    let last_word = |part: &'_ str| {
        let start = part.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
        start..part.len()
    };
    parts.into_iter().take(before).map(move |part| &part[last_word(part)])
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn ui_tests() -> PathBuf {
    root().join("ui-tests")
}

/// The files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

/// The files of `ui-tests` with an extension, as `"topic/name"`.
fn names(extension: &str) -> BTreeSet<String> {
    let name = |path: &PathBuf| {
        let path = path.strip_prefix(ui_tests()).unwrap().with_extension("");
        path.to_str().unwrap().to_owned()
    };
    let files = files(&ui_tests());
    files.iter().filter(|path| path.extension().is_some_and(|e| e == extension)).map(name).collect()
}

/// The modules of the crate that cannot be named outside.
fn private_modules() -> BTreeSet<String> {
    let mut private = BTreeSet::new();
    let mut public = BTreeSet::new();
    for file in files(&root().join("src")) {
        if file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        for line in fs::read_to_string(file).unwrap().lines() {
            let line = line.trim();
            let (set, module) = match line.strip_prefix("pub mod ") {
                Some(module) => (&mut public, module),
                None => match line.split_once("mod ") {
                    Some(("" | "pub(crate) " | "pub(super) ", module)) => (&mut private, module),
                    _ => continue,
                },
            };
            if let Some(module) = module.split([';', ' ']).next() {
                set.insert(module.to_owned());
            }
        }
    }
    &private - &public
}

#[test]
fn each_program_has_its_messages() {
    let programs = names("rs");
    assert_eq!(programs, names("stderr"));
    assert!(programs.len() >= 35, "only {} programs", programs.len());
}

#[test]
fn messages_are_in_the_users_words() {
    let private = private_modules();
    for module in ["libtorch", "multi_tensor", "sealed", "engine"] {
        assert!(private.contains(module), "{module} is not among {private:?}");
    }
    let complaints = Program::all().iter().flat_map(|p| p.complaints(&private)).collect::<Vec<_>>();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn words_that_are_not_the_users_are_found() {
    let program = |stderr: &str| Program {
        name: "topic/name".to_owned(),
        source: "// Apex: TypeError.\nfn main() {}\n".to_owned(),
        stderr: stderr.to_owned(),
    };
    let private = BTreeSet::from(["sealed".to_owned()]);
    let good = "error[E0277]: `O6` is not an opt level
 --> ui-tests/topic/name.rs:2:1
  |
2 | let typenum = sealed::it();
  |     ------- ^^^^^^^^ expected `O0`
  |     |
  |     required by a bound
  |
  = help: the trait `level::sealed::OptLevel` is not implemented
note: required
  |
  |     ^^^ UInt<UTerm, B1>
";
    assert_eq!(program(good).complaints(&private), [""; 0]);
    assert_eq!(program(good).first_line(), "`O6` is not an opt level");
    assert_eq!(program(good).labels(), ["expected `O0`", "required by a bound"]);
    for (from, to) in [
        ("`O6` is not an opt level", "`typenum::O6` is not a level"),
        ("`O6` is not an opt level", "`tch_amp::sealed::O6` is not a level"),
        ("expected `O0`", "expected `level::sealed::O0`"),
        ("expected `O0`", "found `UTerm`"),
        ("required by a bound", "required by `PhantomData<O6>`"),
        ("ui-tests/topic/name.rs", "$RUST/core/src/marker.rs"),
    ] {
        let bad = program(&good.replace(from, to));
        assert_eq!(bad.complaints(&private).len(), 1, "{to}");
        let second = program(&format!("{good}\n{}", bad.stderr));
        assert_eq!(second.complaints(&private).len(), 1, "{to} in a second error");
    }
    let silent = Program { source: "fn main() {}\n".to_owned(), ..program(good) };
    assert_eq!(silent.complaints(&private).len(), 1);
}

/// A text without the paths that the compiler writes before the names of levels and types.
fn short(text: &str) -> String {
    text.replace("tch_amp::", "").replace("half::", "")
}

#[test]
fn a_refused_config_is_told_the_same() {
    let at = |opt_level| AmpConfig { opt_level, ..Default::default() };
    let (o0, o1, o1_bf16) = (at(AnyLevel::O0), at(AnyLevel::O1), at(AnyLevel::O1Bf16));
    let (o2, o3_bf16) = (at(AnyLevel::O2), at(AnyLevel::O3Bf16));
    let on = Some(true);
    let (f16, bf16) = (Some(DType::F16), Some(DType::Bf16));
    let norm = vec!["norm".to_owned()];
    let rounding = Some(Rounding::Stochastic { seed: 1 });
    let configs = [
        ("o0_cast_model_type", AmpConfig { cast_model_type: f16, ..o0.clone() }),
        ("o0_keep_batchnorm_fp32", AmpConfig { keep_batchnorm_fp32: on, ..o0.clone() }),
        ("o0_master_weights", AmpConfig { master_weights: on, ..o0.clone() }),
        ("o0_patch_torch_functions", AmpConfig { patch_torch_functions: on, ..o0 }),
        ("o1_cast_model_type", AmpConfig { cast_model_type: f16, ..o1.clone() }),
        ("o1_keep_batchnorm_fp32", AmpConfig { keep_batchnorm_fp32: on, ..o1_bf16.clone() }),
        ("o1_keep_fp32", AmpConfig { keep_fp32: norm, ..o1.clone() }),
        ("o1_master_weights", AmpConfig { master_weights: on, ..o1 }),
        ("o2_cast_model_type_other", AmpConfig { cast_model_type: bf16, ..o2.clone() }),
        ("o2_rounding", AmpConfig { rounding, ..at(AnyLevel::O2Bf16) }),
        ("o3_f16_rounding", AmpConfig { rounding, ..at(AnyLevel::O3) }),
        ("o2_patch_torch_functions", AmpConfig { patch_torch_functions: on, ..o2.clone() }),
        ("o3_patch_torch_functions", AmpConfig { patch_torch_functions: on, ..o3_bf16 }),
        ("o4_master_weights", AmpConfig { master_weights: on, ..o1_bf16 }),
    ];
    let programs = Program::all();
    let recorded = |name: &str| programs.iter().find(|program| program.name == name).unwrap();
    for (name, config) in configs {
        let program = recorded(&format!("option/{name}"));
        let typed = short(&format!("{}: {}", program.first_line(), program.labels()[0]));
        assert_eq!(config.properties().unwrap_err().to_string(), typed, "{name}");
    }

    let fixed = Some(LossScaleConfig::Static(128.0));
    let limited = AmpConfig { loss_scale: fixed, min_loss_scale: Some(1.0), ..o2 };
    let refusal = limited.properties().unwrap_err().to_string();
    assert!(refusal.starts_with(recorded("scale/min_on_static").first_line()), "{refusal}");
}

#[test]
fn a_refused_scale_is_told_the_same() {
    let at_o2 = || AmpConfig { opt_level: AnyLevel::O2, ..Default::default() };
    let programs = Program::all();
    for (name, key, value, config) in [
        (
            "init_scale_negative",
            "init_scale",
            "-65536",
            AmpConfig { init_scale: Some(-65536.0), ..at_o2() },
        ),
        (
            "growth_factor_one",
            "growth_factor",
            "1",
            AmpConfig { growth_factor: Some(1.0), ..at_o2() },
        ),
        (
            "backoff_factor_above_one",
            "backoff_factor",
            "1.5",
            AmpConfig { backoff_factor: Some(1.5), ..at_o2() },
        ),
        (
            "growth_interval_zero",
            "growth_interval",
            "0",
            AmpConfig { growth_interval: Some(0), ..at_o2() },
        ),
        ("hysteresis_zero", "hysteresis", "0", AmpConfig { hysteresis: Some(0), ..at_o2() }),
    ] {
        let program = programs.iter().find(|p| p.name == format!("scale/{name}")).unwrap();
        let panic = format!("evaluation panicked: {key} must");
        let typed = program.first_line().replace(&panic, &format!("`{key}` is {value}: it must"));
        assert_eq!(config.properties().unwrap_err().to_string(), typed);
    }
}

/// The tables of `ui-tests/README.md`, from the programs.
fn tables() -> String {
    let mut tables = String::new();
    let mut topic = "";
    let programs = Program::all();
    for program in &programs {
        let (folder, name) = program.name.split_once('/').unwrap();
        if folder != topic {
            topic = folder;
            let head = "| program | Apex or torch | the compiler |\n| --- | --- | --- |";
            writeln!(tables, "\n## {topic}\n\n{head}").unwrap();
        }
        let (comment, first_line) = (program.comment().unwrap_or_default(), program.first_line());
        writeln!(tables, "| [{name}]({topic}/{name}.rs) | {comment} | {first_line} |").unwrap();
    }
    tables
}

#[test]
fn the_readme_lists_every_program() {
    let path = ui_tests().join("README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let tables = tables();
    let (text, listed) = readme.split_at(readme.find("\n## ").unwrap_or(readme.len()));
    if env::var_os("TRYBUILD").is_some_and(|value| value == "overwrite") {
        fs::write(path, format!("{text}{tables}")).unwrap();
        return;
    }
    let hint =
        "run `TRYBUILD=overwrite cargo test --features doc-only --test ui --test ui_messages`";
    assert!(listed == tables, "ui-tests/README.md is not up to date: {hint}");
}
