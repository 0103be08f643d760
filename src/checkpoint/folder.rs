//! A folder with the latest checkpoints of a run.

use std::{
    fs, io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Checkpoint, CheckpointModels, CheckpointOptimizers, LoadError, SaveError, WithState,
    WithoutState, atomic, check::What, load, parts::Parts, progress::Meter, read::Source,
};

const BEGINNING: &str = "checkpoint-";
const ENDING: &str = ".safetensors";

/// A folder with the latest checkpoints of a run, by step: `checkpoint-00001000.safetensors`.
///
/// ```
/// # use tch::{Device, nn::{self, VarStore}};
/// # use tch_amp::{Amp, Checkpoint, O2, bf16, optim::AdamW};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path().join("checkpoints");
/// # let store = VarStore::new(Device::Cpu);
/// # let net = nn::linear(store.root(), 4, 1, Default::default());
/// # let (model, mut opt) = Amp::<O2<bf16>>::builder().build((store, net), AdamW::new(1e-3))?;
/// use tch_amp::checkpoint::CheckpointFolder;
/// let folder = CheckpointFolder::new(folder);
/// let first: u64 = folder.load_newest(Checkpoint::new(&model, &mut opt))?.unwrap_or(0);
/// for step in first + 1..=300 {
///     // … train …
///     if step % 100 == 0 {
///         folder.save(step, Checkpoint::new(&model, &mut opt), &step)?;
///     }
/// }
/// # assert_eq!(folder.newest()?, Some(folder.path_of(300)));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct CheckpointFolder {
    folder: PathBuf,
    keep: NonZeroUsize,
}

impl CheckpointFolder {
    /// A folder that keeps the last three checkpoints. It is made when the first is saved.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), keep: const { NonZeroUsize::new(3).unwrap() } }
    }

    /// Sets how many checkpoints are kept.
    pub fn keep(mut self, last: NonZeroUsize) -> Self {
        self.keep = last;
        self
    }

    /// The file of a step's checkpoint.
    pub fn path_of(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{BEGINNING}{step:08}{ENDING}"))
    }

    /// Saves the checkpoint of a step, and then removes all but the last ones: see
    /// [`remove_old`](Self::remove_old). Returns the file's path.
    ///
    /// # Errors
    ///
    /// See [`SaveError`].
    ///
    /// # Syncs
    ///
    /// As [`Checkpoint::save`].
    pub fn save<M: CheckpointModels, O, T: Serialize + ?Sized>(
        &self,
        step: u64,
        checkpoint: Checkpoint<'_, M, O>,
        value: &T,
    ) -> Result<PathBuf, SaveError>
    where
        O: CheckpointOptimizers<WithState> + CheckpointOptimizers<WithoutState>,
    {
        let path = self.path_of(step);
        let failed = |source| SaveError::Io { path: self.folder.clone(), source };
        atomic::create_folder(&self.folder).map_err(failed)?;
        checkpoint.save(&path, value)?;
        self.remove_old(step)?;
        Ok(path)
    }

    /// Removes the checkpoints of steps before `step` until, with that one, as many are left as are
    /// to be kept; those of later steps stay. What killed processes left of files that they were
    /// writing is removed too.
    ///
    /// # Errors
    ///
    /// When a file cannot be removed.
    pub fn remove_old(&self, step: u64) -> Result<(), SaveError> {
        let failed = |path: &Path, source| SaveError::RemoveOld { path: path.to_owned(), source };
        atomic::remove_leftovers(&self.folder, &format!(".{BEGINNING}"));
        let mut steps = self.steps().map_err(|source| failed(&self.folder, source))?;
        steps.retain(|(other, _)| *other < step);
        let old = steps.len().saturating_sub(self.keep.get() - 1);
        for (_, path) in &steps[..old] {
            fs::remove_file(path).map_err(|source| failed(path, source))?;
        }
        Ok(())
    }

    /// The newest checkpoint that is complete and undamaged; the others are passed over with a
    /// warning of `tracing`.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn newest(&self) -> Result<Option<PathBuf>, LoadError> {
        self.first_whole(|path| {
            let mut source = Source::open(path)?;
            load::describe(&mut source)?;
            source.verify_tensors(&mut Meter::default())
        })
        .map(|found| found.map(|(path, ())| path))
    }

    /// Loads the newest checkpoint that is complete and undamaged, and returns its value; `None`
    /// where there is none.
    ///
    /// # Errors
    ///
    /// See [`LoadError`]. A complete checkpoint that does not fit is an error: older ones are not
    /// tried.
    ///
    /// # Syncs
    ///
    /// As [`Checkpoint::load`].
    pub fn load_newest<M: CheckpointModels, O, T: DeserializeOwned>(
        &self,
        mut checkpoint: Checkpoint<'_, M, O>,
    ) -> Result<Option<T>, LoadError>
    where
        O: CheckpointOptimizers<WithState> + CheckpointOptimizers<WithoutState>,
    {
        let what = What { across_levels: checkpoint.across_levels, optimizers: true };
        let mut parts = Parts::gather::<WithState>(&checkpoint.models, &mut checkpoint.optimizers)?;
        let meter = &mut checkpoint.meter;
        let found = self.first_whole(|path| load::load(&mut parts, path, what, meter))?;
        Ok(found.map(|(_, value)| value))
    }

    /// What `read` returns for the newest file that is whole.
    fn first_whole<T>(
        &self,
        mut read: impl FnMut(&Path) -> Result<T, LoadError>,
    ) -> Result<Option<(PathBuf, T)>, LoadError> {
        let failed = |source| LoadError::Io { path: self.folder.clone(), source };
        for (_, path) in self.steps().map_err(failed)?.into_iter().rev() {
            match read(&path) {
                Ok(value) => return Ok(Some((path, value))),
                Err(
                    error @ (LoadError::Header { .. }
                    | LoadError::Length { .. }
                    | LoadError::Damaged { .. }),
                ) => tracing::warn!(target: "tch_amp", "passed over: {error}"),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The files of checkpoints with their steps, the newest last.
    fn steps(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut steps = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let number = name.and_then(|n| n.strip_prefix(BEGINNING)?.strip_suffix(ENDING));
            if let Some(step) = number.and_then(|number| number.parse().ok()) {
                steps.push((step, path));
            }
        }
        steps.sort();
        Ok(steps)
    }
}
