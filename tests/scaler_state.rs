//! The state of the scales in any format, and in Apex's and torch's layouts.

#[path = "scaler_state/apex.rs"]
mod apex;
mod common;
#[path = "scaler_state/torch.rs"]
mod torch;

use common::Weights;
use proptest::{collection::vec, prelude::*};
use tch::Kind;
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Dynamic, LossScale, O2, Scaler, Static, bf16,
    loss::LossCount,
    optim::Sgd,
    scaler::{SavedScalers, StateError},
};
use typenum::{U0, U1, U2, U3};

type Model = AmpModel<O2<bf16>, Weights>;
type Opt<N> = AmpOptimizer<O2<bf16>, Sgd, N>;

const SETTINGS: Dynamic = Dynamic::new()
    .init_scale(1024.0)
    .growth_factor(1.7)
    .backoff_factor(0.3)
    .growth_interval(3)
    .hysteresis(2)
    .min_loss_scale(0.5)
    .max_loss_scale(1e6);

fn build<N: LossCount>(scale: impl Into<LossScale>) -> (Model, Opt<N>) {
    let builder = Amp::<O2<bf16>>::builder().num_losses::<N>().loss_scale(scale.into());
    builder.build(common::weights(&[1.0]), Sgd::new(0.0)).unwrap()
}

/// One step with the first loss, and one with the second; each overflows or not.
fn steps((model, opt): &mut (Model, Opt<U2>), overflows: [bool; 2]) {
    let loss = |overflow| {
        let gradient = if overflow { f64::NAN } else { 1e-9 };
        (&model.inner().0 * gradient).sum(Kind::Float)
    };
    let mut step = opt.begin();
    step.backward_of::<U0>(&loss(overflows[0])).unwrap();
    let _ = step.unscale().unwrap().step().unwrap();
    let mut step = opt.begin();
    step.backward_of::<U1>(&loss(overflows[1])).unwrap();
    let _ = step.unscale().unwrap().step().unwrap();
}

