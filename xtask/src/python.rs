//! Python, for pip, and for the packages that the tests exchange files with.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::folder;
use crate::run::Cargo;
use crate::workspace::Workspace;

/// What the tests exchange files with.
const PACKAGES: [&str; 3] = ["safetensors==0.8.0", "numpy>=1.26,<3", "cbor2>=5.6,<7"];
/// Succeeds where the packages are there.
const IMPORT: &str = "import cbor2, numpy, safetensors.numpy";

/// Finds a Python that has pip; the error says what to install.
pub(crate) fn find() -> Result<&'static str, String> {
    let mut without_pip = Vec::new();
    for python in ["python3", "python"] {
        match Command::new(python).args(["-m", "pip", "--version"]).output() {
            Ok(output) if output.status.success() => return Ok(python),
            Ok(_) => without_pip.push(python),
            Err(_) => {}
        }
    }
    Err(match without_pip.first() {
        Some(python) => {
            format!("`{python} -m pip` does not run. Install pip (on Debian: python3-pip)")
        }
        None => "there is no `python3` on the PATH. Install Python 3 and pip".to_owned(),
    })
}

/// Installs wheels into a folder of their own with pip; `packages` are what `pip install` is to take.
pub(crate) fn install<A: AsRef<OsStr>>(
    python: &str,
    folder: &Path,
    packages: impl IntoIterator<Item = A>,
) -> Result<()> {
    folder::remove(folder)?;
    let mut command = Command::new(python);
    command
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--only-binary=:all:", "--target"])
        .arg(folder)
        .args(packages)
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .stdin(Stdio::null())
        .stdout(io::stderr());
    let status =
        command.status().with_context(|| format!("`{python} -m pip` could not be started"))?;
    if !status.success() {
        bail!("pip could not install into {} ({status})", folder.display());
    }
    Ok(())
}

/// A Python that has the packages.
#[derive(Debug)]
pub(crate) struct Peers {
    /// The command that runs it.
    python: &'static str,
    /// The folder of the packages.
    packages: PathBuf,
}

impl Peers {
    /// Makes sure of the packages in the build folder; `None`, and a line that says so, where there is no Python.
    pub(crate) fn ensure(workspace: &Workspace) -> Result<Option<Self>> {
        let python = match find() {
            Ok(python) => python,
            Err(reason) => {
                skipped(&reason);
                return Ok(None);
            }
        };
        let peers = Self { python, packages: workspace.python_packages() };
        if !peers.are_there() {
            peers.install()?;
        }
        Ok(Some(peers))
    }

    /// Makes sure of the packages if that is possible here.
    pub(crate) fn if_possible(workspace: &Workspace) -> Option<Self> {
        Self::ensure(workspace).unwrap_or_else(|error| {
            skipped(&error.to_string());
            None
        })
    }

    /// Tells whether the packages can be imported.
    fn are_there(&self) -> bool {
        let mut command = Command::new(self.python);
        command.args(["-c", IMPORT]).env("PYTHONPATH", &self.packages);
        command.output().is_ok_and(|output| output.status.success())
    }

    /// Installs the packages.
    fn install(&self) -> Result<()> {
        install(self.python, &self.packages, PACKAGES)?;
        if !self.are_there() {
            bail!("pip installed {}, but they cannot be imported", PACKAGES.join(", "));
        }
        Ok(())
    }

    /// Points a test command to the packages.
    pub(crate) fn for_tests(&self, cargo: Cargo) -> Cargo {
        cargo.env("TCH_AMP_PYTHON", self.python).env("TCH_AMP_PYTHON_PACKAGES", &self.packages)
    }
}

/// Says that some tests will do nothing.
fn skipped(reason: &str) {
    eprintln!("skipped: the tests that exchange files with Python's safetensors: {reason}");
}
