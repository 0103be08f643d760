//! `docs/errors.md`: one row for each error of Apex and torch.amp, each with a proof that exists.

use std::{collections::BTreeMap, fs, path::Path};

/// What can become of an error; each row's third cell begins with one of these.
const VERDICTS: [&str; 5] = [
    "**does not compile**",
    "**typed error**",
    "**cannot be written**",
    "**gone by design**",
    "**documented**",
];

/// The fewest programs in `ui-tests`.
const PROGRAMS: usize = 60;

/// The rows' ids, by their first letter and number.
const IDS: [(char, usize); 4] = [('A', 64), ('E', 22), ('K', 8), ('S', 14)];

/// The files of the repository, as far as the table's proofs name them.
trait Files {
    fn read(&self, path: &str) -> Option<String>;

    /// How many programs `ui-tests` has.
    fn programs(&self) -> usize;
}

/// A row of the table.
struct Row<'a> {
    id: &'a str,
    cells: Vec<&'a str>,
}

fn rows(table: &str) -> impl Iterator<Item = Row<'_>> {
    table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").map(str::trim);
        let id = cells.next()?;
        let number = id.strip_prefix(char::is_alphabetic)?;
        let is_id = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_id.then(|| Row { id, cells: cells.collect() })
    })
}

fn expected_ids() -> Vec<String> {
    IDS.iter().flat_map(|(letter, n)| (1..=*n).map(move |i| format!("{letter}{i}"))).collect()
}

/// What is wrong with the table; each complaint begins with the row's id.
fn complaints(table: &str, files: &impl Files) -> Vec<String> {
    let rows: Vec<_> = rows(table).collect();
    let mut complaints = wrong_ids(&rows);
    for row in &rows {
        complaints.extend(wrong_cells(row, files).map(|what| format!("{}: {what}", row.id)));
    }
    if files.programs() < PROGRAMS {
        complaints.push(format!("ui-tests: {} programs, not {PROGRAMS}", files.programs()));
    }
    complaints
}

