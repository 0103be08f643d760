//! What kernels are told of a list of tensors.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use tch::{Device, Kind, TchError, Tensor};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{
    Kernels,
    layout::{self, Chunk, Partial},
    lock,
};
use crate::libtorch;

/// Elements of the smallest chunk: each thread of a block has 32.
const CHUNK: u64 = 8192;
/// Chunks for each block that runs at a time, at most.
const CHUNKS_OF_A_BLOCK: u64 = 64;
/// Blocks that a multiprocessor runs at a time, about.
const BLOCKS: u64 = 4;
/// Lists of tensors that tables are kept for: those of a step's passes.
const KEPT: usize = 4;

/// The type of elements, as kernels are named after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Type {
    F16,
    Bf16,
    F32,
}

impl Type {
    pub(super) fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Half => Some(Self::F16),
            Kind::BFloat16 => Some(Self::Bf16),
            Kind::Float => Some(Self::F32),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

/// Which weight an update writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// None: the kernel looks at gradients.
    None,
    /// An FP32 master and the model's weight of this type.
    Master(Type),
    /// The model's own weight.
    Plain(Type),
    /// The model's own weight in bf16, rounded stochastically.
    Stochastic,
}

/// The types of a tensor's gradient and weight: kernels are made for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Types {
    pub(super) grad: Type,
    pub(super) weight: Weight,
}

/// One tensor; without types, it has not had a gradient yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
    pub(super) tensor: layout::Tensor,
    pub(super) types: Option<Types>,
}

/// Tables that were uploaded, kept while the tensors stay the same.
#[derive(Debug, Clone, Default)]
pub struct Tables(Arc<Mutex<Vec<Table>>>);

impl Tables {
    /// Calls `work` with the table of at most [`layout::MAX_TENSORS`] tensors.
    pub(super) fn with<T>(
        &self,
        kernels: &Kernels,
        entries: &[Entry],
        work: impl FnOnce(&Table) -> Result<T, TchError>,
    ) -> Result<T, TchError> {
        let mut kept = lock(&self.0);
        let device = kernels.device;
        let known = kept.iter().position(|t| t.device == device && t.entries == entries);
        let table = match known {
            Some(index) => kept.remove(index),
            None => Table::new(kernels, entries)?,
        };
        kept.truncate(KEPT - 1);
        kept.insert(0, table);
        work(&kept[0])
    }
}

/// A list of tensors in the device's memory, cut into chunks.
#[derive(Debug)]
pub(super) struct Table {
    device: Device,
    entries: Vec<Entry>,
    tensors: Tensor,
    chunks: Tensor,
    partials: Tensor,
    /// The tensor that each chunk belongs to.
    tensor_of: Vec<u32>,
    /// The chunks of each combination of types, those of one type of gradient side by side.
    runs: Vec<(Types, Range<usize>)>,
    chunk_elements: u64,
}

