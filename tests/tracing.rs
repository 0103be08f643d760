//! What the crate tells `tracing`: the options at build, skipped steps, and scales that grow.

mod common;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tch::Kind;
use tch_amp::{Amp, Dynamic, LossScale, O2, Static, bf16, joint, optim::Sgd};
use tracing_subscriber::fmt::MakeWriter;
use typenum::{U0, U1, U2};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;
    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// `tracing` caches who listens to an event, and tests that start and stop listening on their own
/// threads disturb each other.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is logged at DEBUG and above while `f` runs.
fn logged(f: impl FnOnce()) -> String {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .without_time();
    tracing::subscriber::with_default(subscriber.finish(), f);
    let text = log.0.lock().unwrap();
    String::from_utf8(text.clone()).unwrap()
}

#[test]
fn options_are_a_table() {
    let _lock = one_at_a_time();
    let text = logged(|| {
        let builder = Amp::<O2<bf16>>::builder().loss_scale(Dynamic::new());
        let _ = builder.build(common::weights(&[1.0]), Sgd::new(0.1)).unwrap();
    });
    let expected = " INFO tch_amp: options in force
opt_level             : O2<bf16>
enabled               : true
cast_model_type       : bf16
patch_torch_functions : false
keep_batchnorm_fp32   : true
master_weights        : true
rounding              : –
loss_scale            : dynamic
cast_model_outputs    : f32
";
    assert_eq!(text, expected);
}

/// Steps with these gradients of `w`, from these settings; what each logs, at DEBUG and above.
fn steps(scale: impl Into<LossScale>, gradients: &[f64]) -> Vec<String> {
    let builder = Amp::<O2<bf16>>::builder().loss_scale(scale.into());
    let (model, mut opt) = builder.build(common::weights(&[1.0]), Sgd::new(0.0)).unwrap();
    let step = |gradient: &f64| {
        let loss = (&model.inner().0 * *gradient).sum(Kind::Float);
        logged(|| {
            let _ = opt.backward_step(&loss).unwrap();
        })
    };
    gradients.iter().map(step).collect()
}

/// The scale reaches its floor after two skips; warnings come with the 1st, 2nd, 4th and 8th skip
/// after that.
#[test]
fn stuck_scale_warns_ever_more_seldom() {
    let _lock = one_at_a_time();
    let scale = Dynamic::new().init_scale(4.0).min_loss_scale(1.0);
    let logs = steps(scale, &[f64::NAN; 12]);
    let warned: Vec<_> = (1..=12).filter(|&n| logs[n - 1].starts_with(" WARN")).collect();
    assert_eq!(warned, [3, 4, 6, 10]);
    let words = "step skipped, number 4 in a row with a loss scale that cannot go lower: NaN in the \
                 gradient of `w`; the scale of loss 0 stays at 1";
    assert!(logs[5].contains(words), "{}", logs[5]);
}

/// Apex's "Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 32768.0".
#[test]
fn skipped_step_names_the_loss_and_its_new_scale() {
    let _lock = one_at_a_time();
    let expected = " INFO tch_amp: step skipped: Inf in the gradient of `w`; the scale of loss 0 goes \
                    down to 32768 loss=0 scale=32768.0 parameter=\"w\" kind=Inf\n";
    assert_eq!(steps(Dynamic::new(), &[f64::INFINITY]), [expected]);
}

#[test]
fn scale_that_does_not_move_is_not_said_to() {
    let _lock = one_at_a_time();
    let logs = steps(Dynamic::new().hysteresis(2), &[f64::NAN, f64::NAN]);
    assert!(
        logs[0].contains("the scale of loss 0 stays at 65536 loss=0 scale=65536.0"),
        "{logs:?}"
    );
    assert!(logs[1].contains("goes down to 32768"), "{logs:?}");
    let logs = steps(Static::new(128.0), &[f64::NAN; 3]);
    assert!(logs[2].starts_with(" INFO tch_amp: step skipped: NaN"), "{logs:?}");
    assert!(logs[2].contains("the scale of loss 0 is always 128"), "{logs:?}");
}

#[test]
fn growth_is_told_at_debug() {
    let _lock = one_at_a_time();
    let logs = steps(Dynamic::new().growth_interval(2), &[1e-9; 3]);
    let expected = "DEBUG tch_amp: the scale of loss 0 grows from 65536 to 131072 loss=0 \
                    scale=131072.0\n";
    assert_eq!(logs, ["", expected, ""]);
    let at_ceiling = Dynamic::new().growth_interval(1).max_loss_scale(65_536.0);
    assert_eq!(steps(at_ceiling, &[1e-9]), [""]);
}

/// Two losses, of which the second overflows; the first one's gradients were good.
#[test]
fn each_loss_speaks_for_itself() {
    let _lock = one_at_a_time();
    let scale = Dynamic::new().growth_interval(1);
    let builder = Amp::<O2<bf16>>::builder().loss_scale(scale).num_losses::<U2>();
    let (model, mut opt) = builder.build(common::weights(&[1.0]), Sgd::new(0.0)).unwrap();
    let text = logged(|| {
        let mut step = opt.begin();
        step.backward_of::<U0>(&(&model.inner().0 * 1e-9).sum(Kind::Float)).unwrap();
        step.backward_of::<U1>(&(&model.inner().0 * f64::NAN).sum(Kind::Float)).unwrap();
        let _ = step.unscale().unwrap().step().unwrap();
    });
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("the scale of loss 0 grows from 65536 to 131072 loss=0"), "{text}");
    assert!(text.contains("the scale of loss 1 goes down to 32768 loss=1"), "{text}");
}

/// One loss that feeds two steps has one scale, which goes down once.
#[test]
fn loss_of_joint_steps_is_told_once() {
    let _lock = one_at_a_time();
    let models = (common::weights(&[1.0]), common::weights(&[1.0]));
    let builder = Amp::<O2<bf16>>::builder().loss_scale(Dynamic::new());
    let (models, (mut a, mut b)) = builder.build(models, (Sgd::new(0.0), Sgd::new(0.0))).unwrap();
    let text = logged(|| {
        let (mut a, mut b) = (a.begin(), b.begin());
        let both = &models.0.inner().0 + &models.1.inner().0;
        let loss = (both * f64::NAN).sum(Kind::Float);
        joint((&mut a, &mut b)).backward(&loss).unwrap();
        for step in [a, b] {
            let _ = step.unscale().unwrap().step().unwrap();
        }
    });
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("the scale of loss 0 goes down to 32768"), "{text}");
}
