//! Every level with every option: the types, `OptLevel::REFUSES` and `AmpConfig` allow the same.
//!
//! No tensor is touched, so that these tests run without libtorch too (feature `doc-only`).

#[path = "matrix/config.rs"]
mod config;
#[path = "matrix/loss_scale.rs"]
mod loss_scale;

use std::marker::PhantomData;

use half::{bf16, f16};
use tch::Kind;
use tch_amp::{
    Amp, AmpConfig, AnyLevel, Dynamic, LossScale, O0, O1, O2, O3, OptLevel, OptionError,
    Properties, Rounding, Static,
    config::{DType, LossScaleConfig},
    option::{
        AllowsCastModelType, AllowsKeepBatchnormFp32, AllowsKeepFp32, AllowsMasterWeights,
        AllowsPatchTorchFunctions, AllowsRounding, OutputType,
    },
    with_level,
};

/// What [`implements`] finds where its own constant does not exist.
trait Otherwise {
    const HOLDS: bool = false;
}
impl<T> Otherwise for T {}

/// Whether a type has a trait: where it has, the inherent constant hides that of [`Otherwise`].
macro_rules! implements {
    ($type:ty: $($bound:tt)+) => {{
        #[allow(dead_code, reason = "only its constants are used")]
        struct Probe<T>(PhantomData<T>);
        #[allow(dead_code, reason = "used where the bound holds")]
        impl<T: $($bound)+> Probe<T> {
            const HOLDS: bool = true;
        }
        <Probe<$type>>::HOLDS
    }};
}

/// An option that some level refuses.
struct OptionRow {
    name: &'static str,
    /// The levels that take it, by the option table of the docs: `"O3"` with any 16-bit type.
    taken_by: &'static [&'static str],
    /// Whether the type of a level takes it.
    typed: fn(AnyLevel) -> bool,
    /// Configs that set nothing else.
    configs: fn() -> Vec<AmpConfig>,
}

const OPTIONS: [OptionRow; 5] = [
    OptionRow {
        name: "patch_torch_functions",
        taken_by: &["O1"],
        typed: |level| with_level!(level, L => implements!(L: AllowsPatchTorchFunctions)),
        configs: || flags(|config, on| config.patch_torch_functions = Some(on)),
    },
    OptionRow {
        name: "keep_batchnorm_fp32",
        taken_by: &["O2", "O3"],
        typed: |level| with_level!(level, L => implements!(L: AllowsKeepBatchnormFp32)),
        configs: || flags(|config, on| config.keep_batchnorm_fp32 = Some(on)),
    },
    OptionRow {
        name: "keep_fp32",
        taken_by: &["O2", "O3"],
        typed: |level| with_level!(level, L => implements!(L: AllowsKeepFp32)),
        configs: || vec![AmpConfig { keep_fp32: vec!["norm".to_owned()], ..Default::default() }],
    },
    OptionRow {
        name: "master_weights",
        taken_by: &["O2", "O3"],
        typed: |level| with_level!(level, L => implements!(L: AllowsMasterWeights)),
        configs: || flags(|config, on| config.master_weights = Some(on)),
    },
    OptionRow {
        name: "rounding",
        taken_by: &["O3<bf16>"],
        typed: |level| with_level!(level, L => implements!(L: AllowsRounding)),
        configs: || {
            let config = |rounding| AmpConfig { rounding: Some(rounding), ..Default::default() };
            vec![config(Rounding::Nearest), config(Rounding::Stochastic { seed: 1 })]
        },
    },
];

fn flags(set: fn(&mut AmpConfig, bool)) -> Vec<AmpConfig> {
    let config = |on| {
        let mut config = AmpConfig::default();
        set(&mut config, on);
        config
    };
    vec![config(true), config(false)]
}

/// `"O2"` for `O2<f16>` and `O2<bf16>`.
fn name(level: AnyLevel) -> &'static str {
    with_level!(level, L => L::NAME)
}

#[test]
fn types_and_configs_refuse_the_same_options() {
    for level in AnyLevel::ALL {
        let refuses = with_level!(level, L => L::REFUSES);
        for OptionRow { name: option, taken_by, typed, configs } in &OPTIONS {
            let taken =
                taken_by.contains(&name(level)) || taken_by.contains(&level.to_string().as_str());
            assert_eq!(typed(level), taken, "type of {level}, {option}");
            assert_eq!(!refuses.contains(option), taken, "REFUSES of {level}, {option}");
            for config in configs() {
                let resolved = AmpConfig { opt_level: level, ..config }.properties();
                match taken {
                    true => assert!(resolved.is_ok(), "config for {level}, {option}"),
                    false => assert_eq!(resolved, Err(OptionError::Refused { option, level })),
                }
            }
        }
        for refused in refuses {
            assert!(OPTIONS.iter().any(|row| row.name == *refused), "{level} refuses {refused}");
        }
    }
}

