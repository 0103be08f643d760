//! Apex's tests of `O1`'s casts (`test_basic_casts`, `test_promotion`): the type of each result, and
//! gradients in the type of what they belong to.
//!
//! The lists here are those of PyTorch's CUDA autocast. Where Apex's differ, the test says so.

use half::{bf16, f16};
use tch::{
    Device, Kind, Reduction, Tensor,
    nn::{self, ModuleT, VarStore},
};
use tch_amp::{Amp, AmpModel, LowPrecision, O1};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// A model at `O1` with no layers of its own, for its casts.
fn o1<H: LowPrecision>() -> AmpModel<O1<H>, ()> {
    Amp::<O1<H>>::builder().build_model((VarStore::new(Device::Cpu), ())).unwrap()
}

fn ramp(shape: &[i64], kind: Kind) -> Tensor {
    let ones = Tensor::ones(shape, FLOAT);
    (ones.cumsum(-1, None) * 0.1).to_kind(kind)
}

/// Which type a result has.
#[derive(Debug, Clone, Copy)]
enum Expected {
    Low,
    Float,
    TypeOfInput,
}

/// Calls `layer` at `O1` with an input of each type; results have the expected type, and the
/// gradient of the input has the input's.
fn run_layer<H: LowPrecision>(
    name: &str,
    shape: &[i64],
    expected: Expected,
    layer: impl Fn(&Tensor) -> Tensor,
) {
    for kind in [Kind::Float, H::KIND] {
        let xs = ramp(shape, kind).set_requires_grad(true);
        let ys = o1::<H>().run(|()| layer(&xs));
        let wanted = match expected {
            Expected::Low => H::KIND,
            Expected::Float => Kind::Float,
            Expected::TypeOfInput => kind,
        };
        assert_eq!(ys.kind(), wanted, "{name} of {kind:?}");
        ys.to_kind(Kind::Float).sum(Kind::Float).backward();
        assert_eq!(xs.grad().kind(), kind, "gradient of {name}'s input");
    }
}

/// Runs a test in both 16-bit types.
macro_rules! in_both_types {
    ($($test:ident)*) => { $(
        #[test]
        fn $test() {
            typed::$test::<f16>();
            typed::$test::<bf16>();
        }
    )* };
}
in_both_types! {
    linear_layers_are_16_bit
    convolutions_are_16_bit
    softmax_is_fp32
    group_norm_is_fp32
    losses_are_fp32
    relu_matches_its_input
    batch_norm_matches_its_input
    binary_cross_entropy_is_fp32
    matrix_products_are_16_bit
    powers_are_fp32
    sums_are_fp32
    moving_to_the_cpu_keeps_the_type
    atan2_and_mul_run_in_the_widest_type
    cat_runs_in_the_widest_type
    in_place_exp_keeps_its_type
    in_place_add_keeps_its_type
}

mod typed {
    use Expected::{Float, Low, TypeOfInput};

    use super::*;

    pub fn linear_layers_are_16_bit<H: LowPrecision>() {
        let store = VarStore::new(Device::Cpu);
        let linear = nn::linear(store.root(), 8, 4, Default::default());
        run_layer::<H>("nn::linear", &[2, 8], Low, |xs| linear.forward_t(xs, true));
        run_layer::<H>("linear", &[2, 8], Low, |xs| xs.linear(&linear.ws, linear.bs.as_ref()));
    }

    pub fn convolutions_are_16_bit<H: LowPrecision>() {
        let store = VarStore::new(Device::Cpu);
        let conv = nn::conv2d(store.root(), 3, 4, 3, Default::default());
        run_layer::<H>("nn::conv2d", &[2, 3, 5, 5], Low, |xs| conv.forward_t(xs, true));
        run_layer::<H>("conv2d", &[2, 3, 5, 5], Low, |xs| {
            xs.conv2d(&conv.ws, conv.bs.as_ref(), [1, 1], [0, 0], [1, 1], 1)
        });
    }

    pub fn softmax_is_fp32<H: LowPrecision>() {
        run_layer::<H>("softmax", &[2, 8], Float, |xs| xs.softmax(1, None));
    }

    pub fn group_norm_is_fp32<H: LowPrecision>() {
        let store = VarStore::new(Device::Cpu);
        let norm = nn::group_norm(store.root(), 2, 4, Default::default());
        run_layer::<H>("nn::group_norm", &[2, 4, 3], Float, |xs| norm.forward_t(xs, true));
    }

    pub fn losses_are_fp32<H: LowPrecision>() {
        let target = Tensor::zeros([2, 8], FLOAT);
        run_layer::<H>("mse_loss", &[2, 8], Float, |xs| xs.mse_loss(&target, Reduction::Mean));
        let digits = Tensor::from_slice(&[3i64, 1]);
        run_layer::<H>("cross_entropy", &[2, 8], Float, |xs| xs.cross_entropy_for_logits(&digits));
    }

    pub fn relu_matches_its_input<H: LowPrecision>() {
        run_layer::<H>("relu", &[2, 8], TypeOfInput, Tensor::relu);
    }

    pub fn batch_norm_matches_its_input<H: LowPrecision>() {
        let store = VarStore::new(Device::Cpu);
        let norm = nn::batch_norm2d(store.root(), 3, Default::default());
        for train in [true, false] {
            run_layer::<H>("nn::batch_norm2d", &[2, 3, 4, 4], TypeOfInput, |xs| {
                norm.forward_t(xs, train)
            });
        }
        let [mean, var] = [&norm.running_mean, &norm.running_var].map(Some);
        run_layer::<H>("batch_norm", &[2, 3, 4, 4], TypeOfInput, |xs| {
            xs.batch_norm(norm.ws.as_ref(), norm.bs.as_ref(), mean, var, false, 0.1, 1e-5, false)
        });
    }

