//! Checkpoints and weights from one level, or with some options, to another.

mod common;

use std::{collections::HashMap, path::Path};

use common::{Net, batches, bits, mse, relative_error, values};
use half::bf16;
use safetensors::{Dtype, SafeTensors};
use tch::{Kind, Tensor, nn::ModuleT};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, AnyLevel, Checkpoint, Dynamic, O2, O3, OptLevel, Rounding, Static,
    checkpoint::LoadError, config::DType, optim::Adam, with_level,
};
use tempfile::tempdir;
use typenum::U2;

type Run<L> = (AmpModel<L, Net>, AmpOptimizer<L, Adam>);

fn build<L: OptLevel>(seed: u64) -> Run<L> {
    let scale = Dynamic::new().init_scale(128.0);
    Amp::<L>::builder().loss_scale(scale).build(Net::seeded(seed), Adam::new(1e-3)).unwrap()
}

fn train<L: OptLevel>((model, opt): &mut Run<L>, steps: usize) {
    for (xs, ys) in batches(steps) {
        let loss = mse(&model.forward_t(&xs, true), &ys);
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    }
}

fn evaluate<L: OptLevel>((model, _): &Run<L>) -> Vec<f32> {
    values(&model.forward_t(&batches(1)[0].0, false))
}

fn kinds<L: OptLevel>((model, _): &Run<L>) -> HashMap<String, Kind> {
    model.variables().into_iter().map(|(name, tensor)| (name, tensor.kind())).collect()
}

/// What the optimizer updates.
fn masters<L: OptLevel>((_, opt): &Run<L>) -> HashMap<String, Tensor> {
    opt.master_params().map(|(name, tensor)| (name.to_owned(), tensor.copy())).collect()
}

fn save<L: OptLevel>((model, opt): &mut Run<L>, path: &Path) {
    Checkpoint::new(&*model, opt).save(path, &()).unwrap();
}

/// The names and types of the tensors in a file, and its bytes.
fn dtypes(path: &Path) -> HashMap<String, Dtype> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter().map(|(name, tensor)| (name.to_owned(), tensor.dtype())).collect()
}

fn from_one_to_another<A: OptLevel, B: OptLevel>() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut there = build::<A>(1);
    train(&mut there, 5);
    save(&mut there, &path);
    for (name, dtype) in dtypes(&path) {
        let bytes = name == "generator/cpu" || name.starts_with("tch-amp/");
        assert_eq!(dtype, if bytes { Dtype::U8 } else { Dtype::F32 }, "{name}");
    }

    let mut here = build::<B>(2);
    let (a, b) = (A::DEFAULTS.opt_level, B::DEFAULTS.opt_level);
    let kinds_before = kinds(&here);
    if a != b {
        let before = evaluate(&here);
        let error = Checkpoint::new(&here.0, &mut here.1).load::<()>(&path).unwrap_err();
        let expected = format!("was saved at level {a}, and is loaded at {b}");
        assert!(error.to_string().contains(&expected), "{error}");
        assert_eq!(evaluate(&here), before);
    }
    Checkpoint::new(&here.0, &mut here.1).across_levels().load::<()>(&path).unwrap();

    assert_eq!(kinds(&here), kinds_before, "{a} to {b}");
    let masters_there = masters(&there);
    for (name, master) in masters(&here) {
        // Rounded only where the target has no FP32 weight at all.
        let expected = masters_there[&name].to_kind(Kind::Float).to_kind(master.kind());
        assert_eq!(bits(&master), bits(&expected), "{a} to {b}: `{name}`");
    }
    let weights = here.0.variables();
    for (name, master) in masters(&here) {
        let expected = master.to_kind(weights[&name].kind());
        assert_eq!(bits(&weights[&name]), bits(&expected), "{a} to {b}: `{name}`");
    }
    let error = relative_error(&evaluate(&here), &evaluate(&there));
    assert!(error < 1e-2, "{a} to {b}: {error}");
    train(&mut here, 1);
    assert!(masters(&here).values().all(|m| m.isfinite().all().int64_value(&[]) == 1));
    save(&mut here, &path);
    assert_eq!(dtypes(&path)["optimizer/exp_avg_sq/first.weight"], Dtype::F32);
}

