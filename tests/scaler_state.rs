//! The state of the scales in any format, and in Apex's and torch's layouts.

mod common;

use common::Weights;
use proptest::{collection::vec, prelude::*};
use tch::Kind;
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Dynamic, LossScale, O2, Scaler, Static, bf16,
    loss::LossCount,
    optim::Sgd,
    scaler::{ApexScalers, SavedScalers, StateError, TorchScaler},
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

mod apex {
    use super::*;

    fn read(json: &str) -> ApexScalers {
        serde_json::from_str(json).unwrap()
    }

    /// Apex goes by the order of the keys; with eleven losses, that of a sorted map is another.
    #[test]
    fn losses_are_matched_by_number() {
        let entry = |n: usize| {
            format!(r#""loss_scaler{n}": {{"loss_scale": {}.0, "unskipped": {n}}}"#, n + 1)
        };
        let entries: Vec<_> = [10, 3, 0, 1, 2, 9, 8, 7, 6, 5, 4].map(entry).into();
        let states = read(&format!("{{{}}}", entries.join(", ")));
        let (_, mut opt) = build::<typenum::U11>(SETTINGS);
        opt.load_scalers(&states).unwrap();
        for (n, scaler) in opt.scalers().iter().enumerate() {
            assert_eq!((scaler.scale(), scaler.unskipped()), ((n + 1) as f64, n as u64));
        }
        assert_eq!(opt.save_scalers().unwrap().to_apex(), states);
    }

    #[test]
    fn what_is_written_is_apexs_layout() {
        let mut built = build::<U2>(Dynamic::new());
        steps(&mut built, [true, false]);
        let states = built.1.save_scalers().unwrap().to_apex();
        let expected = serde_json::json!({
            "loss_scaler0": {"loss_scale": 32768.0, "unskipped": 0},
            "loss_scaler1": {"loss_scale": 65536.0, "unskipped": 1},
        });
        assert_eq!(serde_json::to_value(states).unwrap(), expected);
    }

    /// The run of a static scale has counted past the window; Apex's scale never grows again.
    #[test]
    fn a_long_count_grows_at_the_next_good_step() {
        let (model, mut opt) = build::<U1>(SETTINGS);
        let states = read(r#"{"loss_scaler0": {"loss_scale": 128.0, "unskipped": 5000}}"#);
        opt.load_scalers(&states).unwrap();
        let loss = (&model.inner().0 * 1e-9).sum(Kind::Float);
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
        assert_eq!(opt.scalers()[0].scale(), f64::from((128.0 * 1.7) as f32));
    }

    #[test]
    fn what_apex_does_not_write_is_refused_by_name() {
        for (json, message) in [
            (
                r#"{"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}, "scaler1": {"loss_scale": 1.0, "unskipped": 0}}"#,
                "unknown key `scaler1`: expected `loss_scaler0` and so on",
            ),
            (
                r#"{"loss_scaler00": {"loss_scale": 1.0, "unskipped": 0}}"#,
                "unknown key `loss_scaler00`: expected `loss_scaler0` and so on",
            ),
            (
                r#"{"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}, "loss_scaler2": {"loss_scale": 1.0, "unskipped": 0}}"#,
                "`loss_scaler1` is missing",
            ),
            (
                r#"{"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}, "loss_scaler1": {"loss_scale": 0.0, "unskipped": 0}}"#,
                "`loss_scaler1.loss_scale` is 0: by the builder's `loss_scale`, it must lie between 0.5 and \
                 1000000",
            ),
        ] {
            let (_, mut opt) = build::<U2>(SETTINGS);
            let before = opt.scalers();
            assert_eq!(opt.load_common_scalers(&read(json)).unwrap_err().to_string(), message);
            assert_eq!(opt.scalers(), before);
        }
        let unknown = r#"{"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0, "hysteresis": 2}}"#;
        assert!(serde_json::from_str::<ApexScalers>(unknown).is_err());
    }
}

mod torch {
    use super::*;

    const FROM_TORCH: Dynamic = Dynamic::new().growth_interval(500);

    #[test]
    fn state_of_a_grad_scaler_is_read() {
        let json = r#"{"scale": 4096.0, "growth_factor": 2.0, "backoff_factor": 0.5,
            "growth_interval": 500, "_growth_tracker": 37}"#;
        let state: TorchScaler = serde_json::from_str(json).unwrap();
        let (_, mut opt) = build::<U1>(FROM_TORCH);
        opt.load_scalers(&state).unwrap();
        assert_eq!((opt.scalers()[0].scale(), opt.scalers()[0].unskipped()), (4096.0, 37));
        assert_eq!(opt.save_scalers().unwrap().to_torch().unwrap(), [state]);
        let written = serde_json::to_value(state).unwrap();
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(json).unwrap());
        let (_, mut two) = build::<U2>(FROM_TORCH);
        let second = TorchScaler { scale: 8.0, ..state };
        two.load_scalers(&[state, second][..]).unwrap();
        assert_eq!(two.scalers()[1].scale(), 8.0);
        assert_eq!(two.load_scalers(&state), Err(StateError::Losses { saved: 1, here: 2 }));
    }

    /// torch takes other settings over, and any value.
    #[test]
    fn other_settings_and_bad_values_are_refused() {
        let (_, mut opt) = build::<U1>(FROM_TORCH);
        let good = opt.save_scalers().unwrap().to_torch().unwrap()[0];
        for (state, key) in [
            (TorchScaler { growth_factor: 3.0, ..good }, "growth_factor"),
            (TorchScaler { backoff_factor: f64::NAN, ..good }, "backoff_factor"),
            (TorchScaler { growth_interval: 2000, ..good }, "growth_interval"),
            (TorchScaler { scale: f64::NAN, ..good }, "scale"),
            (TorchScaler { scale: 0.0, ..good }, "scale"),
        ] {
            let message = opt.load_scalers(&state).unwrap_err().to_string();
            assert!(message.starts_with(&format!("`{key}` is ")), "{message}");
            assert_eq!(opt.scalers()[0].scale(), 65_536.0);
        }
    }

    /// A disabled `GradScaler` saves this, and torch's `load_state_dict` raises a RuntimeError.
    #[test]
    fn an_empty_state_is_refused() {
        let error = serde_json::from_str::<TorchScaler>("{}").unwrap_err().to_string();
        assert!(error.contains("missing field `scale`"), "{error}");
    }

    #[test]
    fn what_torch_has_no_setting_for_is_not_written() {
        for (scale, key) in [
            (LossScale::from(Static::new(128.0)), "losses[0].static"),
            (Dynamic::new().hysteresis(2).into(), "losses[0].hysteresis"),
            (Dynamic::new().consecutive_hysteresis(2).into(), "losses[0].consecutive_hysteresis"),
        ] {
            let saved = build::<U1>(scale).1.save_scalers().unwrap();
            assert_eq!(saved.to_torch(), Err(StateError::NotOfTorch { key: key.to_owned() }));
        }
    }
}
