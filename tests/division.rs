//! Which optimizer trains which model, and what `build` refuses.

use tch::{
    Device, Kind, Tensor,
    nn::{self, Module, OptimizerConfig, VarStore},
};
use tch_amp::{Amp, AmpModel, AmpOptimizer, BuildError, O0, O1, O2, OptLevel, bf16, optim::Sgd};

mod common;
use common::{Weights, values, weights};

/// `x ↦ x · head(body)`: two parts of one model.
#[derive(Debug)]
struct Parts {
    body: Tensor,
    head: Tensor,
}

impl Module for Parts {
    fn forward(&self, xs: &Tensor) -> Tensor {
        xs * &self.body * &self.head
    }
}

fn parts() -> (VarStore, Parts) {
    let store = VarStore::new(Device::Cpu);
    let root = store.root();
    let body = (&root / "body").ones("w", &[1]);
    let head = (&root / "head").ones("w", &[1]);
    (store, Parts { body, head })
}

fn names<L: OptLevel>(opt: &AmpOptimizer<L, Sgd>) -> Vec<&str> {
    opt.master_params().map(|(name, _)| name).collect()
}

/// One step with gradient 1 for each weight of the model.
fn train<L: OptLevel>(model: &AmpModel<L, Weights>, opt: &mut AmpOptimizer<L, Sgd>) -> f32 {
    let xs = Tensor::ones([1], (Kind::Float, Device::Cpu));
    let loss = model.forward(&xs).sum(Kind::Float);
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    values(&model.inner().0)[0]
}

fn sgd() -> Sgd {
    Sgd::new(0.25)
}

