//! Gradients of what was computed in a region.

use tch::{
    Device, Kind, Tensor,
    nn::{self, Module},
};

use crate::{FLOAT, enter_bf16, set, weight};

#[test]
fn gradients_of_fp32_weights_are_fp32() {
    let store = nn::VarStore::new(Device::Cpu);
    let linear = nn::linear(store.root(), 3, 2, Default::default());
    let loss = {
        let _region = enter_bf16();
        let ys = linear.forward(&Tensor::ones([4, 3], FLOAT));
        assert_eq!(ys.kind(), Kind::BFloat16);
        ys.softmax(1, None).square().sum(None)
    };
    loss.backward();
    assert_eq!(linear.ws.grad().kind(), Kind::Float);
    assert_eq!(linear.bs.unwrap().grad().kind(), Kind::Float);
}

#[test]
fn a_backward_pass_inside_the_region_gives_the_same_gradients() {
    let gradient = |inside: bool| {
        let w = (Tensor::arange(6, FLOAT).view([2, 3]) * 0.3).set_requires_grad(true);
        let region = enter_bf16();
        let ys = Tensor::arange(12, FLOAT).view([4, 3]).linear(&w, None::<Tensor>);
        let loss = ys.log_softmax(1, None).exp().pow_tensor_scalar(3.0).sum(None);
        let region = inside.then_some(region);
        loss.backward();
        drop(region);
        w.grad()
    };
    let (inside, outside) = (gradient(true), gradient(false));
    assert_eq!(inside.kind(), Kind::Float);
    assert_ne!(outside.abs().sum(None).double_value(&[]), 0.0);
    assert!(inside.allclose(&outside, 1e-2, 1e-5, false), "{inside} {outside}");
}

/// With casts kept, the sum would be made in BF16 and stop at 256.
#[test]
fn gradients_of_a_shared_weight_add_up_in_fp32() {
    let (xs, w) = (Tensor::ones([1, 1], FLOAT), weight(1.0));
    let uses: Vec<_> = {
        let _region = enter_bf16();
        (0..1000).map(|_| xs.mm(&w)).collect()
    };
    Tensor::stack(&uses, 0).sum(Kind::Float).backward();
    assert_eq!(w.grad().double_value(&[0, 0]), 1000.0);
}

#[test]
fn a_forward_pass_without_gradients_does_not_take_them_from_the_next() {
    let (xs, w) = (Tensor::full([1, 1], 3.0, FLOAT), weight(1.0));
    let _region = enter_bf16();
    let evaluated = tch::no_grad(|| xs.mm(&w));
    assert!(!evaluated.requires_grad());
    xs.mm(&w).sum(None).backward();
    assert_eq!(w.grad().double_value(&[0, 0]), 3.0);
}

#[test]
fn a_weight_changed_in_place_inside_a_region_is_used_with_its_new_value() {
    let (xs, w) = (Tensor::ones([1, 1], FLOAT), weight(1.0));
    let _region = enter_bf16();
    assert_eq!(xs.mm(&w).double_value(&[0, 0]), 1.0);
    set(&w, 2.0);
    assert_eq!(xs.mm(&w).double_value(&[0, 0]), 2.0);
}
