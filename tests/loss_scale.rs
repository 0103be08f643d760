//! The loss scale's state machine, against a model of it in whole exponents of two.

mod common;

use proptest::{collection::vec, prelude::*, test_runner::TestCaseResult};
use serde::de::DeserializeOwned;
use static_assertions::assert_not_impl_any;
use tch::{Device, Kind, Tensor};
use tch_amp::{
    Amp, Dynamic, LossScale, O0, O2, Scaler, Static, StepOutcome, optim::Sgd, step::NonFinite,
};
use typenum::U2;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    Finite,
    Overflow,
    NaN,
    NoGradients,
}

/// Settings whose scales are all powers of two.
#[derive(Debug, Clone, Copy)]
struct Settings {
    init: i32,
    min: i32,
    max: i32,
    growth: i32,
    backoff: i32,
    interval: u32,
    hysteresis: u32,
    dynamic: bool,
}

impl Settings {
    fn loss_scale(self) -> LossScale {
        let power = |exponent: i32| 2f64.powi(exponent);
        match self.dynamic {
            true => Dynamic::new()
                .max_loss_scale(power(self.max))
                .min_loss_scale(power(self.min))
                .init_scale(power(self.init))
                .growth_factor(power(self.growth))
                .backoff_factor(power(-self.backoff))
                .growth_interval(self.interval)
                .consecutive_hysteresis(self.hysteresis)
                .into(),
            false => Static::try_from(power(self.init)).unwrap().into(),
        }
    }
}

/// What the scale must be, from its definition: the exponent after a whole history of steps.
fn expected(settings: Settings, history: &[Event]) -> (i32, u64) {
    let steps: Vec<bool> =
        history.iter().filter(|e| **e != Event::NoGradients).map(|e| *e != Event::Finite).collect();
    if !settings.dynamic {
        let good = steps.iter().rev().take_while(|overflow| !**overflow).count();
        return (settings.init, good as u64);
    }
    let mut exponent = settings.init.clamp(settings.min, settings.max);
    let mut unskipped = 0;
    for run in steps.chunk_by(|a, b| a == b) {
        let length = run.len() as u32;
        if run[0] {
            let backoffs = (length + 1).saturating_sub(settings.hysteresis) as i32;
            exponent = (exponent - settings.backoff * backoffs).max(settings.min);
            unskipped = 0;
        } else {
            let growths = (length / settings.interval) as i32;
            exponent = (exponent + settings.growth * growths).min(settings.max);
            unskipped = u64::from(length % settings.interval);
        }
    }
    (exponent, unskipped)
}

fn settings() -> impl Strategy<Value = Settings> {
    let limits = (-20..20i32).prop_flat_map(|min| (Just(min), min..24));
    let factors = (1..3i32, 1..3i32, 1..5u32, 1..4u32);
    (limits, factors, -24..28i32, any::<bool>()).prop_map(
        |((min, max), (growth, backoff, interval, hysteresis), init, dynamic)| Settings {
            init: if init == 0 { 1 } else { init },
            min,
            max,
            growth,
            backoff,
            interval,
            hysteresis,
            dynamic,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Finite),
        2 => Just(Event::Overflow),
        1 => Just(Event::NaN),
        1 => Just(Event::NoGradients),
    ]
}

