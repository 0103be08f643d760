//! Checkpoints: one file from which a run goes on bit for bit, and weights for other programs.

mod atomic;
mod check;
mod error;
mod folder;
mod layout;
mod load;
mod matching;
mod parts;
mod progress;
mod read;
mod save;
mod weights;
mod write;

use std::path::Path;

use serde::{Serialize, de::DeserializeOwned};

pub use error::{
    LoadError, OptionDifference, PartsError, SaveError, SettingProblem, TensorProblem,
};
pub use folder::CheckpointFolder;
pub use parts::{CheckpointModels, CheckpointOptimizers, WithState, WithoutState};
pub use progress::Progress;

use crate::config::DType;
use check::What;
use parts::Parts;
use progress::Meter;

/// Models and optimizers of one `build`, to be saved to a file or loaded from one.
///
/// The file holds all that training depends on: weights in FP32 under their own names (at `O2`
/// these are the masters), batch norm's statistics and other buffers, the optimizers' moments, step
/// counts and settings of param groups, the loss scales, level and options, the state of libtorch's
/// random-number generators, and a value of yours. After loading it in a new process, training goes
/// on as if it had not been interrupted, in every bit. Any program that reads safetensors can open
/// it: `docs/checkpoints.md` describes the layout.
///
/// ```
/// # use tch::{Device, Kind, Tensor, nn::{self, ModuleT}};
/// # use tch_amp::{Amp, Checkpoint, O2, bf16, optim::AdamW};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("run.safetensors");
/// # let store = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(store.root(), 4, 1, Default::default());
/// let (model, mut opt) = Amp::<O2<bf16>>::builder().build((store, net), AdamW::new(1e-3))?;
///
/// let mut epoch = 0u32;
/// if path.exists() {
///     epoch = Checkpoint::new(&model, &mut opt).load(&path)?;
/// }
/// while epoch < 3 {
///     // … train …
///     epoch += 1;
///     Checkpoint::new(&model, &mut opt).save(&path, &epoch)?;
/// }
/// # assert_eq!(Checkpoint::new(&model, &mut opt).load::<u32>(&path)?, 3);
/// # Ok(()) }
/// ```
///
/// Several models or optimizers go into a tuple, an array or a `Vec`, in any order:
/// `Checkpoint::new((&a, &b), (&mut opt_a, &mut opt_b))`. A model without optimizers is passed with
/// `()`. A checkpoint is taken between steps: a step that has begun holds its optimizer, so that it
/// does not compile in the middle.
#[derive(Debug)]
#[must_use = "nothing is saved or loaded yet"]
pub struct Checkpoint<'f, M, O> {
    models: M,
    optimizers: O,
    across_levels: bool,
    meter: Meter<'f>,
}

impl<'f, M: CheckpointModels, O: CheckpointOptimizers<WithoutState>> Checkpoint<'f, M, O> {
    /// All models and optimizers of one `build`.
    pub fn new(models: M, optimizers: O) -> Self {
        Self { models, optimizers, across_levels: false, meter: Meter::default() }
    }

    /// Lets [`load`](Self::load) take a file that was saved at another level, or with other options.
    ///
    /// Weights take the types of the level here; the optimizers' state is FP32 at every level. The
    /// loss scales of the losses that both have are loaded if their settings are the same here, and
    /// otherwise stay as they are: a new run starts with those of its builder.
    pub fn across_levels(mut self) -> Self {
        self.across_levels = true;
        self
    }

    /// Has `tell` called while a file is written or read, at least once for each quarter of a
    /// megabyte.
    pub fn on_progress(mut self, tell: impl FnMut(Progress) + 'f) -> Self {
        self.meter.tell(tell);
        self
    }

    /// Writes a checkpoint, with `value` for what else your program goes on from: the epoch, the
    /// position in the data, the best loss so far. `&()` is no value.
    ///
    /// `value` can be of any type that serde serialises; infinities and NaN are kept.
    ///
    /// The file appears as a whole or not at all: it is written beside its place under another name,
    /// brought to the disk, and then renamed. If that fails, or the process is killed, an older file
    /// stays as it was. Tensors are written one by one from where they are; besides, memory is taken
    /// for one at a time, of those that are on another device, in 16 bits or not row-major.
    ///
    /// # Errors
    ///
    /// See [`SaveError`].
    ///
    /// # Syncs
    ///
    /// Once for each tensor on a device that is not the CPU.
    pub fn save<T: Serialize + ?Sized>(
        mut self,
        path: impl AsRef<Path>,
        value: &T,
    ) -> Result<(), SaveError>
    where
        O: CheckpointOptimizers<WithState>,
    {
        let parts = Parts::gather::<WithState>(&self.models, &mut self.optimizers)?;
        save::save(&parts, path.as_ref(), value, &mut self.meter)
    }