#[test]
fn types_and_configs_agree_on_the_type_of_the_weights() {
    for level in AnyLevel::ALL {
        let typed = with_level!(level, L => [
            (DType::F32, implements!(L: AllowsCastModelType<f32>)),
            (DType::F16, implements!(L: AllowsCastModelType<f16>)),
            (DType::Bf16, implements!(L: AllowsCastModelType<bf16>)),
        ]);
        let weights = match level {
            AnyLevel::O0 | AnyLevel::O1 | AnyLevel::O1Bf16 => DType::F32,
            AnyLevel::O2 | AnyLevel::O3 => DType::F16,
            AnyLevel::O2Bf16 | AnyLevel::O3Bf16 => DType::Bf16,
        };
        assert!(!with_level!(level, L => implements!(L: AllowsCastModelType<f64>)));
        for (dtype, allowed) in typed {
            assert_eq!(allowed, dtype == weights, "type of {level}, {dtype}");
            let config =
                AmpConfig { opt_level: level, cast_model_type: Some(dtype), ..Default::default() };
            let expected = match allowed {
                true => Ok(with_level!(level, L => L::DEFAULTS)),
                false => Err(OptionError::CastModelType { dtype, level }),
            };
            assert_eq!(config.properties(), expected);
        }
    }
}

#[test]
fn outputs_can_have_any_type_that_the_types_allow() {
    let typed = [
        (DType::F32, implements!(f32: OutputType)),
        (DType::F16, implements!(f16: OutputType)),
        (DType::Bf16, implements!(bf16: OutputType)),
    ];
    for level in AnyLevel::ALL {
        for (dtype, allowed) in typed {
            assert!(allowed);
            let outputs = Some(dtype);
            let config =
                AmpConfig { opt_level: level, cast_model_outputs: outputs, ..Default::default() };
            let properties = config.properties().unwrap();
            assert_eq!(properties.cast_model_outputs, Some(dtype.kind()));
        }
    }
    assert!(!implements!(f64: OutputType) && !implements!(i64: OutputType));
}

/// Values for the options that every level takes, each with its config.
fn common_overrides() -> Vec<(bool, LossScale, AmpConfig)> {
    let scales = [
        (LossScaleConfig::Dynamic, None, None, Dynamic::new().into()),
        (LossScaleConfig::Static(128.0), None, None, Static::new(128.0).into()),
        (
            LossScaleConfig::Dynamic,
            Some(0.5),
            Some(1024.0),
            Dynamic::new().min_loss_scale(0.5).max_loss_scale(1024.0).into(),
        ),
    ];
    let mut overrides = Vec::new();
    for enabled in [true, false] {
        for (loss_scale, min_loss_scale, max_loss_scale, scale) in scales {
            let config = AmpConfig {
                enabled: Some(enabled),
                loss_scale: Some(loss_scale),
                min_loss_scale,
                max_loss_scale,
                cast_model_outputs: Some(DType::Bf16),
                ..Default::default()
            };
            overrides.push((enabled, scale, config));
        }
    }
    overrides
}

fn assert_same<L: OptLevel>(builder: &Properties, config: AmpConfig) {
    let config = AmpConfig { opt_level: L::DEFAULTS.opt_level, ..config };
    assert_eq!(config.properties().as_ref(), Ok(builder));
    assert_eq!(Amp::<L>::from_config(&config).unwrap().properties(), builder);
}

fn builder_of_o0() {
    for (enabled, scale, config) in common_overrides() {
        let builder = Amp::<O0>::builder()
            .enabled(enabled)
            .cast_model_type::<f32>()
            .loss_scale(scale)
            .cast_model_outputs::<bf16>();
        let config = AmpConfig { cast_model_type: Some(DType::F32), ..config };
        assert_same::<O0>(builder.properties(), config);
    }
}

fn builders_of_o1<L: AllowsPatchTorchFunctions + AllowsCastModelType<f32>>() {
    for (enabled, scale, config) in common_overrides() {
        for on in [true, false] {
            let builder = Amp::<L>::builder()
                .enabled(enabled)
                .cast_model_type::<f32>()
                .patch_torch_functions(on)
                .loss_scale(scale)
                .cast_model_outputs::<bf16>();
            let config = AmpConfig {
                cast_model_type: Some(DType::F32),
                patch_torch_functions: Some(on),
                ..config.clone()
            };
            assert_same::<L>(builder.properties(), config);
        }
    }
}