impl Table {
    fn new(kernels: &Kernels, entries: &[Entry]) -> Result<Self, TchError> {
        let device = kernels.device;
        let chunk_elements = chunk_elements(kernels, entries);
        let mut order: Vec<_> = entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| Some((entry.types?, index)))
            .collect();
        order.sort_unstable();
        let mut chunks = Vec::new();
        let mut runs: Vec<(Types, Range<usize>)> = Vec::new();
        for (types, index) in order {
            let start = chunks.len();
            let offsets = (0..entries[index].tensor.elements).step_by(chunk_elements as usize);
            chunks.extend(offsets.map(|offset| Chunk {
                offset,
                tensor: index as u32,
                reserved: 0,
            }));
            match runs.last_mut().filter(|(last, _)| *last == types) {
                Some((_, run)) => run.end = chunks.len(),
                None => runs.push((types, start..chunks.len())),
            }
        }
        let tensors: Vec<_> = entries.iter().map(|entry| entry.tensor).collect();
        let partials = (size_of::<Partial>() * chunks.len()) as i64;
        Ok(Self {
            device,
            entries: entries.to_vec(),
            tensors: upload(tensors.as_slice(), device)?,
            partials: Tensor::f_zeros([partials], (Kind::Uint8, device))?,
            tensor_of: chunks.iter().map(|chunk| chunk.tensor).collect(),
            chunks: upload(chunks.as_slice(), device)?,
            runs,
            chunk_elements,
        })
    }

    /// Some of its chunks, as kernels take them.
    pub(super) fn part(&self, chunks: &Range<usize>) -> layout::Table {
        let at = |buffer: &Tensor, size: usize| address(buffer) + (size * chunks.start) as u64;
        layout::Table {
            tensors: address(&self.tensors),
            chunks: at(&self.chunks, size_of::<Chunk>()),
            partials: at(&self.partials, size_of::<Partial>()),
            chunk_elements: self.chunk_elements,
            chunk_count: chunks.len() as u32,
            tensor_count: self.entries.len() as u32,
        }
    }

    /// All of its chunks.
    pub(super) fn whole(&self) -> layout::Table {
        self.part(&(0..self.tensor_of.len()))
    }

    /// The chunks of each type of gradient.
    pub(super) fn by_grad(&self) -> Vec<(Type, Range<usize>)> {
        let mut merged: Vec<(Type, Range<usize>)> = Vec::new();
        for (types, run) in self.runs.iter().filter(|(_, run)| !run.is_empty()) {
            match merged.last_mut().filter(|(last, _)| *last == types.grad) {
                Some((_, range)) => range.end = run.end,
                None => merged.push((types.grad, run.clone())),
            }
        }
        merged
    }

    /// The chunks of each combination of types.
    pub(super) fn by_types(&self) -> impl Iterator<Item = &(Types, Range<usize>)> {
        self.runs.iter().filter(|(_, run)| !run.is_empty())
    }

    /// What the last check found, with the tensor of each chunk. Waits for the device.
    pub(super) fn found(&self) -> Result<Vec<(usize, Partial)>, TchError> {
        let partials: Vec<Partial> = download(&self.partials)?;
        Ok(self.tensor_of.iter().map(|&tensor| tensor as usize).zip(partials).collect())
    }
}

/// Chunks are as small as their number allows, so that all blocks have equally much to do.
fn chunk_elements(kernels: &Kernels, entries: &[Entry]) -> u64 {
    let elements: u64 = entries.iter().map(|entry| entry.tensor.elements).sum();
    let most = u64::from(kernels.gpu.multiprocessors) * BLOCKS * CHUNKS_OF_A_BLOCK;
    let mut chunk = CHUNK;
    while elements / chunk > most {
        chunk *= 2;
    }
    chunk
}

/// Where a tensor's memory begins.
pub(super) fn address(buffer: &Tensor) -> u64 {
    buffer.data_ptr().addr() as u64
}

/// Copies values to a device, in order with its work, without waiting for it.
pub(super) fn upload<T: IntoBytes + Immutable + ?Sized>(
    values: &T,
    device: Device,
) -> Result<Tensor, TchError> {
    let host = Tensor::f_from_slice(values.as_bytes())?;
    match device {
        // libtorch reuses the pinned memory once the copy has been made.
        Device::Cuda(_) => {
            host.f_pin_memory(device)?.f_to_device_(device, Kind::Uint8, true, false)
        }
        _ => Ok(host),
    }
}

/// Copies values from a device. Waits for it.
pub(super) fn download<T: FromBytes>(buffer: &Tensor) -> Result<Vec<T>, TchError> {
    let host = buffer.f_to_device(Device::Cpu)?;
    let bytes = libtorch::bytes(&host).unwrap_or_default();
    let values = bytes.chunks_exact(size_of::<T>()).map(T::read_from_bytes);
    values
        .collect::<Result<_, _>>()
        .map_err(|_| TchError::Shape("not a whole number of values".to_owned()))
}
