//! libtorch's own CPU autocast stays what it is.

use std::thread;

use tch::{Kind, Tensor};

use crate::{FLOAT, enter_bf16, exp_kind, plain, product_kind, set, weight};

/// What libtorch 2.13 does on the CPU by itself.
fn assert_plain(low: Kind) {
    let xs = Tensor::ones([2, 2], FLOAT);
    let product = xs.mm(&xs);
    assert_eq!(product.kind(), low);
    assert_eq!(product.exp().kind(), low);
    assert_eq!(product.softmax(1, None).kind(), low);
    assert_eq!(product.sum(None).kind(), low);
    assert_eq!(product.norm().kind(), low);
    assert_eq!(xs.mv(&Tensor::ones([2], FLOAT)).kind(), Kind::Float);
    assert_eq!(Tensor::einsum("ij,jk->ik", &[&xs, &xs], None::<i64>).kind(), low);
    assert!(xs.f_index_put(&[Some(Tensor::from(0i64))], &product.get(0), false).is_err());
    assert!(xs.copy().f_index_put_(&[Some(Tensor::from(0i64))], &product.get(0), false).is_err());
}

#[test]
fn it_has_its_own_lists_outside_regions() {
    drop(enter_bf16());
    plain::enable(Kind::BFloat16);
    assert_plain(Kind::BFloat16);
    plain::disable();
}

#[test]
fn it_is_as_before_after_a_region_inside_it() {
    plain::enable(Kind::Half);
    let before = plain::state();
    let region = enter_bf16();
    assert_eq!(exp_kind(), Kind::Float);
    assert_eq!(product_kind(), Kind::BFloat16);
    drop(region);
    assert_eq!(plain::state(), before);
    assert_plain(Kind::Half);
    plain::disable();
}

#[test]
fn it_has_its_own_lists_while_another_thread_is_in_a_region() {
    let _region = enter_bf16();
    thread::spawn(|| {
        plain::enable(Kind::BFloat16);
        assert_plain(Kind::BFloat16);
    })
    .join()
    .unwrap();
}

#[test]
fn casts_that_it_keeps_do_not_outlive_the_region() {
    let (xs, w) = (Tensor::ones([1, 1], FLOAT), weight(1.0));
    for value in [1.0, 2.0] {
        set(&w, value);
        let _region = enter_bf16();
        plain::keep_casts();
        assert_eq!(xs.mm(&w).double_value(&[0, 0]), value);
    }
}