#[test]
fn a_checkpoint_of_any_level_loads_at_any_other_when_asked() {
    for there in AnyLevel::ALL {
        for here in AnyLevel::ALL {
            with_level!(there, A => with_level!(here, B => from_one_to_another::<A, B>()));
        }
    }
}

/// The moments and the number of updates come along: an optimizer without them would take another
/// first step.
#[test]
fn the_optimizers_state_comes_along_across_levels() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (mut there, mut here) = (build::<tch_amp::O0>(1), build::<tch_amp::O1<bf16>>(2));
    train(&mut there, 5);
    save(&mut there, &path);
    Checkpoint::new(&here.0, &mut here.1).across_levels().load::<()>(&path).unwrap();
    let again = folder.path().join("again.safetensors");
    save(&mut here, &again);
    let (bytes, bytes_again) = (std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap());
    let (file, file_again) = (
        SafeTensors::deserialize(&bytes).unwrap(),
        SafeTensors::deserialize(&bytes_again).unwrap(),
    );
    for state in ["exp_avg", "exp_avg_sq"] {
        let name = format!("optimizer/{state}/last.weight");
        assert_eq!(file.tensor(&name).unwrap().data(), file_again.tensor(&name).unwrap().data());
    }
    let steps = |bytes: &[u8]| {
        let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
        let text = &header.metadata().as_ref().unwrap()["tch-amp"];
        let described: serde_json::Value = serde_json::from_str(text).unwrap();
        described["optimizers"][0]["state"]["steps"]["last.weight"].clone()
    };
    assert_eq!((steps(&bytes), steps(&bytes_again)), (5.into(), 5.into()));
}

#[test]
fn other_options_are_an_error_that_names_each() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    save(&mut build::<O2<bf16>>(1), &path);
    let builder = || {
        let scale = Dynamic::new().init_scale(128.0);
        Amp::<O2<bf16>>::builder().loss_scale(scale)
    };
    let (model, mut opt) = builder()
        .keep_batchnorm_fp32(false)
        .keep_fp32(["last"])
        .cast_model_outputs::<bf16>()
        .build(Net::seeded(2), Adam::new(1e-3))
        .unwrap();
    let error = Checkpoint::new(&model, &mut opt).load::<()>(&path).unwrap_err();
    let LoadError::Options { options, .. } = &error else { panic!("{error}") };
    let names: Vec<_> = options.iter().map(|option| option.option.as_str()).collect();
    assert_eq!(names, ["cast_model_outputs", "keep_batchnorm_fp32", "keep_fp32"]);
    assert!(
        error.to_string().contains("`keep_batchnorm_fp32` is true in the file and false here"),
        "{error}"
    );
    Checkpoint::new(&model, &mut opt).across_levels().load::<()>(&path).unwrap();

    let (model, mut opt) =
        builder().master_weights(false).build(Net::seeded(2), Adam::new(1e-3)).unwrap();
    let error = Checkpoint::new(&model, &mut opt).load::<()>(&path).unwrap_err();
    assert!(error.to_string().contains("`master_weights` is true in the file"), "{error}");
}

/// The seed decides how weights are rounded.
#[test]
fn another_seed_for_rounding_is_another_option() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let build = |seed| {
        let builder = Amp::<O3<bf16>>::builder().rounding(Rounding::Stochastic { seed });
        builder.build(Net::seeded(1), Adam::new(1e-3)).unwrap()
    };
    save(&mut build(1), &path);
    let (model, mut opt) = build(2);
    let error = Checkpoint::new(&model, &mut opt).load::<()>(&path).unwrap_err();
    let expected = "`rounding` is stochastic, seed 1 in the file and stochastic, seed 2 here";
    assert!(error.to_string().contains(expected), "{error}");
}