fn follow(settings: Settings, events: &[Event]) -> TestCaseResult {
    let (store, module) = common::weights(&[1.0]);
    let builder = Amp::<O0>::builder().loss_scale(settings.loss_scale());
    let (model, mut opt) = builder.build((store, module), Sgd::new(0.0)).unwrap();
    let stranger = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let w = &model.inner().0;
    for (n, event) in events.iter().enumerate() {
        let (loss, kind) = match event {
            Event::Finite => (w.sum(Kind::Float), None),
            Event::Overflow => ((w * f64::INFINITY).sum(Kind::Float), Some(NonFinite::Inf)),
            Event::NaN => ((w * f64::NAN).sum(Kind::Float), Some(NonFinite::NaN)),
            Event::NoGradients => (stranger.sum(Kind::Float), None),
        };
        let outcome = opt.backward_step(&loss).unwrap().outcome();
        let (exponent, unskipped) = expected(settings, &events[..=n]);
        let scale = 2f64.powi(exponent);
        match (event, &outcome) {
            (Event::Finite, StepOutcome::Applied) => {}
            (Event::NoGradients, StepOutcome::NoGradients) => {}
            (Event::Overflow | Event::NaN, StepOutcome::Skipped { overflows }) => {
                prop_assert_eq!(overflows.len(), 1);
                prop_assert_eq!(Some(overflows[0].kind), kind);
                prop_assert_eq!(overflows[0].new_scale, scale);
                prop_assert_eq!(&overflows[0].parameter, "w");
            }
            _ => prop_assert!(false, "{:?} led to {:?}", event, outcome),
        }
        prop_assert_eq!(opt.scalers()[0].scale(), scale);
        prop_assert_eq!(opt.scalers()[0].unskipped(), unskipped);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn scale_follows_its_definition(settings in settings(), events in vec(event(), 0..40)) {
        follow(settings, &events)?;
    }
}

/// NVIDIA/apex#318: without a floor, 1,091 halvings of 2^16 end at zero and divide by it.
#[test]
fn endless_overflow_leaves_a_usable_scale() {
    let (store, module) = common::weights(&[1.0]);
    let (model, mut opt) = Amp::<O0>::builder()
        .loss_scale(Dynamic::new())
        .build((store, module), Sgd::new(1.0))
        .unwrap();
    for _ in 0..1200 {
        let loss = (&model.inner().0 * f64::NAN).sum(Kind::Float);
        let outcome = opt.backward_step(&loss).unwrap().outcome();
        assert!(matches!(outcome, StepOutcome::Skipped { .. }));
        let scale = opt.scalers()[0].scale();
        assert!(scale >= f64::from(f32::MIN_POSITIVE) && scale.is_finite());
    }
    assert_eq!(opt.scalers()[0].scale(), 2f64.powi(-24));
    assert_eq!(opt.scalers()[0].skipped(), 1200);
    assert_eq!(common::values(&model.inner().0), [1.0]);
}

/// A disabled `GradScaler` lacks its attributes, and Apex has no scalers then.
#[test]
fn scales_can_be_read_before_the_first_step_and_when_disabled() {
    let read = |enabled| {
        let builder = Amp::<O2>::builder().enabled(enabled).num_losses::<U2>();
        let (_, opt) = builder.build(common::weights(&[1.0]), Sgd::new(1.0)).unwrap();
        opt.scalers().iter().map(|s| (s.scale(), s.unskipped(), s.skipped())).collect::<Vec<_>>()
    };
    assert_eq!(read(true), [(65_536.0, 0, 0); 2]);
    assert_eq!(read(false), [(1.0, 0, 0); 2]);
}

// A scale can be read and not replaced: there is no state to load in part or from another run.
assert_not_impl_any!(Scaler: DeserializeOwned);

/// pytorch#98828: with tiny gradients the scale used to grow to infinity.
#[test]
fn growth_stops_at_the_largest_fp32_power() {
    let (store, module) = common::weights(&[1.0]);
    let scale = Dynamic::new()
        .max_loss_scale(f64::from(f32::MAX))
        .init_scale(2f64.powi(120))
        .growth_interval(1);
    let (model, mut opt) =
        Amp::<O0>::builder().loss_scale(scale).build((store, module), Sgd::new(1.0)).unwrap();
    for step in 1..20 {
        let loss = (&model.inner().0 * 0.0).sum(Kind::Float);
        let _ = opt.backward_step(&loss).unwrap();
        assert_eq!(opt.scalers()[0].scale(), 2f64.powi(127.min(120 + step)));
        assert_eq!(opt.scalers()[0].unskipped(), 0);
    }
}

#[test]
fn first_scale_is_clamped_into_the_limits() {
    let (store, module) = common::weights(&[1.0]);
    let scale = Dynamic::new().max_loss_scale(1024.0).growth_interval(2);
    let (model, mut opt) =
        Amp::<O0>::builder().loss_scale(scale).build((store, module), Sgd::new(0.0)).unwrap();
    assert_eq!(opt.scalers()[0].scale(), 1024.0);
    for unskipped in [1, 0, 1, 0] {
        let _ = opt.backward_step(&model.inner().0.sum(Kind::Float)).unwrap();
        assert_eq!(opt.scalers()[0].scale(), 1024.0);
        assert_eq!(opt.scalers()[0].unskipped(), unskipped);
    }
}

/// Apex: 2000 good steps in a row double the scale, up to 2^24; nothing in Apex tests it.
#[test]
fn the_default_scale_doubles_every_2000_good_steps() {
    let scale = Dynamic::default().init_scale(2f64.powi(22));
    let (model, mut opt) = Amp::<O0>::builder()
        .loss_scale(scale)
        .build(common::weights(&[1.0]), Sgd::new(0.0))
        .unwrap();
    for exponent in [22, 23, 24, 24] {
        for unskipped in 0..2000 {
            assert_eq!(opt.scalers()[0].scale(), 2f64.powi(exponent));
            assert_eq!(opt.scalers()[0].unskipped(), unskipped);
            let _ = opt.backward_step(&model.inner().0.sum(Kind::Float)).unwrap();
        }
    }
}