fn builders_of_o2_and_o3<L, H>(dtype: DType)
where
    L: AllowsCastModelType<H> + AllowsKeepBatchnormFp32 + AllowsKeepFp32 + AllowsMasterWeights,
{
    for (enabled, scale, config) in common_overrides() {
        for (keep, masters) in [(true, true), (true, false), (false, true), (false, false)] {
            let builder = Amp::<L>::builder()
                .enabled(enabled)
                .cast_model_type::<H>()
                .keep_batchnorm_fp32(keep)
                .keep_fp32(["head"])
                .master_weights(masters)
                .loss_scale(scale)
                .cast_model_outputs::<bf16>();
            let config = AmpConfig {
                cast_model_type: Some(dtype),
                keep_batchnorm_fp32: Some(keep),
                keep_fp32: vec!["head".to_owned()],
                master_weights: Some(masters),
                ..config.clone()
            };
            assert_same::<L>(builder.properties(), config);
        }
    }
}

fn builder_of_o3_with_rounding() {
    for (enabled, scale, config) in common_overrides() {
        for rounding in [Rounding::Nearest, Rounding::Stochastic { seed: 7 }] {
            let builder = Amp::<O3<bf16>>::builder()
                .enabled(enabled)
                .rounding(rounding)
                .loss_scale(scale)
                .cast_model_outputs::<bf16>();
            let config = AmpConfig { rounding: Some(rounding), ..config.clone() };
            assert_same::<O3<bf16>>(builder.properties(), config);
        }
    }
}

#[test]
fn a_builder_and_a_config_with_the_same_options_are_the_same() {
    builder_of_o0();
    builders_of_o1::<O1<f16>>();
    builders_of_o1::<O1<bf16>>();
    builders_of_o2_and_o3::<O2<f16>, f16>(DType::F16);
    builders_of_o2_and_o3::<O2<bf16>, bf16>(DType::Bf16);
    builders_of_o2_and_o3::<O3<f16>, f16>(DType::F16);
    builders_of_o2_and_o3::<O3<bf16>, bf16>(DType::Bf16);
    builder_of_o3_with_rounding();
}

#[test]
fn builders_and_configs_start_from_the_same_defaults() {
    for level in AnyLevel::ALL {
        let config = AmpConfig { opt_level: level, ..Default::default() };
        let properties = config.properties().unwrap();
        assert_eq!(properties.opt_level, level);
        with_level!(level, L => {
            assert_eq!(*Amp::<L>::builder().properties(), properties);
            assert_eq!(L::LOW_PRECISION, level.low_precision());
        });
    }
}

/// The defaults of `apex.amp.frontend`, with ROCm's static scale of 1 for `bf16`.
#[test]
fn the_defaults_are_those_of_apex() {
    let f16 = Some(Kind::Half);
    let bf16 = Some(Kind::BFloat16);
    let f32 = Some(Kind::Float);
    let (dynamic, one) = (LossScale::DYNAMIC, LossScale::ONE);
    let rows = [
        (AnyLevel::O0, f32, false, None, None, one),
        (AnyLevel::O1, None, true, None, None, dynamic),
        (AnyLevel::O1Bf16, None, true, None, None, one),
        (AnyLevel::O2, f16, false, Some(true), Some(true), dynamic),
        (AnyLevel::O2Bf16, bf16, false, Some(true), Some(true), one),
        (AnyLevel::O3, f16, false, Some(false), Some(false), one),
        (AnyLevel::O3Bf16, bf16, false, Some(false), Some(false), one),
    ];
    assert_eq!(rows.map(|row| row.0), AnyLevel::ALL);
    for (level, weights, patch, keep, masters, scale) in rows {
        let defaults = with_level!(level, L => L::DEFAULTS);
        assert!(defaults.enabled && defaults.cast_model_outputs.is_none());
        assert_eq!(defaults.rounding, Rounding::Nearest, "{level}");
        assert_eq!(defaults.cast_model_type, weights, "{level}");
        assert_eq!(defaults.patch_torch_functions, patch, "{level}");
        assert_eq!(defaults.keep_batchnorm_fp32, keep, "{level}");
        assert_eq!(defaults.master_weights, masters, "{level}");
        assert_eq!(defaults.loss_scale, scale, "{level}");
    }
}
