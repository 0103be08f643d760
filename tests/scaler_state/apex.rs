//! The layout of Apex's `amp.state_dict()`.

use tch::Kind;
use tch_amp::{Dynamic, scaler::ApexScalers};
use typenum::{U1, U2, U11};

use crate::{SETTINGS, build, steps};

fn read(json: &str) -> ApexScalers {
    serde_json::from_str(json).unwrap()
}

/// Apex goes by the order of the keys; with eleven losses, that of a sorted map is another.
#[test]
fn losses_are_matched_by_number() {
    let entry =
        |n: usize| format!(r#""loss_scaler{n}": {{"loss_scale": {}.0, "unskipped": {n}}}"#, n + 1);
    let entries: Vec<_> = [10, 3, 0, 1, 2, 9, 8, 7, 6, 5, 4].map(entry).into();
    let states = read(&format!("{{{}}}", entries.join(", ")));
    let (_, mut opt) = build::<U11>(SETTINGS);
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