/// A static scale and a dynamic one never take each other's value.
#[test]
fn a_scale_of_another_kind_is_an_error_or_stays_as_it_is() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let fixed = || {
        let builder = Amp::<O2<bf16>>::builder().loss_scale(Static::new(64.0));
        builder.build(Net::seeded(2), Adam::new(1e-3)).unwrap()
    };
    let runs = || (fixed(), build::<O2<bf16>>(1));
    let refused = |run: &mut Run<_>, saved, here| {
        let error = Checkpoint::new(&run.0, &mut run.1).load::<()>(&path).unwrap_err();
        assert!(matches!(error, LoadError::Scalers { .. }), "{error}");
        let expected = format!("`losses[0].scale` is {saved} in the saved state");
        assert!(error.to_string().contains(&expected), "{error}");
        assert_eq!(run.1.scalers()[0].scale(), here);
        Checkpoint::new(&run.0, &mut run.1).across_levels().load::<()>(&path).unwrap();
        assert_eq!(run.1.scalers()[0].scale(), here);
    };
    let (mut fixed, mut dynamic) = runs();
    save(&mut dynamic, &path);
    refused(&mut fixed, "dynamic", 64.0);
    let (mut fixed, mut dynamic) = runs();
    save(&mut fixed, &path);
    refused(&mut dynamic, "static", 128.0);
}

#[test]
fn another_number_of_losses_is_an_error_or_those_of_both_are_loaded() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut run = build::<O2<bf16>>(1);
    train(&mut run, 3);
    save(&mut run, &path);
    let scale = Dynamic::new().init_scale(128.0);
    let builder = Amp::<O2<bf16>>::builder().loss_scale(scale).num_losses::<U2>();
    let (model, mut opt) = builder.build(Net::seeded(2), Adam::new(1e-3)).unwrap();
    let error = Checkpoint::new(&model, &mut opt).load::<()>(&path).unwrap_err();
    assert!(error.to_string().contains("is for 1 loss(es)"), "{error}");
    Checkpoint::new(&model, &mut opt).across_levels().load::<()>(&path).unwrap();
    let unskipped: Vec<_> = opt.scalers().iter().map(|scaler| scaler.unskipped()).collect();
    assert_eq!(unskipped, [3, 0]);
}

/// Exports hold the masters, in any floating-point type; loading gives them the level's types.
#[test]
fn weights_go_from_any_level_to_any_other() {
    fn from_one_to_another<A: OptLevel, B: OptLevel>(dtype: DType) {
        let folder = tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let (mut there, mut here) = (build::<A>(1), build::<B>(2));
        train(&mut there, 2);
        Checkpoint::new(&there.0, &mut there.1).export_weights(&path, dtype).unwrap();
        let exported = dtypes(&path);
        assert_eq!(exported.len(), there.0.variables().len());
        assert!(
            exported.values().all(|saved| saved.to_string().to_lowercase() == dtype.to_string())
        );
        let kinds_before = kinds(&here);
        Checkpoint::new(&here.0, &mut here.1).load_weights(&path).unwrap();
        assert_eq!(kinds(&here), kinds_before);
        let masters_there = masters(&there);
        for (name, master) in masters(&here) {
            let exported = masters_there[&name].to_kind(dtype.kind());
            assert_eq!(bits(&master), bits(&exported.to_kind(master.kind())), "{name}");
        }
        let error = relative_error(&evaluate(&here), &evaluate(&there));
        assert!(error < 2e-2, "{error}");
    }
    for there in AnyLevel::ALL {
        for here in AnyLevel::ALL {
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                with_level!(there, A => with_level!(here, B => {
                    from_one_to_another::<A, B>(dtype);
                }));
            }
        }
    }
}
