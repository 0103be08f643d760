//! Training at a level known only at run time: the part to copy.

use tch::{
    Kind, TchError,
    data::Iter2,
    nn::{self, ModuleT},
};
use tch_amp::{
    Amp, AmpConfig, AnyLevel, OptLevel, Optimizer,
    optim::{Adam, AdamW, Sgd},
    with_level,
};

use crate::{
    cli::{OptimizerKind, Settings},
    data::{Digits, Mnist},
    error::DemoError,
    model::Net,
    watch::Watch,
};

/// Images per forward pass of the test.
const TEST_BATCH: i64 = 500;

/// What a run at one level led to.
#[derive(Debug)]
pub struct Run {
    pub level: AnyLevel,
    /// The level without its type.
    pub level_name: &'static str,
    /// The type that the level computes in.
    pub dtype: &'static str,
    /// The last one is the run's result; between 0 and 1.
    pub accuracies: Vec<f64>,
    /// Mean training loss of the steps since the last point, by epochs trained.
    pub losses: Vec<(f64, f64)>,
    /// Training only, without the first step and without tests.
    pub seconds_per_epoch: f64,
    pub weight_bytes: usize,
    pub optimizer_bytes: usize,
    pub skipped: u64,
    pub final_scale: f64,
}

/// Trains at the level that the config names, with the optimizer that the settings name.
pub fn run(config: &AmpConfig, settings: &Settings, data: &Mnist) -> Result<Run, DemoError> {
    let lr = settings.lr;
    with_level!(config.level()?, L => match settings.optimizer {
        OptimizerKind::Sgd => {
            let optimizer = Sgd::new(lr).momentum(0.9).nesterov(true).weight_decay(5e-4);
            train::<L, _>(config, settings, data, optimizer)
        }
        OptimizerKind::Adam => train::<L, _>(config, settings, data, Adam::new(lr)),
        OptimizerKind::AdamW => train::<L, _>(config, settings, data, AdamW::new(lr)),
    })
}

/// Trains at level `L`.
fn train<L: OptLevel, O: Optimizer>(
    config: &AmpConfig,
    settings: &Settings,
    data: &Mnist,
    optimizer: O,
) -> Result<Run, DemoError> {
    println!("\n{}: {}", L::DEFAULTS.opt_level, L::BRIEF);
    tch::manual_seed(settings.seed);
    let vs = nn::VarStore::new(settings.device);
    let net = Net::new(&vs.root());
    let (model, mut opt) = Amp::<L>::from_config(config)?.build((vs, net), optimizer)?;

    let mut watch = Watch::new(settings, data);
    let mut accuracies = Vec::new();
    for epoch in 0..settings.epochs {
        opt.set_lr(settings.lr * (1.0 - f64::from(epoch) / f64::from(settings.epochs)))?;
        watch.start_epoch();
        for (images, labels) in batches(&data.train, settings)? {
            let loss = model.forward_t(&images, true).cross_entropy_for_logits(&labels);
            opt.backward_step(&loss)?;
            watch.step(&loss)?;
        }
        watch.pause()?;
        let (images, labels) = (&data.test.images, &data.test.labels);
        let accuracy = model.batch_accuracy_for_logits(images, labels, settings.device, TEST_BATCH);
        watch.end_epoch(accuracy);
        accuracies.push(accuracy);
    }

    let scaler = &opt.scalers()[0];
    Ok(Run {
        level: L::DEFAULTS.opt_level,
        level_name: L::NAME,
        dtype: match L::LOW_PRECISION {
            None => "f32",
            Some(Kind::BFloat16) => "bf16",
            Some(_) => "f16",
        },
        accuracies,
        seconds_per_epoch: watch.seconds_per_epoch(),
        losses: watch.into_curve(),
        weight_bytes: model.weight_bytes(),
        optimizer_bytes: opt.state_bytes(),
        skipped: scaler.skipped(),
        final_scale: scaler.scale(),
    })
}

/// The images in a new order, in batches.
fn batches(digits: &Digits, settings: &Settings) -> Result<Iter2, TchError> {
    let mut batches = Iter2::f_new(&digits.images, &digits.labels, settings.batch_size)?;
    batches.to_device(settings.device).shuffle().return_smaller_last_batch();
    Ok(batches)
}