    /// As [`save`](Self::save), but for the state of the optimizers: all that can be saved with a
    /// `tch::nn::Optimizer`, whose state cannot be read.
    ///
    /// After [`load_without_optimizer`](Self::load_without_optimizer) the optimizers start with what
    /// state they have, so that training does not go on bit for bit.
    ///
    /// # Errors
    ///
    /// See [`SaveError`].
    ///
    /// # Syncs
    ///
    /// As [`save`](Self::save).
    pub fn save_without_optimizer<T: Serialize + ?Sized>(
        mut self,
        path: impl AsRef<Path>,
        value: &T,
    ) -> Result<(), SaveError> {
        let parts = Parts::gather::<WithoutState>(&self.models, &mut self.optimizers)?;
        save::save(&parts, path.as_ref(), value, &mut self.meter)
    }

    /// Loads a checkpoint and returns the value that was saved with it.
    ///
    /// The file is checked as a whole before anything is changed: that not a bit of it is other than
    /// it was written, that level and options are the same (see
    /// [`across_levels`](Self::across_levels)), that all tensors are there with their shapes and
    /// types and no other, that the optimizers and the parameters of each are the same. The settings
    /// of param groups become the saved ones, learning rate included; set them after loading if you
    /// want others. Whether a variable requires gradients stays as it is.
    ///
    /// Tensors are read one by one to where they belong; besides, memory is taken once for the
    /// largest of those that are on another device, in 16 bits or not row-major.
    ///
    /// libtorch's random-number generators, which all threads share, take the saved state: that of
    /// the CPU, and those of the devices that the models are on.
    ///
    /// # Errors
    ///
    /// See [`LoadError`].
    ///
    /// # Syncs
    ///
    /// Once for each tensor on a device that is not the CPU.
    pub fn load<T: DeserializeOwned>(mut self, path: impl AsRef<Path>) -> Result<T, LoadError>
    where
        O: CheckpointOptimizers<WithState>,
    {
        let what = What { across_levels: self.across_levels, optimizers: true };
        let mut parts = Parts::gather::<WithState>(&self.models, &mut self.optimizers)?;
        load::load(&mut parts, path.as_ref(), what, &mut self.meter)
    }

    /// As [`load`](Self::load), but for the state of the optimizers, which stays as it is; the file
    /// need not have it, and may be of other optimizers.
    ///
    /// # Errors
    ///
    /// See [`LoadError`].
    ///
    /// # Syncs
    ///
    /// As [`load`](Self::load).
    pub fn load_without_optimizer<T: DeserializeOwned>(
        mut self,
        path: impl AsRef<Path>,
    ) -> Result<T, LoadError> {
        let what = What { across_levels: self.across_levels, optimizers: false };
        let mut parts = Parts::gather::<WithoutState>(&self.models, &mut self.optimizers)?;
        load::load(&mut parts, path.as_ref(), what, &mut self.meter)
    }

    /// Writes the weights and buffers alone as a safetensors file, for other programs.
    ///
    /// All floating-point tensors are written in `dtype`; masters are exported in place of 16-bit
    /// weights. The file appears as a whole or not at all, as with [`save`](Self::save).
    ///
    /// # Errors
    ///
    /// See [`SaveError`]; in particular where a finite value is beyond the range of `f16`.
    ///
    /// # Syncs
    ///
    /// As [`save`](Self::save).
    pub fn export_weights(mut self, path: impl AsRef<Path>, dtype: DType) -> Result<(), SaveError> {
        let parts = Parts::gather::<WithoutState>(&self.models, &mut self.optimizers)?;
        weights::export_weights(&parts, path.as_ref(), dtype, &mut self.meter)
    }

    /// Loads weights and buffers alone: from a safetensors file, a checkpoint of any level included,
    /// or from one that `VarStore::load` reads (`.ot`, `.pt`, `.bin`), or an `.npz`.
    ///
    /// Weights keep the types that the level gives them, whatever floating-point type the file has
    /// (`VarStore::load` changes the model's), and the masters are loaded too. The optimizers' state
    /// and the loss scales stay as they are. A step that is skipped later does not bring back old
    /// batch-norm statistics. Files other than safetensors are read into memory as a whole first.
    ///
    /// # Errors
    ///
    /// See [`LoadError`]; all tensors that are missing, not known here, of another shape or of
    /// another type are named.
    ///
    /// # Syncs
    ///
    /// As [`load`](Self::load).
    pub fn load_weights(mut self, path: impl AsRef<Path>) -> Result<(), LoadError> {
        let parts = Parts::gather::<WithoutState>(&self.models, &mut self.optimizers)?;
        weights::load_weights(&parts, path.as_ref(), false, &mut self.meter).map(|_| ())
    }

    /// As [`load_weights`](Self::load_weights) for a model that is not quite that of the file, as
    /// `VarStore::load_partial`: tensors that only the file has are left out, and the names of those
    /// that it lacks are returned.
    ///
    /// # Errors
    ///
    /// See [`LoadError`].
    ///
    /// # Syncs
    ///
    /// As [`load`](Self::load).
    pub fn load_common_weights(mut self, path: impl AsRef<Path>) -> Result<Vec<String>, LoadError> {
        let parts = Parts::gather::<WithoutState>(&self.models, &mut self.optimizers)?;
        weights::load_weights(&parts, path.as_ref(), true, &mut self.meter)
    }
}
