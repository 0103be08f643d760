//! What the crate tells `tracing`: the options at build, and a scale that is stuck.

mod common;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tch::Kind;
use tch_amp::{Amp, Dynamic, O2, bf16, optim::Sgd};
use tracing_subscriber::fmt::MakeWriter;

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

/// What is logged at INFO and above while `f` runs.
fn logged(f: impl FnOnce()) -> String {
    let log = Log::default();
    let subscriber =
        tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).without_time();
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
loss_scale            : dynamic
cast_model_outputs    : f32
";
    assert_eq!(text, expected);
}

/// The scale reaches its floor after two skips; warnings come with the 1st, 2nd, 4th and 8th skip
/// after that.
#[test]
fn stuck_scale_warns_ever_more_seldom() {
    let _lock = one_at_a_time();
    let scale = Dynamic::new().init_scale(4.0).min_loss_scale(1.0);
    let builder = Amp::<O2>::builder().loss_scale(scale);
    let (model, mut opt) = builder.build(common::weights(&[1.0]), Sgd::new(0.1)).unwrap();
    let mut warned = Vec::new();
    for step in 1..=12 {
        let loss = (&model.inner().0 * f64::NAN).sum(Kind::Float);
        let text = logged(|| {
            let _ = opt.backward_step(&loss).unwrap();
        });
        if !text.is_empty() {
            assert!(text.starts_with(" WARN tch_amp: "), "{text}");
            assert!(text.contains("NaN in the gradient of `w`"), "{text}");
            warned.push(step);
        }
    }
    assert_eq!(warned, [3, 4, 6, 10]);
}