fn refused(built: Result<impl Sized, BuildError>) -> String {
    match built {
        Ok(_) => panic!("nothing was refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn tuples_come_back_as_tuples() {
    let ((a, b), (mut opt_a, mut opt_b)) = Amp::<O2<bf16>>::builder()
        .build((weights(&[1.0]), weights(&[2.0])), (sgd(), Sgd::new(0.5)))
        .unwrap();
    assert_eq!((train(&a, &mut opt_a), train(&b, &mut opt_b)), (0.75, 1.5));
    assert_eq!((names(&opt_a), names(&opt_b)), (vec!["0.w"], vec!["1.w"]));
}

#[test]
fn arrays_come_back_as_arrays() {
    let models = [1.0, 2.0, 3.0].map(|w| weights(&[w]));
    let (models, mut opts) =
        Amp::<O1<bf16>>::builder().build(models, [sgd(), sgd(), sgd()]).unwrap();
    let _: &[AmpModel<_, _>; 3] = &models;
    let trained = std::array::from_fn(|n| train(&models[n], &mut opts[n]));
    assert_eq!(trained, [0.75, 1.75, 2.75]);
}

#[test]
fn vecs_come_back_as_vecs() {
    let models = (1..=2).map(|w| weights(&[w as f32])).collect::<Vec<_>>();
    let (models, mut opts) = Amp::<O0>::builder().build(models, vec![sgd(), sgd()]).unwrap();
    assert_eq!(train(&models[1], &mut opts[1]), 1.75);
    assert_eq!(values(&models[0].inner().0), [1.0]);
}

#[test]
fn nested_models_count_as_one() {
    let models = ((weights(&[1.0]), weights(&[2.0])), weights(&[3.0]));
    let (((a, _b), c), (opt_ab, mut opt_c)) =
        Amp::<O2<bf16>>::builder().build(models, (sgd(), sgd())).unwrap();
    assert_eq!(names(&opt_ab), ["0.0.w", "0.1.w"]);
    assert_eq!(names(&opt_c), ["1.w"]);
    assert_eq!(train(&c, &mut opt_c), 2.75);
    assert_eq!(values(&a.inner().0), [1.0]);
}

#[test]
fn one_optimizer_trains_all_models() {
    let (models, mut opt) =
        Amp::<O2<bf16>>::builder().build([weights(&[1.0]), weights(&[2.0])], sgd()).unwrap();
    let xs = Tensor::ones([1], (Kind::Float, Device::Cpu));
    let loss = (models[0].forward(&xs) + models[1].forward(&xs)).sum(Kind::Float);
    assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    assert_eq!(models.map(|model| values(&model.inner().0)[0]), [0.75, 1.75]);
}

#[test]
fn two_optimizers_train_parts_of_one_model() {
    let optimizers = (sgd().only(["body"]), Sgd::new(0.5).only(["head"]));
    let (model, (mut body, mut head)) =
        Amp::<O2<bf16>>::builder().build(parts(), optimizers).unwrap();
    assert_eq!((names(&body), names(&head)), (vec!["body.w"], vec!["head.w"]));
    let xs = Tensor::ones([1], (Kind::Float, Device::Cpu));
    for (opt, expected) in [(&mut body, [0.75, 1.0]), (&mut head, [0.75, 0.625])] {
        let loss = model.forward(&xs).sum(Kind::Float);
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
        let Parts { body, head } = model.inner();
        assert_eq!([values(body)[0], values(head)[0]], expected);
    }
}

#[test]
fn no_optimizers_is_inference() {
    let (model, none) =
        Amp::<O2<bf16>>::builder().build(weights(&[1.0]), Vec::<Sgd>::new()).unwrap();
    assert!(none.is_empty());
    assert_eq!(model.inner().0.kind(), Kind::BFloat16);
    let (a, b) =
        Amp::<O2<bf16>>::builder().build_model((weights(&[1.0]), weights(&[2.0]))).unwrap();
    assert_eq!((a.inner().0.kind(), b.inner().0.kind()), (Kind::BFloat16, Kind::BFloat16));
}

#[test]
fn a_parameter_of_two_optimizers_is_refused_by_name() {
    let whole = Amp::<O2<bf16>>::builder().build(parts(), (sgd(), sgd()));
    let expected = "variable `body.w` is given to optimizers 0 and 1: divide the variables with \
                    `only([\"path\", …])`, or pass as many optimizers as models";
    assert_eq!(refused(whole), expected);
    let overlapping = (sgd().only(["body", "head.w"]), sgd().only(["head"]));
    let error = Amp::<O2<bf16>>::builder().build(parts(), overlapping).unwrap_err();
    let BuildError::GivenTwice { name, optimizers } = error else { panic!("{error}") };
    assert_eq!((name.as_str(), optimizers), ("head.w", [0, 1]));
}

#[test]
fn a_path_given_twice_to_one_optimizer_counts_once() {
    let twice = sgd().only(["body", "body.w", "head"]);
    let (_, opt) = Amp::<O2<bf16>>::builder().build(parts(), twice).unwrap();
    assert_eq!(names(&opt), ["body.w", "head.w"]);
}

#[test]
fn a_tensor_of_two_models_is_refused_by_both_names() {
    for together in [true, false] {
        let (first, second) = (weights(&[1.0]), VarStore::new(Device::Cpu));
        let _ = second.root().add("tied", first.1.0.shallow_clone(), true);
        let w = first.1.0.shallow_clone();
        let models = (first, (second, ()));
        let error = match together {
            true => refused(Amp::<O2<bf16>>::builder().build(models, sgd())),
            false => refused(Amp::<O2<bf16>>::builder().build(models, (sgd(), sgd()))),
        };
        let expected = "`1.tied` and `0.w` are the same tensor, in two VarStores: put both modules \
                        on one VarStore, where a tied variable counts once";
        assert_eq!(error, expected);
        assert_eq!(w.kind(), Kind::Float);
    }
}

#[test]
fn a_tied_variable_of_one_model_counts_once() {
    let (store, module) = weights(&[1.0]);
    let _ = store.root().add("tied", module.0.shallow_clone(), true);
    let (model, mut opt) = Amp::<O2<bf16>>::builder().build((store, module), sgd()).unwrap();
    assert_eq!(names(&opt).len(), 1);
    assert_eq!(train(&model, &mut opt), 0.75);
}

#[test]
fn a_variable_without_optimizer_is_refused_by_name() {
    let error = refused(Amp::<O2<bf16>>::builder().build(parts(), sgd().only(["body"])));
    let expected = "variable `head.w` is trainable and no optimizer has it: name its path in \
                    `only([…])`, or freeze it with `set_requires_grad(false)`";
    assert_eq!(error, expected);
}

#[test]
fn a_frozen_variable_needs_no_optimizer() {
    let (store, module) = parts();
    let _ = module.head.set_requires_grad(false);
    let (_, opt) = Amp::<O2<bf16>>::builder().build((store, module), sgd().only(["body"])).unwrap();
    assert_eq!(names(&opt), ["body.w"]);
}

#[test]
fn a_path_to_nowhere_is_refused() {
    let error = refused(Amp::<O2<bf16>>::builder().build(parts(), sgd().only(["boddy"])));
    assert_eq!(error, "`only`: there is no variable under `boddy`");
}

#[test]
fn numbers_that_differ_are_refused_by_the_first_variable() {
    let models = [weights(&[1.0]), weights(&[2.0]), weights(&[3.0])];
    let error = refused(Amp::<O2<bf16>>::builder().build(models, [sgd(), sgd()]));
    assert!(error.starts_with("variable `0.w` is given to optimizers 0 and 1"), "{error}");
}

#[test]
fn an_optimizer_without_variables_is_refused_by_its_position() {
    let models = (weights(&[1.0]), (VarStore::new(Device::Cpu), ()));
    let error = Amp::<O2<bf16>>::builder().build(models, (sgd(), sgd())).unwrap_err();
    assert!(matches!(error, BuildError::NoTrainableVariables { optimizer: 1 }), "{error}");
}

/// They go by the VarStore that they were built on, not by position.
#[test]
fn tch_optimizers_find_their_models() {
    let (a, b) = (weights(&[1.0]), weights(&[2.0]));
    let opt_a = nn::Sgd::default().build(&a.0, 0.25).unwrap();
    let opt_b = nn::Sgd::default().build(&b.0, 0.5).unwrap();
    let ((a, b), (mut opt_b, opt_a)) =
        Amp::<O2<bf16>>::builder().build((a, b), (opt_b, opt_a)).unwrap();
    let names = |opt: &AmpOptimizer<O2<bf16>>| {
        opt.master_params().map(|p| p.0.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((names(&opt_b), names(&opt_a)), (vec!["1.w".to_owned()], vec!["0.w".to_owned()]));
    let xs = Tensor::ones([1], (Kind::Float, Device::Cpu));
    let loss = (a.forward(&xs) + b.forward(&xs)).sum(Kind::Float);
    assert!(opt_b.backward_step(&loss).unwrap().outcome().is_applied());
    assert_eq!((values(&a.inner().0), values(&b.inner().0)), (vec![1.0], vec![1.5]));
}

#[test]
fn two_tch_optimizers_of_one_model_are_refused() {
    let (store, module) = weights(&[1.0]);
    let twice = [0.1, 0.2].map(|lr| nn::Sgd::default().build(&store, lr).unwrap());
    let error = Amp::<O2<bf16>>::builder().build((store, module), twice).unwrap_err();
    assert!(matches!(error, BuildError::GivenTwice { optimizers: [0, 1], .. }), "{error}");
}

#[test]
fn a_model_that_no_tch_optimizer_has_is_refused() {
    let (a, b) = (weights(&[1.0]), weights(&[2.0]));
    let opt = nn::Sgd::default().build(&a.0, 0.25).unwrap();
    let error = Amp::<O2<bf16>>::builder().build((a, b), opt).unwrap_err();
    let BuildError::WithoutOptimizer { name } = error else { panic!("{error}") };
    assert_eq!(name, "1.w");
}

/// tch's optimizers and the crate's can work side by side.
#[test]
fn kinds_of_optimizers_mix() {
    let (a, b) = (weights(&[1.0]), weights(&[2.0]));
    let foreign = nn::Sgd::default().build(&a.0, 0.25).unwrap();
    let ((_a, b), (_foreign, mut own)) =
        Amp::<O2<bf16>>::builder().build((a, b), (foreign, sgd())).unwrap();
    assert_eq!(train(&b, &mut own), 1.75);
}

#[test]
fn a_failed_build_changes_no_model() {
    let (first, mut second) = (weights(&[1.0]), weights(&[2.0]));
    second.0.half();
    let w = first.1.0.shallow_clone();
    let error = Amp::<O2<bf16>>::builder().build((first, second), sgd()).unwrap_err();
    let BuildError::NotFloat { name, kind } = error else { panic!("{error}") };
    assert_eq!((name.as_str(), kind, w.kind()), ("1.w", Kind::Half, Kind::Float));
}

#[test]
fn paths_in_fp32_name_the_model() {
    let builder = Amp::<O2<bf16>>::builder().keep_fp32(["1"]);
    let (a, b) = builder.build_model((weights(&[1.0]), weights(&[2.0]))).unwrap();
    assert_eq!((a.inner().0.kind(), b.inner().0.kind()), (Kind::BFloat16, Kind::Float));
}
