//! torch's `TestAutocast`, as far as `autocast_ops` and `autocast_region` have no stronger form.

use half::{bf16, f16};
use tch::{Device, Kind, Tensor};
use tch_amp::{LowPrecision, autocast};

use crate::common::{bits, noise};

fn both<H: LowPrecision>(name: &str, operation: impl Fn() -> Tensor) {
    let expected = operation();
    let _region = autocast::enter::<H>(Device::Cpu).unwrap();
    let actual = operation();
    assert_eq!(actual.kind(), expected.kind(), "{name}");
    assert_eq!(bits(&actual), bits(&expected), "{name}");
}

/// test_autocast_ignored_types, with values: no operation of any list casts doubles.
fn doubles_are_ignored<H: LowPrecision>() {
    let [a, b] = [1, 2].map(|seed| noise(seed, &[8, 8]).to_kind(Kind::Double) / 3.0 + 1.0);
    both::<H>("mm", || a.mm(&b));
    both::<H>("pow", || a.pow_tensor_scalar(2.0));
    both::<H>("sum", || a.sum(None));
    both::<H>("norm", || a.norm());
    both::<H>("softmax", || a.softmax(1, None));
    both::<H>("addcmul", || a.addcmul(&a, &b));
    both::<H>("cat", || Tensor::cat(&[&a, &b], 0));
    let low = Tensor::ones([8, 8], (H::KIND, Device::Cpu));
    let _region = autocast::enter::<H>(Device::Cpu).unwrap();
    assert!(a.f_mm(&low).is_err() && low.f_mm(&a).is_err());
    assert_eq!(a.mm(&a).kind(), Kind::Double);
}

fn integers_are_ignored<H: LowPrecision>() {
    let [a, b] = [100_001, 7].map(|first| {
        Tensor::arange_start(first, first + 64, (Kind::Int, Device::Cpu)).view([8, 8])
    });
    both::<H>("pow by a float", || a.pow_tensor_scalar(2.0));
    both::<H>("pow by an integer", || a.pow_tensor_scalar(2));
    both::<H>("sum", || a.sum(None));
    both::<H>("cumsum", || a.cumsum(1, None));
    both::<H>("mm", || b.mm(&b));
    both::<H>("cat", || Tensor::cat(&[&a, &b], 0));
}

#[test]
fn doubles_and_integers_are_ignored() {
    doubles_are_ignored::<f16>();
    doubles_are_ignored::<bf16>();
    integers_are_ignored::<f16>();
    integers_are_ignored::<bf16>();
}

/// test_autocast_checkpointing. tch has no checkpoints; by hand, a layer's input is kept, and its
/// operations run again in a region when gradients are wanted.
fn checkpointed<H: LowPrecision>() {
    let layers = [1, 2, 3].map(|seed| noise(seed, &[8, 8]).set_requires_grad(true));
    let layer = |xs: &Tensor, weight: &Tensor| {
        let _region = autocast::enter::<H>(Device::Cpu).unwrap();
        xs.linear(weight, None::<Tensor>)
    };
    let input = noise(4, &[8, 8]).to_kind(H::KIND);
    let gradients = |input: &Tensor| {
        let leaves = layers.iter().chain([input]);
        let gradients = leaves.map(|leaf| {
            let gradient = leaf.grad();
            assert_eq!(gradient.kind(), leaf.kind());
            let bits = bits(&gradient);
            leaf.shallow_clone().zero_grad();
            bits
        });
        gradients.collect::<Vec<_>>()
    };

    let leaf = input.copy().set_requires_grad(true);
    let output = layers.iter().fold(leaf.shallow_clone(), |xs, weight| layer(&xs, weight));
    assert_eq!(output.kind(), H::KIND);
    output.sum(None).backward();
    let expected = gradients(&leaf);

    let mut kept = vec![input.copy()];
    tch::no_grad(|| {
        layers.iter().for_each(|weight| kept.push(layer(&kept[kept.len() - 1], weight)))
    });
    assert_eq!(bits(&kept[3]), bits(&output));
    let leaves: Vec<_> = kept.iter().map(|xs| xs.copy().set_requires_grad(true)).collect();
    let mut gradient = output.ones_like();
    for (leaf, weight) in leaves.iter().zip(&layers).rev() {
        (layer(leaf, weight) * gradient).sum(None).backward();
        gradient = leaf.grad();
    }
    assert_eq!(gradients(&leaves[0]), expected);
}

#[test]
fn operations_that_run_again_give_the_same_gradients() {
    checkpointed::<f16>();
    checkpointed::<bf16>();
}

/// test_autocast_cache_leak, which watches the memory of one weight; kept casts of several would
/// pile up. libtorch 2.13 keeps them with gradients only.
#[cfg(target_os = "linux")]
#[test]
fn casts_do_not_pile_up() {
    const ELEMENTS: i64 = 20_000_000;
    const REPEATS: i64 = 6;
    /// In bytes.
    fn resident() -> i64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        1024 * line.trim().strip_suffix(" kB").unwrap().parse::<i64>().unwrap()
    }
    let xs = Tensor::ones([1, 1], (Kind::Float, Device::Cpu));
    let _outer = autocast::enter::<bf16>(Device::Cpu).unwrap();
    let product = |gradients: bool| {
        let _inner = autocast::enter::<bf16>(Device::Cpu).unwrap();
        let weight = Tensor::ones([1, ELEMENTS], (Kind::Float, Device::Cpu));
        let weight = weight.set_requires_grad(true);
        let result = match gradients {
            true => xs.mm(&weight),
            false => tch::no_grad(|| xs.mm(&weight)),
        };
        assert_eq!((result.kind(), result.requires_grad()), (Kind::BFloat16, gradients));
    };
    product(true);
    let before = resident();
    for n in 0..REPEATS {
        product(n % 2 == 0);
    }
    let casts = 2 * ELEMENTS * REPEATS;
    let grown = resident() - before;
    assert!(grown < casts / 4, "{grown} of {casts} bytes");
}
