//! New weights by an optimizer's rule.
#![allow(unsafe_code, reason = "hands addresses of tensors to kernels")]

use tch::{Kind, TchError, Tensor};
use zerocopy::{Immutable, IntoBytes};

use super::{
    Kernels, Source,
    gradients::{Dense, unlike},
    lamb::lamb,
    launch::Step,
    layout::{self, Grads, MAX_TENSORS, Progress, State},
    table::{Entry, Table, Tables, Type, Types, Weight, address, upload},
};
use crate::{libtorch::memory, multi_tensor::Noise};

/// The kernels of an optimizer's rule.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RuleKernels {
    /// One kernel for each combination of types, whose names begin with `prefix`.
    Elementwise { source: &'static Source, prefix: &'static str },
    /// Those of [`lamb`].
    Lamb,
}

impl RuleKernels {
    /// Whether a figure of all tensors enters each update.
    pub(crate) fn takes_all(self) -> bool {
        matches!(self, Self::Lamb)
    }
}

/// The settings of one param group, as kernels take them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeviceSettings {
    bytes: Vec<u8>,
    /// The rates whose powers correct the moments' bias.
    betas: Option<[f64; 2]>,
}

impl DeviceSettings {
    pub(crate) fn new(settings: &(impl IntoBytes + Immutable), betas: Option<[f64; 2]>) -> Self {
        Self { bytes: settings.as_bytes().to_vec(), betas }
    }
}

/// One parameter's tensors.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) grad: &'a Tensor,
    pub(crate) weight: &'a Tensor,
    pub(crate) copy: Option<&'a Tensor>,
    pub(crate) state: &'a [Tensor],
    pub(crate) noise: Option<Noise>,
    /// The place of its settings.
    pub(crate) group: usize,
    /// The number of this update, counted from 1.
    pub(crate) step: u64,
}

/// The tensors of an update, by parameter.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    entries: Vec<Entry>,
    grads: Vec<Option<Dense>>,
    steps: Vec<u64>,
    noise: Option<Noise>,
}

impl Rows {
    /// Adds a parameter without a gradient.
    pub(crate) fn skip(&mut self) {
        self.entries.push(Entry { tensor: layout::Tensor::default(), types: None });
        self.grads.push(None);
        self.steps.push(0);
    }

    /// Whether [`push`](Self::push) would add a parameter.
    pub(crate) fn fits(grad: &Tensor, weight: &Tensor, copy: Option<&Tensor>) -> bool {
        let dense = memory(weight, true).is_some() && written(copy).is_some();
        dense && Types::of(grad.kind(), weight.kind(), copy.map(Tensor::kind), false).is_some()
    }

    /// Adds a parameter, or returns false if its weights are not row-major or there is no kernel for
    /// the types.
    pub(crate) fn push(&mut self, row: &Row<'_>) -> Result<bool, TchError> {
        let (Some(weight), Some(copy)) = (memory(row.weight, true), written(row.copy)) else {
            return Ok(false);
        };
        let (kind, stochastic) = (row.grad.f_kind()?, row.noise.is_some());
        let types = Types::of(kind, weight.kind, copy.map(|copy| copy.kind), stochastic);
        let Some(types) = types else { return Ok(false) };
        let grad = Dense::of(row.grad)?;
        let mut state = [0; 2];
        for (address, tensor) in state.iter_mut().zip(row.state) {
            let memory = memory(tensor, true).filter(|m| m.elements == weight.elements);
            *address = memory.ok_or_else(unlike)?.address;
        }
        let fits = grad.memory.elements == weight.elements
            && copy.is_none_or(|copy| copy.elements == weight.elements);
        if !fits {
            return Err(unlike());
        }
        let tensor = layout::Tensor {
            weight: weight.address,
            copy: copy.map_or(0, |copy| copy.address),
            state,
            elements: weight.elements,
            noise: row.noise.map_or(0, |noise| noise.parameter),
            group: row.group as u32,
        };
        self.entries.push(Entry { tensor, types: Some(types) });
        self.grads.push(Some(grad));
        self.steps.push(row.step);
        self.noise = self.noise.or(row.noise);
        Ok(true)
    }
}

fn written(copy: Option<&Tensor>) -> Option<Option<crate::libtorch::Memory>> {
    match copy {
        Some(copy) => memory(copy, true).map(Some),
        None => Some(None),
    }
}

