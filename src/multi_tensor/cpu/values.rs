//! The elements of tensors in the CPU's memory, whatever type they are stored in.

use half::{bf16, f16};
use tch::{Device, Kind, TchError, Tensor};

use super::simd::Instructions;
use crate::libtorch::{slice, slice_mut};

/// Elements that are read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Values<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

/// Elements that are written.
#[derive(Debug)]
pub(super) enum ValuesMut<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
}

impl<'a> Values<'a> {
    /// The elements of a dense tensor.
    pub(super) fn of(tensor: &'a Tensor) -> Result<Self, TchError> {
        let values = match tensor.f_kind()? {
            Kind::Float => slice(tensor).map(Self::F32),
            Kind::Half => slice(tensor).map(Self::F16),
            Kind::BFloat16 => slice(tensor).map(Self::Bf16),
            kind => return Err(wrong_kind(kind)),
        };
        values.ok_or_else(not_dense)
    }

    pub(super) fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Takes the first `len` elements away.
    pub(super) fn take(&mut self, len: usize) -> Option<Self> {
        match self {
            Self::F32(values) => values.split_off(..len).map(Self::F32),
            Self::F16(values) => values.split_off(..len).map(Self::F16),
            Self::Bf16(values) => values.split_off(..len).map(Self::Bf16),
        }
    }

    /// Reads the elements from `start` on.
    #[inline(always)]
    pub(super) fn load<I: Instructions>(self, start: usize, into: &mut [f32]) {
        let range = start..start + into.len();
        match self {
            Self::F32(values) => into.copy_from_slice(&values[range]),
            Self::F16(values) => I::from_f16(&values[range], into),
            Self::Bf16(values) => from_bf16(&values[range], into),
        }
    }
}

impl<'a> ValuesMut<'a> {
    /// The elements of a dense tensor.
    pub(super) fn of(tensor: &'a mut Tensor) -> Result<Self, TchError> {
        let values = match tensor.f_kind()? {
            Kind::Float => slice_mut(tensor).map(Self::F32),
            Kind::Half => slice_mut(tensor).map(Self::F16),
            Kind::BFloat16 => slice_mut(tensor).map(Self::Bf16),
            kind => return Err(wrong_kind(kind)),
        };
        values.ok_or_else(not_dense)
    }

    pub(super) fn len(&self) -> usize {
        self.as_ref().len()
    }

    pub(super) fn as_ref(&self) -> Values<'_> {
        match self {
            Self::F32(values) => Values::F32(values),
            Self::F16(values) => Values::F16(values),
            Self::Bf16(values) => Values::Bf16(values),
        }
    }

    /// Takes the first `len` elements away.
    pub(super) fn take(&mut self, len: usize) -> Option<Self> {
        match self {
            Self::F32(values) => values.split_off_mut(..len).map(Self::F32),
            Self::F16(values) => values.split_off_mut(..len).map(Self::F16),
            Self::Bf16(values) => values.split_off_mut(..len).map(Self::Bf16),
        }
    }

    /// Writes the elements from `start` on, rounded to nearest, ties to even.
    #[inline(always)]
    pub(super) fn store<I: Instructions>(&mut self, start: usize, from: &[f32]) {
        let range = start..start + from.len();
        match self {
            Self::F32(values) => values[range].copy_from_slice(from),
            Self::F16(values) => I::to_f16(from, &mut values[range]),
            Self::Bf16(values) => to_bf16(from, &mut values[range]),
        }
    }
}

/// In bit arithmetic, which the compiler turns into vector instructions.
#[inline(always)]
fn from_bf16(from: &[bf16], into: &mut [f32]) {
    for (from, into) in from.iter().zip(into) {
        *into = f32::from_bits(u32::from(from.to_bits()) << 16);
    }
}

/// In bit arithmetic, which the compiler turns into vector instructions.
#[inline(always)]
fn to_bf16(from: &[f32], into: &mut [bf16]) {
    for (from, into) in from.iter().zip(into) {
        let bits = from.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
        let rounded = if from.is_nan() { 0x7FC0 } else { rounded };
        *into = bf16::from_bits(rounded as u16);
    }
}

/// A tensor that can be viewed as [`Values`], or a copy of it that can.
#[derive(Debug)]
pub(super) struct Dense<'a> {
    tensor: &'a Tensor,
    copy: Option<Tensor>,
}

impl<'a> Dense<'a> {
    pub(super) fn of(tensor: &'a Tensor) -> Result<Self, TchError> {
        let copy = match Values::of(tensor) {
            Ok(_) => None,
            Err(_) => Some(Self::copy(tensor)?),
        };
        Ok(Self { tensor, copy })
    }

    /// A dense copy.
    pub(super) fn copy(tensor: &Tensor) -> Result<Tensor, TchError> {
        let kind = match tensor.f_kind()? {
            kind @ (Kind::Float | Kind::Half | Kind::BFloat16) => kind,
            kind => return Err(wrong_kind(kind)),
        };
        let mut copy = Tensor::f_empty(tensor.size(), (kind, Device::Cpu))?;
        copy.f_copy_(tensor)?;
        Ok(copy)
    }

    pub(super) fn tensor(&self) -> &Tensor {
        self.tensor
    }

    pub(super) fn values(&self) -> Result<Values<'_>, TchError> {
        Values::of(self.copy.as_ref().unwrap_or(self.tensor))
    }
}

/// Tensors that belong together have the same number of elements, and states are dense.
pub(in crate::multi_tensor) fn unlike() -> TchError {
    TchError::Shape("gradient, weight and state differ in size, or are not dense".to_owned())
}

fn wrong_kind(kind: Kind) -> TchError {
    TchError::Kind(format!("a tensor is {kind:?}, not f32 or 16 bits"))
}

fn not_dense() -> TchError {
    TchError::Shape("a tensor is not dense, or not on the CPU".to_owned())
}
