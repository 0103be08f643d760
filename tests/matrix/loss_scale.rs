//! The loss scale's keys in a config: what they make, and what is refused in which words.

use std::num::NonZeroU32;

use tch_amp::{
    AmpConfig, AnyLevel, Dynamic, LossScale, OptionError, Static, config::LossScaleConfig,
    scaler::ScaleError,
};

/// A key of a dynamic scale, a legal value, and what the builder makes of it.
type Key = (&'static str, fn(&mut AmpConfig), Dynamic);

const KEYS: [Key; 6] = [
    ("init_scale", |c| c.init_scale = Some(8.0), Dynamic::new().init_scale(8.0)),
    ("growth_factor", |c| c.growth_factor = Some(1.5), Dynamic::new().growth_factor(1.5)),
    ("backoff_factor", |c| c.backoff_factor = Some(0.75), Dynamic::new().backoff_factor(0.75)),
    ("growth_interval", |c| c.growth_interval = Some(7), Dynamic::new().growth_interval(7)),
    ("hysteresis", |c| c.hysteresis = Some(3), Dynamic::new().hysteresis(3)),
    (
        "consecutive_hysteresis",
        |c| c.consecutive_hysteresis = Some(3),
        Dynamic::new().consecutive_hysteresis(3),
    ),
];

fn resolved(
    loss_scale: Option<LossScaleConfig>,
    set: impl FnOnce(&mut AmpConfig),
) -> Result<LossScale, OptionError> {
    let mut config = AmpConfig { opt_level: AnyLevel::O2, loss_scale, ..Default::default() };
    set(&mut config);
    config.properties().map(|options| options.loss_scale)
}

#[test]
fn each_key_does_what_the_builder_does() {
    for (key, set, expected) in KEYS {
        assert_ne!(expected, Dynamic::new(), "{key}");
        for scale in [None, Some(LossScaleConfig::Dynamic)] {
            assert_eq!(resolved(scale, set), Ok(expected.into()), "{key}");
        }
    }
}

#[test]
fn a_key_of_a_dynamic_scale_is_refused_by_name_with_a_static_one() {
    for (option, set, _) in KEYS {
        let error = resolved(Some(LossScaleConfig::Static(128.0)), set).unwrap_err();
        assert_eq!(error, OptionError::OfDynamic { option });
        let message = format!("`{option}` is a setting of a dynamic loss scale");
        assert!(error.to_string().starts_with(&message), "{error}");
    }
}

#[test]
fn a_value_out_of_range_is_refused_by_the_name_of_its_key() {
    type Set = fn(&mut AmpConfig, f64);
    let factors: [(&str, Set, &str, &[f64]); 2] = [
        (
            "growth_factor",
            |c, v| c.growth_factor = Some(v),
            "it must be greater than 1",
            &[1.0, 0.5, 0.0, -2.0, f64::INFINITY],
        ),
        (
            "backoff_factor",
            |c, v| c.backoff_factor = Some(v),
            "it must lie between 0 and 1",
            &[0.0, 1.0, 2.0, -0.5, f64::INFINITY],
        ),
    ];
    let counts: [(&str, Set, &str, &[f64]); 4] = [
        ("growth_interval", |c, _| c.growth_interval = Some(0), "it must be at least 1", &[0.0]),
        ("hysteresis", |c, _| c.hysteresis = Some(0), "it must be at least 1", &[0.0]),
        (
            "consecutive_hysteresis",
            |c, _| c.consecutive_hysteresis = Some(0),
            "it must be at least 1",
            &[0.0],
        ),
        ("skip_limit", |c, _| c.skip_limit = Some(0), "it must be at least 1", &[0.0]),
    ];
    for (key, set, words, values) in factors.into_iter().chain(counts) {
        for &value in values {
            let error = resolved(None, |config| set(config, value)).unwrap_err();
            assert_eq!(error.to_string(), format!("`{key}` is {value}: {words}"));
        }
        if key.ends_with("factor") {
            assert!(resolved(None, |config| set(config, f64::NAN)).is_err(), "{key}");
        }
    }
    for value in [0.0, -1.0, f64::INFINITY, 1e39, 1e-39] {
        let error = resolved(None, |config| config.init_scale = Some(value));
        let expected = ScaleError::NotAScale { setting: "init_scale", value };
        assert_eq!(error, Err(expected.into()));
    }
}

#[test]
fn both_hystereses_at_once_are_refused() {
    let error = resolved(None, |config| {
        config.hysteresis = Some(2);
        config.consecutive_hysteresis = Some(2);
    });
    assert_eq!(error, Err(OptionError::TwoHystereses));
}

#[test]
fn a_skip_limit_belongs_to_both_kinds_of_scale() {
    let limit = NonZeroU32::new(5).unwrap();
    let limited = |scale| resolved(Some(scale), |config| config.skip_limit = Some(5));
    let dynamic = Dynamic::new().skip_limit(limit);
    assert_eq!(limited(LossScaleConfig::Dynamic), Ok(dynamic.into()));
    let fixed = Static::new(128.0).skip_limit(limit);
    assert_eq!(limited(LossScaleConfig::Static(128.0)), Ok(fixed.into()));
}

#[test]
fn the_hysteresis_that_is_set_last_replaces_the_other() {
    let dynamic = Dynamic::new();
    let replaced = dynamic.consecutive_hysteresis(5).hysteresis(2);
    assert_eq!(replaced, dynamic.hysteresis(2));
    let replaced = dynamic.hysteresis(5).consecutive_hysteresis(2);
    assert_eq!(replaced, dynamic.consecutive_hysteresis(2));
}
