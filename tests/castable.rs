//! Values with many tensors are cast at a model's edges, at every level.

mod common;

use std::{
    collections::{BTreeMap, HashMap},
    hash::BuildHasherDefault,
    panic::{self, AssertUnwindSafe},
};

use common::{Net, Weights, batches, bits, mse, snapshot, weights};
use half::{bf16, f16};
use tch::{
    Device, Kind, Tensor,
    nn::{LSTMState, ModuleT},
};
use tch_amp::{
    Amp, AmpModel, KeepFp32, O0, O1, O2, O3, OptLevel, Static, StepOutcome, castable, optim::Sgd,
};

const FLOATS: [Kind; 4] = [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16];
const OTHERS: [Kind; 5] = [Kind::Int64, Kind::Int, Kind::Uint8, Kind::Bool, Kind::ComplexFloat];

fn ones(kind: Kind) -> Tensor {
    Tensor::ones([2, 2], (kind, Device::Cpu))
}

fn model<L: OptLevel>() -> AmpModel<L, Weights> {
    Amp::<L>::builder().build_model(weights(&[1.0])).unwrap()
}

/// The type that an input of type `kind` has inside a model of level `L`: O1 casts no inputs.
fn inside<L: OptLevel>(kind: Kind) -> Kind {
    match L::DEFAULTS.opt_level.to_string().as_bytes()[1] {
        b'0' => Kind::Float,
        b'1' => kind,
        _ => L::LOW_PRECISION.unwrap(),
    }
}

/// One test for each level.
macro_rules! at_each_level {
    ($($name:ident)*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn at_o0() { super::$name::<O0>(); }
            #[test]
            fn at_o1_f16() { super::$name::<O1<f16>>(); }
            #[test]
            fn at_o1_bf16() { super::$name::<O1<bf16>>(); }
            #[test]
            fn at_o2_f16() { super::$name::<O2<f16>>(); }
            #[test]
            fn at_o2_bf16() { super::$name::<O2<bf16>>(); }
            #[test]
            fn at_o3_f16() { super::$name::<O3<f16>>(); }
            #[test]
            fn at_o3_bf16() { super::$name::<O3<bf16>>(); }
        }
    )* };
}

at_each_level! {
    floating_tensors_have_the_levels_type_inside_and_fp32_outside
    other_tensors_are_passed_through
    marked_arguments_stay_in_fp32
    structs_and_nested_maps_keep_their_shape
    a_struct_of_tensors_trains
}

fn floating_tensors_have_the_levels_type_inside_and_fp32_outside<L: OptLevel>() {
    let outputs = model::<L>().forward_with(FLOATS.map(ones), |_, xs| {
        let kinds = xs.each_ref().map(Tensor::kind);
        assert_eq!(kinds, FLOATS.map(inside::<L>));
        xs
    });
    for output in outputs {
        assert_eq!(output.kind(), Kind::Float);
        assert_eq!(output.sum(None).double_value(&[]), 4.0);
    }
}

fn other_tensors_are_passed_through<L: OptLevel>() {
    let inputs = OTHERS.map(ones);
    let outputs = model::<L>().forward_with(&inputs, |_, xs| {
        assert_eq!(xs.each_ref().map(Tensor::kind), OTHERS);
        xs
    });
    let addresses = |tensors: &[Tensor]| tensors.iter().map(Tensor::data_ptr).collect::<Vec<_>>();
    assert_eq!(outputs.each_ref().map(Tensor::kind), OTHERS);
    assert_eq!(addresses(&outputs), addresses(&inputs));
}

fn marked_arguments_stay_in_fp32<L: OptLevel>() {
    let inputs = (KeepFp32(FLOATS.map(ones)), KeepFp32(vec![ones(Kind::Int64)]));
    let kinds = model::<L>().forward_with(&inputs, |_, (floats, ints)| {
        let tensors = floats.0.iter().chain(&ints.0);
        tensors.map(Tensor::kind).collect::<Vec<_>>()
    });
    assert_eq!(kinds, [Kind::Float, Kind::Double, Kind::Float, Kind::Float, Kind::Int64]);
}

