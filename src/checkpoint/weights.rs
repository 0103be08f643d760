//! Weights alone, to and from other programs.

use std::{collections::BTreeMap, path::Path};

use tch::{Device, Kind, Tensor};

use super::{
    LoadError, SaveError, TensorProblem,
    layout::{self, is_reserved},
    matching::{Expected, Found, Target, fill, match_up},
    parts::Parts,
    progress::Meter,
    read::Source,
    save::{FORMAT, weights},
    write::{Entry, write},
};
use crate::config::DType;

/// Writes weights and buffers, floating-point ones in one type.
pub(super) fn export_weights(
    parts: &Parts<'_>,
    path: &Path,
    dtype: DType,
    meter: &mut Meter<'_>,
) -> Result<(), SaveError> {
    let kind = |kind| if is_floating(kind) { dtype.kind() } else { kind };
    let entries = weights(parts, kind);
    for entry in entries.iter().filter(|entry| entry.kind == Kind::Half) {
        check_range(entry, dtype)?;
    }
    write(path, entries, BTreeMap::from([FORMAT]), false, meter)
}

/// A finite value must stay finite.
fn check_range(entry: &Entry, dtype: DType) -> Result<(), SaveError> {
    let tensor = entry.tensor.f_detach()?;
    let finite_there = tensor.f_to_kind(entry.kind)?.f_isfinite()?;
    let same = finite_there.f_eq_tensor(&tensor.f_isfinite()?)?.f_all()?;
    match same.f_int64_value(&[])? {
        0 => Err(SaveError::OutOfRange { name: entry.name.clone(), dtype }),
        _ => Ok(()),
    }
}

/// Loads weights and buffers, masters included, in the types that the level gives them. Returns the
/// names of variables that the file lacks; unless `partial`, that is an error.
pub(super) fn load_weights(
    parts: &Parts<'_>,
    path: &Path,
    partial: bool,
    meter: &mut Meter<'_>,
) -> Result<Vec<String>, LoadError> {
    let mut weights = Weights::open(path)?;
    let expected: Vec<_> = parts.variables.iter().map(Expected::of).collect();
    let fits = |there, here| there == here || (is_floating(there) && is_floating(here));
    let checkpoint = weights.is_checkpoint();
    let ignored = |name: &str| partial || (checkpoint && is_reserved(name));
    let mut matching = match_up(&expected, &weights.found(), fits, ignored);
    let missing = match partial {
        true => std::mem::take(&mut matching.missing),
        false => Vec::new(),
    };
    let targets = parts.variables.iter().map(|v| Target::of(v, parts.param(v)));
    let targets = matching.indices.clone().into_iter().zip(targets);
    let mut targets: Vec<_> = targets.filter_map(|(index, t)| Some((index?, t))).collect();
    matching.complete(path)?;
    weights.make_ready(&mut targets, meter)?;
    fill(path, targets, |index, tensor| weights.fill(index, tensor, meter))?;
    parts.models.iter().for_each(|model| model.keep_statistics());
    let name = |problem| match problem {
        TensorProblem::Missing { name } => Some(name),
        _ => None,
    };
    Ok(missing.into_iter().filter_map(name).collect())
}

fn is_floating(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::Half | Kind::BFloat16 | Kind::Double)
}

/// A file of weights: safetensors, or one of the formats that tch reads.
enum Weights {
    Safetensors(Box<Source>),
    OfTch(Vec<(String, Tensor)>),
}

impl Weights {
    /// Tells the format by the ending of the file's name, as `VarStore::load` does.
    fn open(path: &Path) -> Result<Self, LoadError> {
        let read = match path.extension().and_then(|ending| ending.to_str()) {
            Some("safetensors") => {
                let mut source = Source::open(path)?;
                source.verify_header()?;
                return Ok(Self::Safetensors(Box::new(source)));
            }
            Some("pt" | "bin") => Tensor::loadz_multi_with_device(path, Device::Cpu),
            Some("npz") => Tensor::read_npz(path),
            _ => Tensor::load_multi_with_device(path, Device::Cpu),
        };
        let foreign = |source| LoadError::Foreign { path: path.to_owned(), source };
        read.map(Self::OfTch).map_err(foreign)
    }

    fn is_checkpoint(&self) -> bool {
        matches!(self, Self::Safetensors(source) if source.description().is_some())
    }

    fn found(&self) -> Vec<Found> {
        match self {
            Self::Safetensors(source) => source.found(),
            Self::OfTch(tensors) => tensors
                .iter()
                .map(|(name, tensor)| Found {
                    name: name.clone(),
                    dtype: layout::type_name(tensor.kind()),
                    kind: Some(tensor.kind()),
                    shape: tensor.size(),
                })
                .collect(),
        }
    }

    /// The last that can fail before something is changed.
    fn make_ready(
        &mut self,
        targets: &mut [(usize, Target)],
        meter: &mut Meter<'_>,
    ) -> Result<(), LoadError> {
        let Self::Safetensors(source) = self else { return Ok(()) };
        meter.start(source.bytes_to_read(targets.iter().map(|(index, _)| *index)));
        source.verify_tensors(meter)?;
        source.stage(targets)?;
        Ok(())
    }

    fn fill(
        &mut self,
        index: usize,
        target: &mut Tensor,
        meter: &mut Meter<'_>,
    ) -> Result<(), LoadError> {
        match self {
            Self::Safetensors(source) => source.fill(index, target, meter),
            Self::OfTch(tensors) => Ok(target.f_copy_(&tensors[index].1)?),
        }
    }
}
