//! Every level with every option: the types, `OptLevel::REFUSES` and `AmpConfig` allow the same.
//!
//! No tensor is touched, so that these tests run without libtorch too (feature `doc-only`).

use std::marker::PhantomData;

use half::{bf16, f16};
use tch::Kind;
use tch_amp::{
    Amp, AmpConfig, AnyLevel, Dynamic, LossScale, O0, O1, O2, O3, OptLevel, OptionError,
    Properties, Static,
    config::{DType, LossScaleConfig},
    option::{
        AllowsCastModelType, AllowsKeepBatchnormFp32, AllowsKeepFp32, AllowsMasterWeights,
        AllowsPatchTorchFunctions, OutputType,
    },
    scaler::ScaleError,
    with_level,
};

/// Whether a type has a trait: where it has, the inherent constant hides the trait's.
macro_rules! implements {
    ($type:ty: $($bound:tt)+) => {{
        #[allow(dead_code)]
        struct Probe<T>(PhantomData<T>);
        trait Otherwise {
            const HOLDS: bool = false;
        }
        impl<T> Otherwise for Probe<T> {}
        #[allow(dead_code)]
        impl<T: $($bound)+> Probe<T> {
            const HOLDS: bool = true;
        }
        <Probe<$type>>::HOLDS
    }};
}

/// An option that some level refuses.
struct OptionRow {
    name: &'static str,
    /// The levels that take it, by the option table of the docs.
    taken_by: &'static [&'static str],
    /// Whether the type of a level takes it.
    typed: fn(AnyLevel) -> bool,
    /// Configs that set nothing else.
    configs: fn() -> Vec<AmpConfig>,
}

const OPTIONS: [OptionRow; 4] = [
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
            let taken = taken_by.contains(&name(level));
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

#[test]
fn a_builder_and_a_config_with_the_same_options_are_the_same() {
    builder_of_o0();
    builders_of_o1::<O1<f16>>();
    builders_of_o1::<O1<bf16>>();
    builders_of_o2_and_o3::<O2<f16>, f16>(DType::F16);
    builders_of_o2_and_o3::<O2<bf16>, bf16>(DType::Bf16);
    builders_of_o2_and_o3::<O3<f16>, f16>(DType::F16);
    builders_of_o2_and_o3::<O3<bf16>, bf16>(DType::Bf16);
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
        assert_eq!(defaults.cast_model_type, weights, "{level}");
        assert_eq!(defaults.patch_torch_functions, patch, "{level}");
        assert_eq!(defaults.keep_batchnorm_fp32, keep, "{level}");
        assert_eq!(defaults.master_weights, masters, "{level}");
        assert_eq!(defaults.loss_scale, scale, "{level}");
    }
}

#[test]
fn a_config_is_not_for_another_level() {
    for config in AnyLevel::ALL {
        for builder in AnyLevel::ALL {
            let options = AmpConfig { opt_level: config, ..Default::default() };
            let error = with_level!(builder, L => Amp::<L>::from_config(&options).err());
            let expected = OptionError::OtherLevel { config, builder };
            assert_eq!(error, (config != builder).then_some(expected));
        }
    }
}

#[test]
fn an_unknown_level_gets_the_hint_of_apex() {
    for name in ["02", "o2", "O6", "2", "", " O2", "O0<bf16>", "O2<f64>", "O2<bfloat16>"] {
        let error = name.parse::<AnyLevel>().unwrap_err();
        assert_eq!(error, OptionError::UnknownLevel { name: name.to_owned() });
        let file = format!("opt_level = {name:?}");
        let in_file = toml::from_str::<AmpConfig>(&file).unwrap_err().to_string();
        for message in [error.to_string(), in_file] {
            assert!(message.contains("the letter O, not the number zero"), "{message}");
            assert!(message.contains(&format!("{name:?}")), "{message}");
        }
    }
}

#[test]
fn levels_read_as_they_print() {
    for level in AnyLevel::ALL {
        assert_eq!(level.to_string().parse(), Ok(level));
        let json = serde_json::to_string(&level).unwrap();
        assert_eq!(serde_json::from_str::<AnyLevel>(&json).unwrap(), level);
    }
}

/// Configs with all keys and with few, legal or not.
fn configs() -> Vec<AmpConfig> {
    let full = AmpConfig {
        opt_level: AnyLevel::O2,
        dtype: Some(DType::Bf16),
        enabled: Some(true),
        cast_model_type: Some(DType::Bf16),
        patch_torch_functions: Some(false),
        keep_batchnorm_fp32: Some(true),
        keep_fp32: vec!["norm".to_owned(), "head".to_owned()],
        master_weights: Some(false),
        loss_scale: Some(LossScaleConfig::Dynamic),
        min_loss_scale: Some(0.25),
        max_loss_scale: Some(65536.0),
        cast_model_outputs: Some(DType::F32),
    };
    let scaled = |scale| AmpConfig { loss_scale: Some(scale), ..Default::default() };
    let mut configs = vec![full, AmpConfig::default(), scaled(LossScaleConfig::Static(128.0))];
    configs.extend(AnyLevel::ALL.map(|level| AmpConfig { opt_level: level, ..Default::default() }));
    configs
}

#[test]
fn configs_survive_toml_and_json() {
    for config in configs() {
        let file = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<AmpConfig>(&file).unwrap(), config, "{file}");
        let file = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<AmpConfig>(&file).unwrap(), config, "{file}");
    }
}

