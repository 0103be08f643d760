//! What a step computes, element by element, against plain arithmetic: on the first GPU if
//! `TCH_AMP_TEST_DEVICE` is `cuda`, else on the CPU, with the kernels of `TCH_AMP_CUDA_DRIVER` if set.

mod common;

use std::time::Instant;

use common::{device, noise, values};
use tch::{
    Cuda, Device, Kind, Tensor,
    nn::{Module, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, LowPrecision, O2, Static, StepOutcome, bf16, f16,
    optim::{AdamW, Sgd},
};

/// The sum of all products of inputs and weights: a weight's gradient is its inputs.
#[derive(Debug)]
struct Products(Vec<Tensor>);

impl Products {
    fn of(&self, inputs: &[Tensor]) -> Tensor {
        let product = |(w, xs): (&Tensor, &Tensor)| (w * xs.to_kind(w.kind())).sum(Kind::Float);
        self.0.iter().zip(inputs).map(product).sum()
    }
}

impl Module for Products {
    fn forward(&self, xs: &Tensor) -> Tensor {
        self.of(std::slice::from_ref(xs))
    }
}

type Trained<H> = (AmpModel<O2<H>, Products>, AmpOptimizer<O2<H>, Sgd>);

/// Weights of these values, trained with loss scale 1.
fn trained<H: LowPrecision>(weights: &[Vec<f32>], optimizer: Sgd) -> Trained<H> {
    let store = VarStore::new(device());
    let weight = |(n, values): (usize, &Vec<f32>)| {
        store.root().var_copy(&n.to_string(), &Tensor::from_slice(values))
    };
    let products = Products(weights.iter().enumerate().map(weight).collect());
    let builder = Amp::<O2<H>>::builder().loss_scale(Static::new(1.0));
    builder.build((store, products), optimizer).unwrap()
}

fn on_device(values: &[f32]) -> Tensor {
    Tensor::from_slice(values).to_device(device())
}

/// Equal to the last bit, or both NaN.
fn same(actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len());
    for (n, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let nan = actual.is_nan() && expected.is_nan();
        assert!(nan || actual.to_bits() == expected.to_bits(), "{n}: {actual:e}, not {expected:e}");
    }
}

/// Every number in 16 bits.
fn every(widen: fn(u16) -> f32) -> Vec<f32> {
    (0..=u16::MAX).map(widen).collect()
}

/// The gradients of a step whose inputs are these.
fn gradients<H: LowPrecision>(inputs: &[f32]) -> Vec<f32> {
    let (model, mut opt) = trained::<H>(&[vec![1.0; inputs.len()]], Sgd::new(0.1));
    let mut step = opt.begin();
    step.backward(&model.inner().of(&[on_device(inputs)])).unwrap();
    let mut step = step.unscale().unwrap();
    values(step.grads().unwrap()[0].1)
}

#[test]
fn every_gradient_in_16_bits_is_widened_exactly() {
    let all = every(|bits| f16::from_bits(bits).to_f32());
    same(&gradients::<f16>(&all), &all);
    let all = every(|bits| bf16::from_bits(bits).to_f32());
    same(&gradients::<bf16>(&all), &all);
}

/// The middles between neighbours in 16 bits, and what lies next to them in FP32.
fn roundings(numbers: &[f32]) -> Vec<f32> {
    let middle = |pair: &[f32]| 0.5 * pair[0] + 0.5 * pair[1];
    // From 65,520 on, f16 is infinite.
    let middles = numbers.windows(2).map(middle).chain([65_520.0, -65_520.0]);
    let near = middles.flat_map(|x| [x.next_down(), x, x.next_up()]);
    // Twice of each has to be a number.
    near.filter(|x| (2.0 * x).is_finite()).collect()
}

/// The 16-bit weights of a step that gives masters these values: from twice of each, weight decay
/// takes away half.
fn rounded<H: LowPrecision>(masters: &[f32]) -> Vec<f32> {
    let twice = masters.iter().map(|x| 2.0 * x).collect();
    let (model, mut opt) = trained::<H>(&[twice], Sgd::new(0.5).weight_decay(1.0));
    let mut step = opt.begin();
    step.backward(&model.inner().of(&[on_device(&vec![0.0; masters.len()])])).unwrap();
    assert!(step.unscale().unwrap().step().unwrap().is_applied());
    same(&values(opt.master_params().next().unwrap().1), masters);
    values(&model.inner().0[0])
}

#[test]
fn weights_are_rounded_to_nearest_even() {
    let masters = roundings(&every(|bits| f16::from_bits(bits).to_f32()));
    let expected: Vec<_> = masters.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
    same(&rounded::<f16>(&masters), &expected);
    let masters = roundings(&every(|bits| bf16::from_bits(bits).to_f32()));
    let expected: Vec<_> = masters.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
    same(&rounded::<bf16>(&masters), &expected);
}

