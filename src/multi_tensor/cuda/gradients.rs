//! What is done to gradients before the update.
#![allow(unsafe_code, reason = "hands addresses of tensors to kernels")]

use tch::{Kind, TchError, Tensor};

use super::{
    Kernels,
    layout::{Decision, FOUND_NAN, Grads, MAX_TENSORS, State, Tensor as Row},
    sources::GRADIENTS,
    table::{Entry, Table, Tables, Type, Types, Weight, address, upload},
};
use crate::{
    libtorch::{Memory, memory},
    multi_tensor::{Check, NonFinite},
};

/// A tensor that kernels can read, or a copy of it.
#[derive(Debug)]
pub(super) struct Dense {
    pub(super) memory: Memory,
    /// Kept until the kernels are launched: memory that is freed later is reused in order.
    _copy: Option<Tensor>,
}

impl Dense {
    pub(super) fn of(tensor: &Tensor) -> Result<Self, TchError> {
        if let Some(memory) = memory(tensor, false) {
            return Ok(Self { memory, _copy: None });
        }
        let kind = tensor.f_kind()?;
        Type::of(kind).ok_or_else(|| wrong_kind(kind))?;
        let copy = tensor.f_contiguous()?.f_resolve_conj()?.f_resolve_neg()?;
        let memory = memory(&copy, false).ok_or_else(unlike)?;
        Ok(Self { memory, _copy: Some(copy) })
    }

    pub(super) fn all(tensors: &[Option<Tensor>]) -> Result<Vec<Option<Self>>, TchError> {
        tensors.iter().map(|tensor| tensor.as_ref().map(Self::of).transpose()).collect()
    }
}

/// See [`check`](crate::multi_tensor::check).
pub(in crate::multi_tensor) fn check(
    kernels: &Kernels,
    tables: &Tables,
    grads: &[Option<Tensor>],
    factor: f32,
) -> Result<Check, TchError> {
    if factor > 1.0 {
        // Finite gradients can become infinite.
        let mut scaled: Vec<_> = grads.iter().map(|_| None).collect();
        return add(kernels, tables, &mut scaled, grads, factor);
    }
    let dense = Dense::all(grads)?;
    let mut check = look(kernels, tables, "check", &dense, &vec![0; grads.len()], 1.0)?;
    check.squared_norm *= f64::from(factor).powi(2);
    Ok(check)
}

/// See [`scale`](crate::multi_tensor::scale).
pub(in crate::multi_tensor) fn scale(
    kernels: &Kernels,
    grad: &Tensor,
    factor: f32,
) -> Result<Tensor, TchError> {
    let dense = [Some(Dense::of(grad)?)];
    let scaled = Tensor::f_empty(grad.size(), (Kind::Float, grad.device()))?;
    launch(kernels, &Tables::default(), "scale", &dense, &[address(&scaled)], factor, |_| Ok(()))?;
    Ok(scaled)
}

/// See [`accumulate`](crate::multi_tensor::accumulate).
pub(in crate::multi_tensor) fn accumulate(
    kernels: &Kernels,
    tables: &Tables,
    sums: &mut [Option<Tensor>],
    grads: &[Option<Tensor>],
    factor: f32,
) -> Result<Check, TchError> {
    add(kernels, tables, sums, grads, factor)
}