/// Applies a rule to each tensor in one pass, after multiplying the gradient by `factor`.
pub(crate) fn update(
    kernels: &Kernels,
    rule: RuleKernels,
    tables: &Tables,
    rows: &Rows,
    settings: &[DeviceSettings],
    factor: f32,
) -> Result<(), TchError> {
    let (source, prefix) = match rule {
        RuleKernels::Elementwise { source, prefix } => (source, prefix),
        RuleKernels::Lamb => return lamb(kernels, tables, rows, settings, factor),
    };
    let state = upload(&State { factor, ..State::default() }, kernels.device)?;
    each_table(kernels, tables, rows, settings, address(&state), |table, grads, step| {
        for (types, chunks) in table.by_types() {
            let name = format!("{prefix}_{}", types.suffix());
            // SAFETY: the tensors live, and are only used by libtorch, in the same stream.
            unsafe { kernels.update(source, &name, grads, &mut table.part(chunks), step)? };
        }
        Ok(())
    })
}

/// Calls `work` with as many tensors at a time as a kernel takes.
pub(super) fn each_table(
    kernels: &Kernels,
    tables: &Tables,
    rows: &Rows,
    settings: &[DeviceSettings],
    state: u64,
    mut work: impl FnMut(&Table, &mut Grads, &mut Step) -> Result<(), TchError>,
) -> Result<(), TchError> {
    let device = kernels.device;
    let bytes: Vec<u8> = settings.iter().flat_map(|group| &group.bytes).copied().collect();
    let uploaded = upload(bytes.as_slice(), device)?;
    let noise = rows.noise.map_or_else(layout::Noise::default, |noise| layout::Noise {
        seed: noise.seed,
        step: noise.step,
    });
    for first in (0..rows.entries.len()).step_by(MAX_TENSORS) {
        let window = first..rows.entries.len().min(first + MAX_TENSORS);
        let entries = &rows.entries[window.clone()];
        let mut pointers = Box::new(Grads { pointer: [0; MAX_TENSORS] });
        for (grad, pointer) in rows.grads[window.clone()].iter().zip(&mut pointers.pointer) {
            *pointer = grad.as_ref().map_or(0, |grad| grad.memory.address);
        }
        let progress: Vec<_> = entries
            .iter()
            .zip(&rows.steps[window])
            .map(|(entry, &step)| progress(step, &settings[entry.tensor.group as usize]))
            .collect();
        let progress = upload(progress.as_slice(), device)?;
        let (settings, progress) = (address(&uploaded), address(&progress));
        let mut step = Step { settings, progress, state, noise };
        tables.with(kernels, entries, |table| work(table, &mut pointers, &mut step))?;
    }
    Ok(())
}

fn progress(step: u64, settings: &DeviceSettings) -> Progress {
    let correction = |beta: f64| 1.0 - beta.powf(step as f64);
    Progress { step, correction: settings.betas.map_or([1.0; 2], |betas| betas.map(correction)) }
}

impl Types {
    /// Those of tensors that there are kernels for: gradients have the weight's type, or are FP32.
    fn of(grad: Kind, weight: Kind, copy: Option<Kind>, stochastic: bool) -> Option<Self> {
        let grad = Type::of(grad)?;
        let weight = match (Type::of(weight)?, copy) {
            (Type::F32, Some(copy)) => Weight::Master(Type::of(copy).filter(|&c| c != Type::F32)?),
            (Type::Bf16, None) if stochastic => Weight::Stochastic,
            (weight, None) => Weight::Plain(weight),
            _ => return None,
        };
        let compiled = match weight {
            Weight::Plain(Type::F32) | Weight::None => true,
            Weight::Master(low) | Weight::Plain(low) => [Type::F32, low].contains(&grad),
            Weight::Stochastic => [Type::F32, Type::Bf16].contains(&grad),
        };
        compiled.then_some(Self { grad, weight })
    }

    /// What the names of kernels for these types end with.
    fn suffix(self) -> String {
        format!("{}_{}", self.grad.name(), self.weight.suffix())
    }
}

impl Weight {
    pub(super) fn suffix(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Master(copy) => format!("master_{}", copy.name()),
            Self::Plain(weight) => weight.name().to_owned(),
            Self::Stochastic => "stochastic".to_owned(),
        }
    }
}