/// Sizes that depend on `seed` only, one of them 0.
fn sizes(seed: u64, tensors: i64) -> Vec<usize> {
    let mut sizes: Vec<_> =
        values(&noise(seed, &[tensors])).iter().map(|x| (x.abs() * 9000.0) as usize).collect();
    sizes[1] = 0;
    sizes
}

fn inputs<H: LowPrecision>(seed: u64, sizes: &[usize]) -> Vec<Vec<f32>> {
    let input = |(n, &size): (usize, &usize)| {
        values(&noise(seed + n as u64, &[size as i64]).to_kind(H::KIND))
    };
    sizes.iter().enumerate().map(input).collect()
}

fn sums_and_norms<H: LowPrecision>() {
    let sizes = sizes(20, 30);
    let (first, second) = (inputs::<H>(30, &sizes), inputs::<H>(70, &sizes));
    let weights: Vec<_> = sizes.iter().map(|&size| vec![0.0; size]).collect();
    let (model, mut opt) = trained::<H>(&weights, Sgd::new(0.5));
    let mut step = opt.begin();
    for inputs in [&first, &second] {
        let inputs: Vec<_> = inputs.iter().map(|values| on_device(values)).collect();
        step.backward(&model.inner().of(&inputs)).unwrap();
    }
    let mut step = step.unscale().unwrap();
    let sums: Vec<Vec<f32>> = first
        .iter()
        .zip(&second)
        .map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect())
        .collect();
    let norm = sums.iter().flatten().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let found = step.grad_norm().unwrap().value();
    assert!((found - norm).abs() <= 1e-6 * norm, "{found}, not {norm}");
    assert!(step.step().unwrap().is_applied());
    for ((_, master), sum) in opt.master_params().zip(&sums) {
        same(&values(master), &sum.iter().map(|x| 0.0 - 0.5 * x).collect::<Vec<_>>());
    }
}

#[test]
fn gradients_add_up_in_fp32_to_the_norm_and_the_step() {
    sums_and_norms::<f16>();
    sums_and_norms::<bf16>();
}

#[test]
fn one_element_that_is_not_finite_is_found_in_any_tensor() {
    let sizes = sizes(21, 12);
    let weights: Vec<_> = sizes.iter().map(|&size| vec![1.0; size]).collect();
    let (model, mut opt) = trained::<bf16>(&weights, Sgd::new(0.1));
    for (n, &size) in sizes.iter().enumerate().filter(|&(_, &size)| size > 0) {
        let mut inputs = inputs::<bf16>(22, &sizes);
        let (kind, value) = [("Inf", f32::INFINITY), ("NaN", f32::NAN)][n % 2];
        inputs[n][(n * 7919) % size] = value;
        let inputs: Vec<_> = inputs.iter().map(|values| on_device(values)).collect();
        match opt.backward_step(&model.inner().of(&inputs)).unwrap().outcome() {
            StepOutcome::Skipped { overflows } => {
                let found = overflows[0].to_string();
                assert!(found.contains(kind) && found.contains(&format!("`{n}`")), "{found}");
            }
            outcome => panic!("{kind} in {n}: {outcome:?}"),
        }
        same(&values(opt.master_params().next().unwrap().1), &weights[0]);
    }
}

/// A GPU is given work for long; a step that waits for nothing returns before it is done.
#[test]
fn a_step_with_a_dynamic_scale_does_not_wait_for_the_gpu() {
    let Device::Cuda(index) = device() else {
        println!("\nskipped: there is no GPU to wait for");
        return;
    };
    let wait = || Cuda::synchronize(index as i64);
    let store = VarStore::new(device());
    let weight = store.root().var_copy("w", &noise(40, &[10_000]));
    let products = Products(vec![weight]);
    let (model, mut opt) =
        Amp::<O2<f16>>::builder().build((store, products), AdamW::new(1e-3)).unwrap();
    let xs = [noise(41, &[10_000]).to_device(device())];
    let mut step = || {
        let start = Instant::now();
        let outcome = opt.backward_step(&model.inner().of(&xs)).unwrap();
        (start.elapsed(), outcome)
    };
    for _ in 0..3 {
        step();
    }
    wait();
    let matrix = Tensor::ones([8192, 8192], (Kind::Float, device()));
    let work = || (0..40).for_each(|_| drop(matrix.mm(&matrix)));
    work();
    wait();
    let start = Instant::now();
    work();
    let (step, _outcome) = step();
    wait();
    let all = start.elapsed();
    assert!(2 * step < all, "the step returned after {step:?}, the GPU was done after {all:?}");
}