/// Each id is to be there, once, in order.
fn wrong_ids(rows: &[Row<'_>]) -> Vec<String> {
    let expected = expected_ids();
    let count = |id: &str| rows.iter().filter(|row| row.id == id).count();
    let wrong = |id: &String| match count(id) {
        0 => Some(format!("{id}: no row")),
        1 => None,
        n => Some(format!("{id}: {n} rows")),
    };
    let mut complaints: Vec<_> = expected.iter().filter_map(wrong).collect();
    let unknown = rows.iter().filter(|row| expected.iter().all(|id| id != row.id));
    complaints.extend(unknown.map(|row| format!("{}: no such error", row.id)));
    if complaints.is_empty() {
        let moved = rows.iter().zip(&expected).find(|(row, id)| row.id != *id);
        complaints.extend(moved.map(|(row, id)| format!("{}: in the place of {id}", row.id)));
    }
    complaints
}

fn wrong_cells(row: &Row<'_>, files: &impl Files) -> impl Iterator<Item = String> {
    let [there, here, proofs] = row.cells[..] else {
        return vec![format!("{} cells after the id, not 3", row.cells.len())].into_iter();
    };
    let mut complaints = Vec::new();
    if there.is_empty() {
        complaints.push("not said what happens in Apex or torch".to_owned());
    }
    if !VERDICTS.iter().any(|verdict| here.starts_with(verdict)) {
        complaints.push(format!("{here:?} begins with none of {VERDICTS:?}"));
    }
    if here.starts_with(VERDICTS[0]) && !proofs.contains("(../ui-tests/") {
        complaints.push("said not to compile, but no ui-test shows it".to_owned());
    }
    complaints.extend(proofs.split(", ").filter_map(|proof| Proof::parse(proof).fault(files)));
    complaints.into_iter()
}

/// One of the things that the last cell names.
enum Proof<'a> {
    /// `[name](../ui-tests/topic/name.rs)`
    Program {
        name: &'a str,
        path: &'a str,
    },
    /// ``[`tests/topic.rs`](../tests/topic.rs) `name of a test, or a compile-time assertion` ``
    Test {
        shown: &'a str,
        path: &'a str,
        name: &'a str,
    },
    Other(&'a str),
}

impl<'a> Proof<'a> {
    fn parse(proof: &'a str) -> Self {
        let parse = || {
            let (text, rest) = proof.strip_prefix('[')?.split_once("](../")?;
            let (path, rest) = rest.split_once(')')?;
            match (text.strip_prefix('`'), rest.is_empty()) {
                (None, true) => Some(Self::Program { name: text, path }),
                (Some(shown), false) => {
                    let name = rest.strip_prefix(" `")?.strip_suffix('`')?;
                    Some(Self::Test { shown: shown.strip_suffix('`')?, path, name })
                }
                _ => None,
            }
        };
        parse().unwrap_or(Self::Other(proof))
    }

    fn fault(self, files: &impl Files) -> Option<String> {
        match self {
            Self::Program { name, path } => {
                let stem = path.strip_prefix("ui-tests/").and_then(|path| path.strip_suffix(".rs"));
                let Some(stem) = stem else { return Some(format!("{path} is no ui-test")) };
                if stem.rsplit('/').next() != Some(name) {
                    return Some(format!("[{name}] links to {path}"));
                }
                ["rs", "stderr"]
                    .map(|extension| format!("ui-tests/{stem}.{extension}"))
                    .into_iter()
                    .find(|file| files.read(file).is_none())
                    .map(|file| format!("there is no {file}"))
            }
            Self::Test { shown, path, .. } if shown != path => {
                Some(format!("[{shown}] links to {path}"))
            }
            Self::Test { path, name, .. } => match files.read(path) {
                None => Some(format!("there is no {path}")),
                Some(source) if proves(&source, name) => None,
                Some(_) => Some(format!("{path} has no test `{name}`")),
            },
            Self::Other("") => Some("no proof".to_owned()),
            Self::Other(text) => Some(format!("{text:?} is no proof")),
        }
    }
}

/// Whether a source has `#[test] fn name(`, or the compile-time assertion `name` word for word.
fn proves(source: &str, name: &str) -> bool {
    if name.contains("!(") {
        return source.lines().any(|line| line.trim_start().starts_with(name));
    }
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let head = format!("fn {name}(");
    let at = lines.iter().position(|line| line.starts_with(&head));
    at.is_some_and(|at| {
        let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with('#'));
        attributes.into_iter().any(|line| *line == "#[test]")
    })
}

/// The checkout.
struct Checkout;

impl Files for Checkout {
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
    }

    fn programs(&self) -> usize {
        let topics = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("ui-tests")).unwrap();
        let topics = topics.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        let files = topics.flat_map(|topic| fs::read_dir(topic).unwrap());
        files.filter(|file| file.as_ref().unwrap().path().extension().unwrap() == "rs").count()
    }
}

#[test]
fn each_error_has_its_row_and_each_row_a_proof() {
    let table = Checkout.read("docs/errors.md").unwrap();
    let complaints = complaints(&table, &Checkout);
    assert!(complaints.is_empty(), "docs/errors.md:\n{}", complaints.join("\n"));
}

/// Files that are not there, and as many programs as wanted.
struct Imagined(BTreeMap<&'static str, &'static str>, usize);

impl Files for Imagined {
    fn read(&self, path: &str) -> Option<String> {
        self.0.get(path).map(|text| (*text).to_owned())
    }

    fn programs(&self) -> usize {
        self.1
    }
}

fn imagined() -> Imagined {
    let source = "#[test]\nfn it_works() {}\n\nfn helper() {}\n\nassert_sized!(Scaler);\n";
    let files = [
        ("ui-tests/step/twice.rs", ""),
        ("ui-tests/step/twice.stderr", ""),
        ("ui-tests/step/silent.rs", ""),
        ("tests/step.rs", source),
    ];
    Imagined(BTreeMap::from(files), PROGRAMS)
}

const BY_PROGRAM: &str = "[twice](../ui-tests/step/twice.rs)";
const BY_TEST: &str = "[`tests/step.rs`](../tests/step.rs) `it_works`";

/// A table without faults: row A1 is proven by a program, row E1 by a test.
fn faultless() -> String {
    let row = |id: &String| match id.starts_with('A') {
        true => {
            format!("| {id} | RuntimeError | **does not compile** | {BY_PROGRAM}, {BY_TEST} |\n")
        }
        false => format!("| {id} | RuntimeError | **typed error** by name | {BY_TEST} |\n"),
    };
    let rows: String = expected_ids().iter().map(row).collect();
    format!("# Errors\n\n| id | there | here | proof |\n|---|---|---|---|\n{rows}")
}

