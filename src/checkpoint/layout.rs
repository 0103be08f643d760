//! What stands where in a file: `docs/checkpoints.md` in types.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use safetensors::{Dtype, tensor::TensorInfo};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind};

use crate::{
    config::{AnyLevel, Properties},
    model::Shared,
    optimizer::SavedState,
    scaler::SavedScalers,
};

// safetensors is little-endian, and tensors are copied as they are.
static_assertions::const_assert!(cfg!(target_endian = "little"));

/// The version of the layout that this crate writes.
pub(super) const VERSION: u64 = 1;
/// The key of [`Description`] among safetensors' metadata.
pub(super) const DESCRIPTION: &str = "tch-amp";
/// The tensor of the user's value.
pub(super) const VALUE: &str = "tch-amp/value";
/// The tensor of the checksums, the last in the file.
pub(super) const CHECKSUMS: &str = "tch-amp/checksums";
/// The largest header that safetensors allows.
pub(super) const MAX_HEADER: usize = 100_000_000;

/// The tensor of an optimizer's state: `optimizer/exp_avg/fc.weight`.
pub(super) fn state_name(state: &str, param: &str) -> String {
    format!("optimizer/{state}/{param}")
}

/// The tensor of a generator's state: `generator/cpu`, `generator/cuda:0`.
pub(super) fn generator_name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("generator/cuda:{index}"),
        device => format!("generator/{device:?}").to_lowercase(),
    }
}

/// Whether a tensor of a checkpoint is none of the model's.
pub(super) fn is_reserved(name: &str) -> bool {
    ["optimizer/", "generator/", "tch-amp/"].iter().any(|prefix| name.starts_with(prefix))
}

/// What safetensors' metadata says of a checkpoint, in JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    pub(super) version: u64,
    pub(super) written_by: String,
    pub(super) level: AnyLevel,
    pub(super) options: BTreeMap<String, String>,
    pub(super) scalers: Option<SavedScalers>,
    /// The variables that have an FP32 master.
    pub(super) masters: Vec<String>,
    pub(super) optimizers: Vec<SavedOptimizer>,
}

/// What is saved of an optimizer but for tensors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedOptimizer {
    pub(super) kind: String,
    /// Steps that were applied.
    pub(super) updates: u64,
    /// The parameters with their groups.
    pub(super) params: BTreeMap<String, usize>,
    /// `None` where it cannot be read.
    pub(super) state: Option<SavedState>,
}

/// The version of a [`Description`], whatever else is in it.
#[derive(Debug, Deserialize)]
pub(super) struct AnyDescription {
    pub(super) version: u64,
}

/// The options that decide how training goes on; the loss scale has its own place.
pub(super) fn options(
    properties: &Properties,
    models: &[&Arc<Shared>],
) -> BTreeMap<String, String> {
    let apart = ["opt_level", "loss_scale"];
    let table = properties.table().into_iter().filter(|(name, _)| !apart.contains(name));
    let mut options: BTreeMap<_, _> =
        table.map(|(name, value)| (name.to_owned(), value.replace('–', "none"))).collect();
    let paths = models.iter().flat_map(|model| model.keep_fp32());
    let paths: Vec<_> = paths.collect::<BTreeSet<_>>().into_iter().collect();
    options.insert("keep_fp32".to_owned(), format!("{paths:?}"));
    options
}

/// A safetensors header.
#[derive(Serialize)]
pub(super) struct Header<'a> {
    #[serde(rename = "__metadata__")]
    pub(super) metadata: BTreeMap<&'a str, &'a str>,
    #[serde(flatten)]
    pub(super) tensors: BTreeMap<&'a str, TensorInfo>,
}

/// A safetensors header as it is read.
pub(super) type ReadHeader = safetensors::tensor::Metadata;

/// The strings of a header.
pub(super) type Strings = HashMap<String, String>;

/// What safetensors calls a type of libtorch's.
pub(super) fn dtype(kind: Kind) -> Option<Dtype> {
    KINDS.iter().find(|(of_torch, _)| *of_torch == kind).map(|(_, dtype)| *dtype)
}

/// A type of libtorch's by safetensors' name, if it has one.
pub(super) fn type_name(kind: Kind) -> String {
    dtype(kind).map_or_else(|| format!("{kind:?}"), |dtype| dtype.to_string())
}

/// The type of libtorch's that safetensors' stands for.
pub(super) fn kind(dtype: Dtype) -> Option<Kind> {
    KINDS.iter().find(|(_, of_safetensors)| *of_safetensors == dtype).map(|(kind, _)| *kind)
}

const KINDS: [(Kind, Dtype); 10] = [
    (Kind::Float, Dtype::F32),
    (Kind::Half, Dtype::F16),
    (Kind::BFloat16, Dtype::BF16),
    (Kind::Double, Dtype::F64),
    (Kind::Int64, Dtype::I64),
    (Kind::Int, Dtype::I32),
    (Kind::Int16, Dtype::I16),
    (Kind::Int8, Dtype::I8),
    (Kind::Uint8, Dtype::U8),
    (Kind::Bool, Dtype::BOOL),
];

/// The type that a variable has in a checkpoint: floating-point numbers are FP32.
pub(super) fn saved_kind(kind: Kind) -> Kind {
    match kind {
        Kind::Half | Kind::BFloat16 => Kind::Float,
        kind => kind,
    }
}