    /// Apex, and CUDA autocast, refuse it with 16-bit arguments; libtorch's CPU lists cast it.
    pub fn binary_cross_entropy_is_fp32<H: LowPrecision>() {
        let target = Tensor::ones([2, 8], FLOAT);
        run_layer::<H>("binary_cross_entropy", &[2, 8], Float, |xs| {
            xs.binary_cross_entropy(&target, None::<Tensor>, Reduction::Mean)
        });
    }

    pub fn matrix_products_are_16_bit<H: LowPrecision>() {
        let other = ramp(&[8, 8], Kind::Float);
        run_layer::<H>("matmul", &[8, 8], Low, |xs| xs.matmul(&other));
        run_layer::<H>("matmul from the right", &[8, 8], Low, |xs| other.matmul(xs));
        let other = other.to_kind(H::KIND);
        run_layer::<H>("matmul with 16 bits", &[8, 8], Low, |xs| xs.matmul(&other));
    }

    pub fn powers_are_fp32<H: LowPrecision>() {
        run_layer::<H>("pow", &[2, 8], Float, |xs| xs.pow_tensor_scalar(2));
        run_layer::<H>("pow of tensors", &[2, 8], Float, |xs| xs.pow(xs));
        run_layer::<H>("pow of a number", &[2, 8], Float, |xs| Tensor::pow_scalar(2, xs));
    }

    pub fn sums_are_fp32<H: LowPrecision>() {
        run_layer::<H>("sum", &[2, 8], Float, |xs| xs.sum(None));
        run_layer::<H>("sum over rows", &[2, 8], Float, |xs| {
            xs.sum_dim_intlist([1].as_slice(), false, None)
        });
    }

    /// Apex casts what leaves the GPU to FP32; in CUDA autocast's lists a move is no operation.
    pub fn moving_to_the_cpu_keeps_the_type<H: LowPrecision>() {
        run_layer::<H>("to_device", &[2, 8], TypeOfInput, |xs| xs.to_device(Device::Cpu));
    }

    /// Leaves of two types, and their gradients.
    fn run_binary<H: LowPrecision>(name: &str, operation: impl Fn(&Tensor, &Tensor) -> Tensor) {
        let kinds = [Kind::Float, H::KIND];
        for [left, right] in kinds.into_iter().flat_map(|left| kinds.map(|right| [left, right])) {
            let a = ramp(&[2, 8], left).set_requires_grad(true);
            let b = ramp(&[2, 8], right).set_requires_grad(true);
            let result = o1::<H>().run(|()| operation(&a, &b));
            let widest = if left == right { left } else { Kind::Float };
            assert_eq!(result.kind(), widest, "{name} of {left:?} and {right:?}");
            result.to_kind(Kind::Float).sum(Kind::Float).backward();
            assert_eq!((a.grad().kind(), b.grad().kind()), (left, right), "gradients of {name}");
        }
    }

    pub fn atan2_and_mul_run_in_the_widest_type<H: LowPrecision>() {
        run_binary::<H>("atan2", |a, b| a.atan2(b));
        run_binary::<H>("*", |a, b| a * b);
        run_binary::<H>("mul", Tensor::g_mul);
    }

    pub fn cat_runs_in_the_widest_type<H: LowPrecision>() {
        for last in [Kind::Float, H::KIND] {
            let mut parts: Vec<_> = (0..5).map(|_| ramp(&[2, 8], H::KIND)).collect();
            parts.push(ramp(&[2, 8], last));
            let leaves: Vec<_> = parts.iter().map(|part| part.set_requires_grad(true)).collect();
            let whole = o1::<H>().run(|()| Tensor::cat(&leaves, 0));
            assert_eq!(whole.kind(), last);
            whole.to_kind(Kind::Float).sum(Kind::Float).backward();
            for leaf in &leaves {
                assert_eq!(leaf.grad().kind(), leaf.kind());
            }
        }
    }

    /// Apex refuses it for 16-bit tensors; CUDA autocast leaves operations in place alone.
    pub fn in_place_exp_keeps_its_type<H: LowPrecision>() {
        for kind in [Kind::Float, H::KIND] {
            let leaf = ramp(&[2, 8], kind).set_requires_grad(true);
            let changed = o1::<H>().run(|()| (&leaf * 1.0).exp_());
            assert_eq!(changed.kind(), kind);
            changed.to_kind(Kind::Float).sum(Kind::Float).backward();
            assert_eq!(leaf.grad().kind(), kind);
        }
    }

    pub fn in_place_add_keeps_its_type<H: LowPrecision>() {
        run_in_place::<H>("add_", |mut a, b| a.g_add_(b));
        run_in_place::<H>("+=", |mut a, b| {
            a += b;
            a
        });
        run_in_place::<H>("mul_", |mut a, b| a.g_mul_(b));
    }

    fn run_in_place<H: LowPrecision>(name: &str, operation: impl Fn(Tensor, &Tensor) -> Tensor) {
        let kinds = [Kind::Float, H::KIND];
        for [left, right] in kinds.into_iter().flat_map(|left| kinds.map(|right| [left, right])) {
            let a = ramp(&[2, 8], left).set_requires_grad(true);
            let b = ramp(&[2, 8], right).set_requires_grad(true);
            let changed = o1::<H>().run(|()| operation(&a * 1.0, &b));
            assert_eq!(changed.kind(), left, "{name} of {left:?} and {right:?}");
            changed.to_kind(Kind::Float).sum(Kind::Float).backward();
            assert_eq!((a.grad().kind(), b.grad().kind()), (left, right), "gradients of {name}");
        }
    }
}
