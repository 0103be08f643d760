//! Values with many tensors, such as a batch: tuples, collections, structs, and nested as you like.
//!
//! [`AmpModel::forward_with`](crate::AmpModel::forward_with) and the functions of
//! [`autocast`](crate::autocast) take and return such values. Floating-point tensors in them are
//! cast; integer, boolean and complex ones are not, nor is anything that is no tensor. A tensor
//! that has its type already is passed on without a copy.
//!
//! Apex finds the tensors at run time: it fails on a named tuple, makes a plain `dict` of any
//! mapping, and trusts a value's own `to`, which may cast integers. Here a value's type says which
//! tensors it has, and it keeps its shape.
//!
//! # Structs and enums
//!
//! ```
//! use tch::{Device, Kind, Tensor};
//! use tch_amp::{Castable, castable, castable::TensorMap};
//!
//! struct Batch {
//!     images: Tensor,
//!     labels: Tensor,
//!     file: String,
//! }
//! castable!(Batch { images, labels, file });
//!
//! struct Span(Tensor, i64);
//! castable!(Span(start, length));
//!
//! enum Mask {
//!     None,
//!     Additive(Tensor),
//! }
//! impl Castable for Mask {
//!     type Cast = Self;
//!     fn map_tensors(&self, map: &mut TensorMap<'_>) -> Self {
//!         match self {
//!             Self::None => Self::None,
//!             Self::Additive(mask) => Self::Additive(map(mask)),
//!         }
//!     }
//! }
//! ```

mod values;

use tch::{Kind, Tensor};

/// What [`Castable::map_tensors`] does to each tensor.
pub type TensorMap<'a> = dyn FnMut(&Tensor) -> Tensor + 'a;

/// A value whose tensors can be cast.
///
/// Implemented for tensors, numbers, `bool`, `char`, strings, `()`, `Kind`, `Device`, `Option`,
/// tuples of up to eight, arrays, slices, `Vec`, the values of `HashMap` and `BTreeMap`, `tch`'s
/// `LSTMState` and `GRUState`, and references to all of these. For structs, write
/// [`castable!`](crate::castable!).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a value whose tensors can be cast",
    label = "name the fields of a struct of your own: `castable!(Batch {{ images, labels }});`",
    note = "tensors, numbers, strings, and tuples, arrays, `Vec`s, `Option`s and maps of such values need nothing"
)]
pub trait Castable {
    /// The value with its tensors cast: `Self` where it owns what it has. References become owned
    /// values, slices become `Vec`s and `str` becomes `String`.
    type Cast;

    /// Returns the value with `map` applied to each tensor, and clones of all else.
    fn map_tensors(&self, map: &mut TensorMap<'_>) -> Self::Cast;
}

/// An argument that stays in FP32 where others are cast to 16 bits.
///
/// Its 16-bit tensors become FP32; all others are passed on as they are, doubles included. Works on
/// inputs, outputs and fields of structs. At level `O1` operations cast their arguments, marked or
/// not: what is to run in FP32 there belongs in [`float_function`](crate::autocast::float_function).
///
/// ```
/// # use half::bf16;
/// # use tch::{Device, Kind, Tensor, nn};
/// # use tch_amp::{Amp, O2};
/// use tch_amp::castable::KeepFp32;
///
/// # let store = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(store.root(), 2, 2, Default::default());
/// # let model = Amp::<O2<bf16>>::builder().build_model((store, net))?;
/// # let xs = Tensor::ones([1, 2], (Kind::Float, Device::Cpu));
/// # let (images, boxes) = (&xs, &xs);
/// model.forward_with((images, KeepFp32(boxes)), |_net, (images, KeepFp32(boxes))| {
///     assert_eq!((images.kind(), boxes.kind()), (Kind::BFloat16, Kind::Float));
/// });
/// # Ok::<(), tch_amp::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepFp32<T>(pub T);

impl<T: Castable> Castable for KeepFp32<T> {
    type Cast = KeepFp32<T::Cast>;

    fn map_tensors(&self, _: &mut TensorMap<'_>) -> Self::Cast {
        KeepFp32(self.0.map_tensors(&mut |tensor| match tensor.f_kind() {
            Ok(Kind::Half | Kind::BFloat16) => tensor.to_kind(Kind::Float),
            _ => tensor.shallow_clone(),
        }))
    }
}

/// Casts the floating-point tensors of a value to `kind`, or none.
pub(crate) fn cast<T: Castable>(value: &T, kind: Option<Kind>) -> T::Cast {
    value.map_tensors(&mut |tensor| match kind {
        Some(kind) if tensor.is_floating_point() => tensor.to_kind(kind),
        _ => tensor.shallow_clone(),
    })
}

/// Makes a struct [`Castable`]: `castable!(Batch { images, labels })`, with all of its fields, or
/// `castable!(Pair(left, right))` with a name for each field of a tuple struct.
///
/// Fields are `Castable` themselves, and own what they have. Structs with type parameters or
/// lifetimes, and enums, implement the trait by hand.
#[macro_export]
macro_rules! castable {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::Castable for $name {
            type Cast = Self;

            fn map_tensors(&self, map: &mut $crate::castable::TensorMap<'_>) -> Self {
                Self { $($field: $crate::Castable::map_tensors(&self.$field, map)),+ }
            }
        }
    };
    ($name:ident ( $($field:ident),+ $(,)? )) => {
        impl $crate::Castable for $name {
            type Cast = Self;

            fn map_tensors(&self, map: &mut $crate::castable::TensorMap<'_>) -> Self {
                let Self($($field),+) = self;
                Self($($crate::Castable::map_tensors($field, map)),+)
            }
        }
    };
}
