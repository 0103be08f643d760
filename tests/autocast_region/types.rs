//! Doubles, integers, and tensors of different types.

use tch::{
    Device, Kind, Tensor,
    nn::{self, Module},
};

use crate::{FLOAT, enter_bf16};

#[test]
fn doubles_are_not_cast() {
    let _region = enter_bf16();
    let xs = Tensor::full([3, 3], 0.1, (Kind::Double, Device::Cpu));
    let results =
        [xs.mm(&xs), xs.exp(), xs.softmax(1, None), xs.sum(None), xs.norm(), xs.mv(&xs.get(0))];
    for result in results {
        assert_eq!(result.kind(), Kind::Double);
    }
    assert_eq!(
        xs.sum(None).double_value(&[]),
        xs.flatten(0, -1).cumsum(0, None).double_value(&[8])
    );
}

#[test]
fn integers_are_not_cast() {
    let _region = enter_bf16();
    let xs = Tensor::from_slice(&[100_001i64, 2]);
    assert_eq!(xs.sum(None).int64_value(&[]), 100_003);
    assert_eq!(xs.dot(&xs).int64_value(&[]), 100_001 * 100_001 + 4);
    assert_eq!(xs.cumprod(0, None).int64_value(&[1]), 200_002);
    assert_eq!(xs.pow_tensor_scalar(2).int64_value(&[0]), 100_001 * 100_001);
}

/// NVIDIA/apex#505: metrics computed in double precision inside a region.
#[test]
fn double_precision_metrics_are_exact() {
    let _region = enter_bf16();
    let confusion = Tensor::ones([3, 3], (Kind::Double, Device::Cpu));
    let (rows, columns) = (
        confusion.sum_dim_intlist([1].as_slice(), false, None),
        confusion.sum_dim_intlist([0].as_slice(), false, None),
    );
    let hits = confusion.diag(0);
    let iou = &hits / (rows + columns - &hits);
    assert_eq!(iou.kind(), Kind::Double);
    assert_eq!(Vec::<f64>::try_from(iou).unwrap(), [0.2, 0.2, 0.2]);
}

/// pytorch/pytorch#51730: embeddings are FP32 where matrix products are 16-bit.
#[test]
fn embeddings_and_matrix_products_go_together() {
    let store = nn::VarStore::new(Device::Cpu);
    let embedding = nn::embedding(store.root() / "e", 10, 4, Default::default());
    let linear = nn::linear(store.root() / "l", 4, 4, Default::default());
    let _region = enter_bf16();
    let ids = Tensor::from_slice(&[3i64, 1]);
    let full = embedding.forward(&ids);
    let low = linear.forward(&full);
    assert_eq!((full.kind(), low.kind()), (Kind::Float, Kind::BFloat16));
    assert_eq!(Tensor::cat(&[&full, &low], 0).kind(), Kind::Float);
    let index = ids.unsqueeze(1).expand([2, 4], false);
    let zeros = Tensor::zeros([5, 4], FLOAT);
    assert_eq!(zeros.scatter_add(0, &index, &low).kind(), Kind::Float);
    assert_eq!(zeros.index_put(&[Some(&ids)], &low, false).kind(), Kind::Float);
    let low_zeros = zeros.to_kind(Kind::BFloat16);
    assert_eq!(low_zeros.index_put(&[Some(&ids)], &full, false).kind(), Kind::Float);
}

#[test]
fn assignment_to_indices_casts_to_the_type_of_the_destination() {
    let _region = enter_bf16();
    let ids = Tensor::from_slice(&[3i64, 1]);
    let full = Tensor::full([2], 1.0 + 2f64.powi(-9), FLOAT);
    let low = full.to_kind(Kind::BFloat16);
    let mut into_full = Tensor::zeros([5], FLOAT);
    let _ = into_full.index_put_(&[Some(&ids)], &low, false);
    assert_eq!(Vec::<f32>::try_from(&into_full).unwrap(), [0.0, 1.0, 0.0, 1.0, 0.0]);
    let mut into_low = Tensor::zeros([5], (Kind::BFloat16, Device::Cpu));
    let _ = into_low.index_put_(&[Some(&ids)], &full, false);
    assert_eq!(into_low.kind(), Kind::BFloat16);
    assert_eq!(into_low.sum(None).double_value(&[]), 2.0);
}

/// Apex refuses `x.exp_()` of half; libtorch has no cast for what is written in place.
#[test]
fn in_place_operations_of_the_fp32_list_run_in_their_own_type() {
    let _region = enter_bf16();
    let mut xs = Tensor::ones([1], (Kind::BFloat16, Device::Cpu));
    let _ = xs.exp_();
    // e to 8 bits
    assert_eq!((xs.kind(), xs.double_value(&[0])), (Kind::BFloat16, 2.71875));
}