#[test]
fn the_ids_are_those_of_the_108_errors() {
    let ids = expected_ids();
    assert_eq!(
        (ids.len(), &ids[0], &ids[63], &ids[64]),
        (108, &"A1".into(), &"A64".into(), &"E1".into())
    );
    assert_eq!((&ids[86], &ids[94], &ids[107]), (&"K1".into(), &"S1".into(), &"S14".into()));
}

#[test]
fn a_table_without_faults_passes() {
    assert_eq!(complaints(&faultless(), &imagined()), [""; 0]);
    let asserted = faultless().replace("`it_works`", "`assert_sized!(Scaler)`");
    assert_eq!(complaints(&asserted, &imagined()), [""; 0]);
}

#[test]
fn each_fault_is_found_and_names_its_row() {
    let table = faultless();
    let line =
        |id: &str| table.lines().find(|line| line.starts_with(&format!("| {id} |"))).unwrap();
    let in_row = |id: &str, from: &str, to: &str| {
        assert!(line(id).contains(from), "{from:?} is not in row {id}");
        table.replace(line(id), &line(id).replace(from, to))
    };
    let without = |id: &str| table.replace(&format!("{}\n", line(id)), "");
    let swapped = table
        .replace(line("K1"), "K1 goes here")
        .replace(line("K2"), line("K1"))
        .replace("K1 goes here", line("K2"));
    let cases = [
        (without("K8"), "K8: no row"),
        (format!("{table}{}\n", line("S14")), "S14: 2 rows"),
        (format!("{table}{}\n", line("S14").replace("S14", "S15")), "S15: no such error"),
        (swapped, "K2: in the place of K1"),
        (in_row("E7", "RuntimeError | ", ""), "E7: 2 cells"),
        (in_row("E7", "RuntimeError", ""), "E7: not said what happens"),
        (in_row("E7", "**typed error**", "an error"), "E7: \"an error by name\" begins with none"),
        (in_row("E7", "**typed error**", "**does not compile**"), "E7: said not to compile"),
        (in_row("E7", BY_TEST, ""), "E7: no proof"),
        (in_row("E7", BY_TEST, "TODO"), "E7: \"TODO\" is no proof"),
        (
            in_row("E7", " `it_works`", ""),
            "E7: \"[`tests/step.rs`](../tests/step.rs)\" is no proof",
        ),
        (in_row("E7", "`it_works`", "`it_runs`"), "E7: tests/step.rs has no test `it_runs`"),
        (in_row("E7", "`it_works`", "`helper`"), "E7: tests/step.rs has no test `helper`"),
        (in_row("E7", "`it_works`", "`assert_sized!(Step)`"), "E7: tests/step.rs has no test"),
        (in_row("E7", "../tests/step.rs", "../tests/stop.rs"), "E7: [tests/step.rs] links to"),
        (in_row("E7", "tests/step.rs", "tests/stop.rs"), "E7: there is no tests/stop.rs"),
        (in_row("A7", "twice", "thrice"), "A7: there is no ui-tests/step/thrice.rs"),
        (in_row("A7", "twice", "silent"), "A7: there is no ui-tests/step/silent.stderr"),
        (in_row("A7", "[twice]", "[once]"), "A7: [once] links to ui-tests/step/twice.rs"),
        (in_row("A7", BY_PROGRAM, "[step](../tests/step.rs)"), "A7: said not to compile"),
    ];
    for (table, expected) in cases {
        let complaints = complaints(&table, &imagined());
        assert!(complaints[0].starts_with(expected), "{complaints:?} is not {expected:?}");
        let row = expected.split(':').next();
        assert!(complaints.iter().all(|complaint| complaint.split(':').next() == row));
    }
}

#[test]
fn too_few_programs_are_found() {
    let Imagined(files, programs) = imagined();
    let complaints = complaints(&faultless(), &Imagined(files, programs - 1));
    assert_eq!(complaints, ["ui-tests: 59 programs, not 60"]);
}