/// Writes and reads in each format.
fn through_formats(saved: &SavedScalers) -> [SavedScalers; 3] {
    let json = serde_json::to_string(saved).unwrap();
    let toml = toml::to_string(saved).unwrap();
    let bytes = postcard::to_stdvec(saved).unwrap();
    [
        serde_json::from_str(&json).unwrap(),
        toml::from_str(&toml).unwrap(),
        postcard::from_bytes(&bytes).unwrap(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn scales_go_on_as_if_they_had_never_been_saved(
        before in vec(any::<[bool; 2]>(), 0..12),
        after in vec(any::<[bool; 2]>(), 0..12),
        consecutive in any::<bool>(),
    ) {
        let settings = if consecutive { SETTINGS.consecutive_hysteresis(2) } else { SETTINGS };
        let mut straight = build::<U2>(settings);
        before.iter().for_each(|overflows| steps(&mut straight, *overflows));
        let saved = straight.1.save_scalers().unwrap();
        after.iter().for_each(|overflows| steps(&mut straight, *overflows));
        for read in through_formats(&saved) {
            let mut resumed = build::<U2>(settings);
            resumed.1.load_scalers(&read).unwrap();
            after.iter().for_each(|overflows| steps(&mut resumed, *overflows));
            prop_assert_eq!(resumed.1.scalers(), straight.1.scalers());
        }
    }
}

/// After one overflow of the second loss: 1024, and 1024 with one of two overflows left.
fn saved_json() -> serde_json::Value {
    let mut built = build::<U2>(SETTINGS);
    steps(&mut built, [false, true]);
    serde_json::to_value(built.1.save_scalers().unwrap()).unwrap()
}

#[test]
fn layout_is_what_the_docs_say() {
    let settings = serde_json::json!({"dynamic": {
        "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 3,
        "hysteresis": 2, "consecutive_hysteresis": null,
        "min_loss_scale": 0.5, "max_loss_scale": 1e6,
    }});
    let expected = serde_json::json!({"version": 1, "losses": [
        {
            "scale": 1024.0, "unskipped": 1, "overflows_left": 2, "skipped": 0,
            "skipped_in_a_row": 0, "stuck_in_a_row": 0, "settings": settings,
        },
        {
            "scale": 1024.0, "unskipped": 0, "overflows_left": 1, "skipped": 1,
            "skipped_in_a_row": 1, "stuck_in_a_row": 0, "settings": settings,
        },
    ]});
    assert_eq!(saved_json(), expected);
    let (_, opt) = build::<U1>(Static::new(128.0));
    let saved = serde_json::to_value(opt.save_scalers().unwrap()).unwrap();
    assert_eq!(saved["losses"][0]["settings"], "static");
}

/// Loads a changed state; the scales must stay as they are.
fn refused(change: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut json = saved_json();
    change(&mut json);
    let saved: SavedScalers = serde_json::from_value(json).unwrap();
    let (_, mut opt) = build::<U2>(SETTINGS);
    let before = opt.scalers();
    let error = opt.load_scalers(&saved).unwrap_err();
    assert_eq!(opt.scalers(), before);
    error.to_string()
}

#[test]
fn what_cannot_be_is_refused_by_the_name_of_its_key() {
    for scale in [0.0, -1024.0, 1e-10, 1e7, f64::from(f32::MAX)] {
        let message = refused(|json| json["losses"][1]["scale"] = scale.into());
        let range = "it must lie between 0.5 and 1000000";
        let prefix = format!("`losses[1].scale` is {scale}: ");
        assert!(message.starts_with(&prefix) && message.ends_with(range), "{message}");
    }
    let message = refused(|json| json["losses"][1]["overflows_left"] = 3.into());
    assert_eq!(
        message,
        "`losses[1].overflows_left` is 3: with the builder's hysteresis it is at most 2"
    );
    let message = refused(|json| json["version"] = 2.into());
    assert_eq!(message, "`version` is 2: this version of the crate reads 1");
}

/// JSON has no NaN; a binary format has.
#[test]
fn nan_and_infinity_are_no_scales() {
    for scale in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let (_, mut opt) = build::<U1>(SETTINGS);
        let mut saved = opt.save_scalers().unwrap();
        saved.losses[0].scale = scale;
        let bytes = postcard::to_stdvec(&saved).unwrap();
        let saved: SavedScalers = postcard::from_bytes(&bytes).unwrap();
        let error = opt.load_scalers(&saved).unwrap_err();
        assert!(matches!(&error, StateError::Scale { key, .. } if key == "losses[0].scale"));
        assert_eq!(opt.scalers()[0].scale(), 1024.0);
    }
}

#[test]
fn another_setting_is_refused_by_its_name() {
    let settings = [
        ("growth_factor", serde_json::json!(1.8)),
        ("backoff_factor", serde_json::json!(0.25)),
        ("growth_interval", serde_json::json!(4)),
        ("hysteresis", serde_json::json!(3)),
        ("consecutive_hysteresis", serde_json::json!(2)),
        ("min_loss_scale", serde_json::json!(1.0)),
        ("max_loss_scale", serde_json::json!(2e6)),
    ];
    for (setting, value) in settings {
        let message = refused(|json| json["losses"][0]["settings"]["dynamic"][setting] = value);
        let prefix = format!("`losses[0].{setting}` is ");
        assert!(message.starts_with(&prefix) && message.contains("builder's"), "{message}");
    }
    let message = refused(|json| json["losses"][1]["settings"] = "static".into());
    let expected = "`losses[1].scale` is static in the saved state, and dynamic in the builder's \
                    `loss_scale`";
    assert_eq!(message, expected);
}

#[test]
fn a_static_scale_stays_the_builders() {
    let saved = build::<U1>(Static::new(128.0)).1.save_scalers().unwrap();
    let (_, mut opt) = build::<U1>(Static::new(64.0));
    let error = opt.load_scalers(&saved).unwrap_err().to_string();
    assert_eq!(error, "`losses[0].scale` is 128: by the builder's `loss_scale`, it must be 64");
    assert_eq!(build::<U1>(Static::new(128.0)).1.load_scalers(&saved), Ok(()));
}

#[test]
fn unknown_and_missing_keys_are_refused_by_name() {
    let mut json = saved_json();
    json["losses"][0]["scal"] = 1.into();
    let error = serde_json::from_value::<SavedScalers>(json).unwrap_err().to_string();
    assert!(error.contains("unknown field `scal`"), "{error}");
    let mut json = saved_json();
    json["losses"][0].as_object_mut().unwrap().remove("unskipped");
    let error = serde_json::from_value::<SavedScalers>(json).unwrap_err().to_string();
    assert!(error.contains("missing field `unskipped`"), "{error}");
}

/// Apex prints a line, and loads a prefix.
#[test]
fn another_number_of_losses_is_refused_unless_asked_for() {
    let mut two = build::<U2>(SETTINGS);
    steps(&mut two, [true, true]);
    steps(&mut two, [true, false]);
    let saved = two.1.save_scalers().unwrap();
    let (_, mut one) = build::<U1>(SETTINGS);
    assert_eq!(one.load_scalers(&saved), Err(StateError::Losses { saved: 2, here: 1 }));
    assert_eq!(one.scalers()[0], Scaler::new(SETTINGS.into()));
    one.load_common_scalers(&saved).unwrap();
    assert_eq!(one.scalers(), two.1.scalers()[..1]);
    let (_, mut three) = build::<U3>(SETTINGS);
    assert_eq!(three.load_scalers(&saved), Err(StateError::Losses { saved: 2, here: 3 }));
    three.load_common_scalers(&saved).unwrap();
    assert_eq!(three.scalers()[..2], two.1.scalers());
    assert_eq!(three.scalers()[2], Scaler::new(SETTINGS.into()));
}

/// Two optimizers share the scales: while one is in a step, the other cannot save or load them.
#[test]
fn state_of_a_scale_in_use_is_refused() {
    let builder = Amp::<O2<bf16>>::builder().loss_scale(SETTINGS);
    let models = (common::weights(&[1.0]), common::weights(&[1.0]));
    let (models, (mut a, mut b)) = builder.build(models, (Sgd::new(0.0), Sgd::new(0.0))).unwrap();
    let saved = b.save_scalers().unwrap();
    let mut step = a.begin();
    step.backward(&models.0.inner().0.sum(Kind::Float)).unwrap();
    assert_eq!(b.save_scalers(), Err(StateError::InUse { loss: 0 }));
    assert_eq!(b.load_scalers(&saved), Err(StateError::InUse { loss: 0 }));
    drop(step);
    assert_eq!(b.save_scalers(), Ok(saved));
}