#[test]
fn absent_keys_keep_the_defaults() {
    assert_eq!(toml::from_str::<AmpConfig>("").unwrap(), AmpConfig::default());
    assert_eq!(toml::to_string(&AmpConfig::default()).unwrap(), "opt_level = \"O1\"\n");
    assert_eq!(serde_json::to_string(&AmpConfig::default()).unwrap(), r#"{"opt_level":"O1"}"#);
}

#[test]
fn a_loss_scale_is_a_number_or_dynamic() {
    let read = |value: &str| toml::from_str::<AmpConfig>(&format!("loss_scale = {value}"));
    let scale = |value: &str| read(value).unwrap().loss_scale.unwrap();
    for number in ["128", "128.0", "\"128\"", "\"128.0\""] {
        assert_eq!(scale(number), LossScaleConfig::Static(128.0), "{number}");
    }
    assert_eq!(scale("\"dynamic\""), LossScaleConfig::Dynamic);
    let error = "dynamc".parse::<LossScaleConfig>().unwrap_err();
    assert_eq!(error, OptionError::UnknownLossScale { text: "dynamc".to_owned() });
}

#[test]
fn unknown_keys_are_refused_by_name() {
    for key in ["opt_levl", "num_losses", "verbosity", "loss_scaling"] {
        let toml = toml::from_str::<AmpConfig>(&format!("{key} = 1")).unwrap_err().to_string();
        let json = serde_json::from_str::<AmpConfig>(&format!(r#"{{"{key}": 1}}"#));
        for message in [toml, json.unwrap_err().to_string()] {
            assert!(message.contains(&format!("unknown field `{key}`")), "{message}");
        }
    }
}

#[test]
fn a_dtype_completes_a_level_and_never_contradicts_it() {
    use AnyLevel::{O0, O1, O1Bf16, O2, O2Bf16, O3, O3Bf16};
    let legal = [
        (O1, DType::F16, O1),
        (O2, DType::F16, O2),
        (O3, DType::F16, O3),
        (O1, DType::Bf16, O1Bf16),
        (O2, DType::Bf16, O2Bf16),
        (O3, DType::Bf16, O3Bf16),
        (O1Bf16, DType::Bf16, O1Bf16),
        (O2Bf16, DType::Bf16, O2Bf16),
        (O3Bf16, DType::Bf16, O3Bf16),
    ];
    for level in [O0, O1, O1Bf16, O2, O2Bf16, O3, O3Bf16] {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let config = AmpConfig { opt_level: level, dtype: Some(dtype), ..Default::default() };
            let found = legal.iter().find(|row| (row.0, row.1) == (level, dtype));
            let expected = found.map(|row| row.2).ok_or(OptionError::DType { dtype, level });
            assert_eq!(config.level(), expected);
            assert_eq!(config.properties().map(|options| options.opt_level), expected);
        }
    }
}

#[test]
fn limits_belong_to_a_dynamic_scale() {
    for level in AnyLevel::ALL {
        let limited = |loss_scale, min_loss_scale, max_loss_scale| {
            let opt_level = level;
            let config = AmpConfig {
                opt_level,
                loss_scale,
                min_loss_scale,
                max_loss_scale,
                ..Default::default()
            };
            config.properties().map(|options| options.loss_scale)
        };
        let refused = Err(OptionError::LimitsOfDynamic);
        let dynamic = Some(LossScaleConfig::Dynamic);
        let fixed = Some(LossScaleConfig::Static(8.0));
        let floor: LossScale = Dynamic::new().min_loss_scale(2.0).into();
        let ceiling: LossScale = Dynamic::new().max_loss_scale(256.0).into();

        let default_is_dynamic = matches!(level, AnyLevel::O1 | AnyLevel::O2);
        let by_default = if default_is_dynamic { Ok(floor) } else { refused.clone() };
        assert_eq!(limited(None, Some(2.0), None), by_default);
        assert_eq!(limited(dynamic, Some(2.0), None), Ok(floor));
        assert_eq!(limited(dynamic, None, Some(256.0)), Ok(ceiling));
        assert_eq!(limited(fixed, Some(2.0), None), refused);
        assert_eq!(limited(fixed, None, Some(256.0)), refused);
        let crossed = ScaleError::MinAboveMax { min: 256.0, max: 2.0 };
        assert_eq!(limited(dynamic, Some(256.0), Some(2.0)), Err(crossed.into()));
    }
}

#[test]
fn numbers_that_are_no_scale_are_refused_by_the_name_of_their_key() {
    for value in [0.0, -1.0, f64::INFINITY, 1e39, 1e-39] {
        let fixed =
            AmpConfig { loss_scale: Some(LossScaleConfig::Static(value)), ..Default::default() };
        let floor = AmpConfig { min_loss_scale: Some(value), ..Default::default() };
        let ceiling = AmpConfig { max_loss_scale: Some(value), ..Default::default() };
        for (setting, config) in
            [("loss_scale", fixed), ("min_loss_scale", floor), ("max_loss_scale", ceiling)]
        {
            let expected = OptionError::LossScale(ScaleError::NotAScale { setting, value });
            assert_eq!(config.properties(), Err(expected));
        }
    }
    let nan = LossScaleConfig::Static(f64::NAN);
    let config = AmpConfig { loss_scale: Some(nan), ..Default::default() };
    assert!(config.properties().is_err());
}