fn add(
    kernels: &Kernels,
    tables: &Tables,
    sums: &mut [Option<Tensor>],
    grads: &[Option<Tensor>],
    factor: f32,
) -> Result<Check, TchError> {
    let (mut first, mut further) = (Vec::new(), Vec::new());
    let mut new = Vec::with_capacity(grads.len());
    let mut out = Vec::with_capacity(grads.len());
    for (sum, grad) in sums.iter().zip(grads) {
        let dense = grad.as_ref().map(Dense::of).transpose()?;
        let into = match (sum, grad) {
            (_, None) => None,
            (None, Some(grad)) => Some(Tensor::f_empty(grad.size(), (Kind::Float, grad.device()))?),
            (Some(sum), Some(grad)) if sum.size() == grad.size() => {
                Some(sum.f_to_kind(Kind::Float)?.f_contiguous()?)
            }
            _ => return Err(unlike()),
        };
        out.push(into.as_ref().map_or(0, address));
        new.push(into);
        let fresh = sum.is_none();
        let (here, there) =
            if fresh { (&mut first, &mut further) } else { (&mut further, &mut first) };
        here.push(dense);
        there.push(None);
    }
    let mut check = look(kernels, tables, "scale", &first, &out, factor)?;
    let other = look(kernels, tables, "accumulate", &further, &out, factor)?;
    check.squared_norm += other.squared_norm;
    check.non_finite = match (check.non_finite, other.non_finite) {
        (Some(a), Some(b)) => Some(if a.0 < b.0 { a } else { b }),
        (a, b) => a.or(b),
    };
    for (sum, new) in sums.iter_mut().zip(new) {
        if new.is_some() {
            *sum = new;
        }
    }
    Ok(check)
}

/// Runs an operation, and returns what it found. Waits for the device.
fn look(
    kernels: &Kernels,
    tables: &Tables,
    operation: &str,
    grads: &[Option<Dense>],
    out: &[u64],
    factor: f32,
) -> Result<Check, TchError> {
    let mut check = Check::default();
    launch(kernels, tables, operation, grads, out, factor, |(first, table)| {
        for (index, partial) in table.found()? {
            check.squared_norm += partial.squares;
            if partial.found == 0 {
                continue;
            }
            let index = first + index;
            let nan = partial.found & FOUND_NAN != 0;
            let kind = if nan { NonFinite::NaN } else { NonFinite::Inf };
            check.non_finite = match check.non_finite {
                Some((known, _)) if known < index => check.non_finite,
                Some((known, NonFinite::NaN)) if known == index => check.non_finite,
                _ => Some((index, kind)),
            };
        }
        Ok(())
    })?;
    Ok(check)
}

/// Launches an operation on as many tensors at a time as a kernel takes, and shows each table.
fn launch(
    kernels: &Kernels,
    tables: &Tables,
    operation: &str,
    grads: &[Option<Dense>],
    out: &[u64],
    factor: f32,
    mut launched: impl FnMut((usize, &Table)) -> Result<(), TchError>,
) -> Result<(), TchError> {
    if grads.iter().all(Option::is_none) {
        return Ok(());
    }
    let state = upload(&State { inverse_scale: factor, ..State::default() }, kernels.device)?;
    let windows = grads.chunks(MAX_TENSORS).zip(out.chunks(MAX_TENSORS));
    for (first, (grads, out)) in (0..).step_by(MAX_TENSORS).zip(windows) {
        let mut pointers = Box::new(Grads { pointer: [0; MAX_TENSORS] });
        let mut entries = Vec::with_capacity(grads.len());
        for ((grad, &out), pointer) in grads.iter().zip(out).zip(&mut pointers.pointer) {
            let Some(Dense { memory, .. }) = grad else {
                entries.push(Entry { tensor: Row::default(), types: None });
                continue;
            };
            *pointer = memory.address;
            let tensor = Row { copy: out, elements: memory.elements, ..Row::default() };
            let types = Type::of(memory.kind).map(|grad| Types { grad, weight: Weight::None });
            entries.push(Entry { tensor, types });
        }
        tables.with(kernels, &entries, |table| {
            for (grad, chunks) in table.by_grad() {
                let name = format!("{operation}_{}", grad.name());
                let (mut part, mut how) = (table.part(&chunks), Decision::default());
                let state = address(&state);
                // SAFETY: the tensors live, and are only used by libtorch, in the same stream.
                unsafe {
                    kernels.look(&GRADIENTS, &name, &mut pointers, &mut part, &mut how, state)?;
                }
            }
            launched((first, table))
        })?;
    }
    Ok(())
}

fn wrong_kind(kind: Kind) -> TchError {
    TchError::Kind(format!("a tensor is {kind:?}, not f32 or 16 bits"))
}

/// Tensors that belong together have the same number of elements, and states are dense.
pub(super) fn unlike() -> TchError {
    TchError::Shape("gradient, weight and state differ in size, or are not dense".to_owned())
}
