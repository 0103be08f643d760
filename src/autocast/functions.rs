//! Functions of a user's own that run in one type inside a region.

use tch::{Kind, Tensor};

use super::region;
use crate::castable::Castable;

/// Calls `f` with `args` in the 16-bit type of the region, for operations with a 16-bit kernel of
/// their own. Apex calls this `half_function`.
///
/// Inside a region, floating-point tensors of its device are cast, except doubles and arguments
/// marked [`KeepFp32`](crate::KeepFp32). Autograd records the casts, and no cast is kept. `f` runs
/// with casts suspended on all devices, also when it panics. Outside regions this is a plain call.
///
/// Apex casts doubles too, and leaves its casts on inside `f`.
pub fn half_function<A: Castable, R>(args: A, f: impl FnOnce(A::Cast) -> R) -> R {
    in_type(args, |low, _| low, f)
}

/// Calls `f` with `args` in FP32, for operations that 16 bits cannot hold. Apex calls this
/// `float_function`.
///
/// As [`half_function`] otherwise. Since `f` runs without casts, it may use operations that a region
/// refuses.
pub fn float_function<A: Castable, R>(args: A, f: impl FnOnce(A::Cast) -> R) -> R {
    in_type(args, |_, _| Kind::Float, f)
}

/// Calls `f` with `args` in the widest type among them, for operations that need one common type.
/// Apex calls this `promote_function`.
///
/// As [`half_function`] otherwise. When all tensors that would be cast have one type, they keep it;
/// in any other case they become FP32, which holds FP16 and BF16. Apex refuses mixes other than
/// FP16 with FP32.
pub fn promote_function<A: Castable, R>(args: A, f: impl FnOnce(A::Cast) -> R) -> R {
    in_type(args, |_, widest| widest, f)
}

/// Calls `f` with `args` in the type that `choose` gives for the region's type and the widest type
/// among the tensors.
fn in_type<A: Castable, R>(
    args: A,
    choose: fn(Kind, Kind) -> Kind,
    f: impl FnOnce(A::Cast) -> R,
) -> R {
    let mut widest = None;
    args.map_tensors(&mut |tensor| {
        if region_kind(tensor).is_some() {
            let kind = tensor.kind();
            let same = widest.is_none_or(|widest| widest == kind);
            widest = Some(if same { kind } else { Kind::Float });
        }
        tensor.shallow_clone()
    });
    let args = args.map_tensors(&mut |tensor| match region_kind(tensor).zip(widest) {
        Some((low, widest)) => tensor.to_kind(choose(low, widest)),
        None => tensor.shallow_clone(),
    });
    let _no_casts = region::suspend();
    f(args)
}

/// The 16-bit type of the region that casts this tensor.
fn region_kind(tensor: &Tensor) -> Option<Kind> {
    let eligible = tensor.is_floating_point() && tensor.kind() != Kind::Double;
    eligible.then(|| region::open(tensor.device())).flatten()
}