#[derive(Debug)]
struct Batch {
    images: Tensor,
    labels: Tensor,
    boxes: KeepFp32<Tensor>,
    state: Option<LSTMState>,
    mask: Option<Tensor>,
    crops: Vec<Tensor>,
    extra:
        BTreeMap<String, HashMap<i64, [Tensor; 2], BuildHasherDefault<std::hash::DefaultHasher>>>,
    files: Vec<String>,
}
castable!(Batch { images, labels, boxes, state, mask, crops, extra, files });

fn structs_and_nested_maps_keep_their_shape<L: OptLevel>() {
    let xs = || ones(Kind::Float);
    let batch = Batch {
        images: xs(),
        labels: ones(Kind::Int64),
        boxes: KeepFp32(xs()),
        state: Some(LSTMState((xs(), xs()))),
        mask: None,
        crops: vec![],
        extra: BTreeMap::from([
            ("a".to_owned(), HashMap::from_iter([(7, [ones(Kind::Int64), xs()])])),
            ("b".to_owned(), HashMap::default()),
        ]),
        files: vec!["0.png".to_owned()],
    };
    let low = inside::<L>(Kind::Float);
    let assert_shape = |batch: &Batch, float: Kind| {
        assert_eq!(batch.images.kind(), float);
        assert_eq!(batch.labels.kind(), Kind::Int64);
        assert_eq!(batch.boxes.0.kind(), Kind::Float);
        let state = batch.state.as_ref().unwrap();
        assert_eq!((state.h().kind(), state.c().kind()), (float, float));
        assert!(batch.mask.is_none() && batch.crops.is_empty());
        assert_eq!(batch.extra.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(batch.extra["a"][&7].each_ref().map(Tensor::kind), [Kind::Int64, float]);
        assert!(batch.extra["b"].is_empty());
        assert_eq!(batch.files, ["0.png"]);
    };
    let output = model::<L>().forward_with(&batch, |_, batch| {
        assert_shape(&batch, low);
        batch
    });
    assert_shape(&output, Kind::Float);
}

struct Sample(Tensor, Tensor);
castable!(Sample(inputs, targets));

fn a_struct_of_tensors_trains<L: OptLevel>() {
    let builder = Amp::<L>::builder().loss_scale(Static::new(16.0));
    let (model, mut opt) = builder.build(Net::seeded(3), Sgd::new(0.05)).unwrap();
    let samples = batches(8).into_iter().map(|(xs, ys)| Sample(xs, ys));
    let mut losses = Vec::new();
    for Sample(xs, ys) in samples.collect::<Vec<_>>().iter().cycle().take(16) {
        let sample = Sample(xs.shallow_clone(), ys.shallow_clone());
        let Sample(outputs, targets) = model.forward_with(&sample, |net, Sample(xs, ys)| {
            assert_eq!(ys.kind(), inside::<L>(Kind::Float));
            Sample(net.forward_t(&xs, true), ys)
        });
        let loss = mse(&outputs, &targets);
        assert_eq!(loss.kind(), Kind::Float);
        assert!(matches!(opt.backward_step(&loss).unwrap().outcome(), StepOutcome::Applied));
        losses.push(loss.double_value(&[]));
    }
    assert!(losses[8..].iter().sum::<f64>() < losses[..8].iter().sum(), "{losses:?}");
}

#[test]
fn values_without_tensors_are_cloned() {
    let kinds = (1, 2u8, 0.5f32, true, 'x', (), Kind::Int64, Device::Cpu);
    let text = ("a", "b".to_owned(), bf16::ONE, f16::ONE, [3usize; 2]);
    let model = model::<O3<bf16>>();
    assert_eq!(model.forward_with(kinds, |_, values| values), kinds);
    let (a, b, one, half_one, numbers) = model.forward_with(text.clone(), |_, values| values);
    assert_eq!((a.as_str(), b, one, half_one, numbers), text);
}

#[test]
fn slices_become_vectors_and_references_become_values() {
    let xs = [ones(Kind::Float), ones(Kind::Float)];
    let pairs = [(1, &xs[0]), (2, &xs[1])];
    let cast: Vec<(i32, Tensor)> = model::<O3<bf16>>().cast_input(pairs.as_slice());
    assert_eq!(cast[1].0, 2);
    assert_eq!(cast[1].1.kind(), Kind::BFloat16);
}

#[test]
fn a_tensor_that_has_its_type_is_not_copied() {
    let xs = ones(Kind::BFloat16);
    model::<O2<bf16>>().forward_with(&xs, |_, inside| assert_eq!(inside.data_ptr(), xs.data_ptr()));
}

#[test]
fn outputs_have_the_type_that_is_asked_for() {
    let builder = Amp::<O2<f16>>::builder().cast_model_outputs::<bf16>();
    let model = builder.build_model(weights(&[1.0])).unwrap();
    let outputs = model.forward_with(ones(Kind::Float), |_, xs| (xs.copy(), KeepFp32(xs)));
    assert_eq!((outputs.0.kind(), outputs.1.0.kind()), (Kind::BFloat16, Kind::Float));
}

#[test]
fn a_model_that_is_not_enabled_casts_nothing() {
    let model = Amp::<O3<f16>>::builder().enabled(false).build_model(weights(&[1.0])).unwrap();
    let outputs = model.forward_with(FLOATS.map(ones), |_, xs| xs);
    assert_eq!(outputs.each_ref().map(Tensor::kind), FLOATS);
}

#[test]
fn the_pass_equals_that_of_a_module() {
    let (xs, _) = &batches(1)[0];
    let model = Amp::<O2<bf16>>::builder().build_model(Net::seeded(3)).unwrap();
    let expected = model.forward_t(xs, false);
    assert_eq!(bits(&model.forward_with(xs, |net, xs| net.forward_t(&xs, false))), bits(&expected));
}

#[test]
fn gradients_pass_through_the_casts() {
    let xs = ones(Kind::Float).set_requires_grad(true);
    let ys = model::<O3<bf16>>().forward_with(&xs, |_, xs| xs * 3.0);
    ys.sum(None).backward();
    assert_eq!(xs.grad().kind(), Kind::Float);
    assert_eq!(xs.grad().sum(None).double_value(&[]), 12.0);
}

/// The type in which a matrix product of FP32 matrices runs on this thread.
fn product_kind() -> Kind {
    ones(Kind::Float).mm(&ones(Kind::Float)).kind()
}

#[test]
fn the_pass_is_in_the_region_of_o1() {
    let model = model::<O1<bf16>>();
    model.forward_with((), |_, ()| assert_eq!(product_kind(), Kind::BFloat16));
    assert_eq!(product_kind(), Kind::Float);
}

#[test]
fn a_panic_in_the_pass_ends_the_region() {
    let model = model::<O1<bf16>>();
    let pass = || model.forward_with((), |_, ()| -> () { panic!("in the forward pass") });
    assert!(panic::catch_unwind(AssertUnwindSafe(pass)).is_err());
    assert_eq!(product_kind(), Kind::Float);
}

#[test]
fn a_pass_without_gradients_makes_no_graph() {
    let model = Amp::<O2<bf16>>::builder().build_model(Net::seeded(3)).unwrap();
    let (xs, _) = &batches(1)[0];
    let forward = || model.forward_with(xs, |net, xs| net.forward_t(&xs, false));
    assert!(forward().requires_grad());
    let ys = tch::no_grad(forward);
    assert_eq!(ys.kind(), Kind::Float);
    assert!(!ys.requires_grad());
}

#[test]
fn a_skipped_step_restores_running_statistics() {
    let builder = Amp::<O2<bf16>>::builder();
    let (model, mut opt) = builder.build(Net::seeded(3), Sgd::new(0.05)).unwrap();
    let before = snapshot(model.variables());
    let (xs, ys) = &batches(1)[0];
    let outputs = model.forward_with(xs, |net, xs| net.forward_t(&xs, true));
    assert_ne!(snapshot(model.variables()), before);
    let outcome = opt.backward_step(&(mse(&outputs, ys) * f64::INFINITY)).unwrap().outcome();
    assert!(matches!(outcome, StepOutcome::Skipped { .. }));
    assert_eq!(snapshot(model.variables()), before);
}
