//! The layout of torch's `GradScaler.state_dict()`.

use tch_amp::{
    Dynamic, LossScale, Static,
    scaler::{StateError, TorchScaler},
};
use typenum::{U1, U2};

use crate::{build, steps};

/// Written by PyTorch: `tests/data/README.md` has the program.
const FROM_TORCH: &str = include_str!("../data/grad_scaler.json");
const SETTINGS: Dynamic = Dynamic::new().init_scale(4096.0).growth_interval(5);

fn from_torch() -> TorchScaler {
    serde_json::from_str(FROM_TORCH).unwrap()
}

#[test]
fn state_of_a_grad_scaler_is_read_and_written() {
    let (_, mut opt) = build::<U1>(SETTINGS);
    opt.load_scalers(&from_torch()).unwrap();
    assert_eq!((opt.scalers()[0].scale(), opt.scalers()[0].unskipped()), (8192.0, 1));
    let [written] = opt.save_scalers().unwrap().to_torch().unwrap()[..] else { panic!() };
    let json = serde_json::to_value(written).unwrap();
    assert_eq!(json, serde_json::from_str::<serde_json::Value>(FROM_TORCH).unwrap());
}

/// PyTorch's thirteen steps, made here.
#[test]
fn the_same_steps_lead_to_the_same_state() {
    let mut built = build::<U2>(SETTINGS);
    (0..13).for_each(|n| steps(&mut built, [n == 6, false]));
    let states = built.1.save_scalers().unwrap().to_torch().unwrap();
    assert_eq!(states[0], from_torch());
    assert_ne!(states[1], from_torch());
}

#[test]
fn several_losses_have_a_slice_of_states() {
    let (state, second) = (from_torch(), TorchScaler { scale: 8.0, ..from_torch() });
    let (_, mut two) = build::<U2>(SETTINGS);
    two.load_scalers(&[state, second][..]).unwrap();
    assert_eq!([0, 1].map(|n| two.scalers()[n].scale()), [8192.0, 8.0]);
    assert_eq!(two.load_scalers(&state), Err(StateError::Losses { saved: 1, here: 2 }));
    let bad = vec![state, TorchScaler { scale: 0.0, ..state }];
    let message = two.load_scalers(&bad).unwrap_err().to_string();
    assert!(message.starts_with("`[1].scale` is 0"), "{message}");
}

/// torch takes other settings over, and any value.
#[test]
fn other_settings_and_bad_values_are_refused() {
    let (_, mut opt) = build::<U1>(SETTINGS);
    let good = from_torch();
    for (state, key) in [
        (TorchScaler { growth_factor: 3.0, ..good }, "growth_factor"),
        (TorchScaler { backoff_factor: f64::NAN, ..good }, "backoff_factor"),
        (TorchScaler { growth_interval: 2000, ..good }, "growth_interval"),
        (TorchScaler { scale: f64::NAN, ..good }, "scale"),
        (TorchScaler { scale: 0.0, ..good }, "scale"),
    ] {
        let message = opt.load_scalers(&state).unwrap_err().to_string();
        assert!(message.starts_with(&format!("`{key}` is ")), "{message}");
        assert_eq!(opt.scalers()[0].scale(), 4096.0);
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
