//! O1: regions of code in which each operation runs in the type that suits it.
//!
//! The weights stay in FP32. Inside an [`AutocastRegion`] the arguments of listed operations are
//! cast before they run; autograd records the casts, so that gradients of FP32 weights are FP32.
//!
//! | operations | run in |
//! |---|---|
//! | matrix products, `linear`, convolutions, `prelu`, attention, recurrent layers | the region's 16-bit type |
//! | `exp`, `log`, `pow`, `softmax`, norms, sums, products, losses, interpolation | FP32 |
//! | `addcmul`, `atan2`, `bilinear`, `cat`, `dot`, `index_put`, `scatter_add`, `stack`, … | their arguments' widest type |
//! | `index_put_`, `scatter_add_`, `index_copy_`, … | the type of what they write to |
//! | all others, among them batch norm, `relu`, `gelu`, `add`, pooling, dropout, embeddings | the type of their arguments |
//!
//! `Double` and integer tensors are never cast, nor are arguments of in-place operations other than
//! those above. An output type that is asked for, as in `sum(Kind::Double)`, is respected.
//!
//! The lists are those of PyTorch's CUDA autocast **on every device**. libtorch's own CPU autocast
//! leaves `softmax`, `exp`, `log`, `pow`, `sum` and the norms in 16 bits, so the first region
//! registers with libtorch what its lists lack. That acts inside regions only: libtorch's autocast
//! without a region, on this thread or another, is what it was. Where libtorch's CPU lists name an
//! operation themselves, they hold: `grid_sampler` runs in FP32, as do linear algebra, FFTs and 3-D
//! pooling, which have no 16-bit kernels on the CPU.
//!
//! `binary_cross_entropy` runs in FP32 on the CPU and on CUDA, where Apex and libtorch's own
//! autocast refuse it: a probability that 16 bits round to 0 or 1 has lost its logarithm. The
//! probability itself is best made in FP32, by [`float_function`], or the sigmoid left to
//! `binary_cross_entropy_with_logits`.
//!
//! # Operations of one's own
//!
//! An operation that no list knows runs in the type of its arguments. [`half_function`],
//! [`float_function`] and [`promote_function`] choose that type, as Apex's decorators of the same
//! names do.
//!
//! # A third floating-point type
//!
//! An FP16 tensor in a BF16 region (or the reverse) makes operations of the third row run in FP32,
//! which holds both. libtorch's own entries, which are `cat`, `stack` and `index_copy` on the CPU
//! and most of the row on CUDA, refuse with "Unexpected floating ScalarType".
//!
//! # No cast is kept
//!
//! libtorch can keep a weight's 16-bit copy for later uses in the region. Regions switch that off:
//! gradients of a weight that is used many times would add up in 16 bits (1000 uses with gradient 1
//! give 256 in BF16, and 1000 without kept casts), and a weight that is changed inside the region
//! would still be used with its old value. A weight is hence cast at each use.
//!
//! # Examples
//!
//! ```
//! use half::bf16;
//! use tch::{Device, Kind, Tensor};
//! use tch_amp::autocast;
//!
//! let xs = Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
//! let ys = {
//!     let _region = autocast::enter::<bf16>(Device::Cpu)?;
//!     let ys = xs.matmul(&xs.tr());
//!     assert_eq!(ys.kind(), Kind::BFloat16);
//!     ys.exp()
//! };
//! assert_eq!(ys.kind(), Kind::Float);
//! # Ok::<(), autocast::AutocastError>(())
//! ```

mod error;
mod functions;
mod region;

use tch::Device;

pub use error::AutocastError;
pub use functions::{float_function, half_function, promote_function};
pub use region::AutocastRegion;
pub(crate) use region::RegionKind;

use crate::dtype::LowPrecision;

/// Enters a region on this thread, for the time the guard lives, in which the operations of
/// `device` run in `H` or FP32 by the O1 lists.
///
/// Regions nest; the innermost one of a device is in force. Which of several CUDA devices is given
/// makes no difference. The backward pass belongs outside: autograd has recorded the casts.
///
/// # Errors
///
/// When the device has no autocast, or libtorch refuses the lists. Nothing has changed then.
pub fn enter<H: LowPrecision>(device: Device) -> Result<AutocastRegion, AutocastError> {
    RegionKind::new(device, H::KIND).map(RegionKind::enter)
}

/// Suspends the casts on `device`, for the time the guard lives: operations run in the type of
/// their arguments, as they do outside regions.
///
/// Apex calls this `disable_casts`. Tensors made in the region around may be in 16 bits: cast them
/// with `to_kind` where an operation needs one common type.
///
/// # Errors
///
/// When the device has no autocast.
pub fn disable(device: Device) -> Result<AutocastRegion, AutocastError> {
    AutocastRegion::disabled(device)
}
