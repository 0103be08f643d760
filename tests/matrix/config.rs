//! Configs as files and as values: what is read, and what is refused in which words.

use tch_amp::{
    Amp, AmpConfig, AnyLevel, Dynamic, LossScale, OptionError, Rounding,
    config::{DType, LossScaleConfig},
    scaler::ScaleError,
    with_level,
};

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
        rounding: Some(Rounding::Stochastic { seed: 1 }),
        loss_scale: Some(LossScaleConfig::Dynamic),
        init_scale: Some(1024.0),
        growth_factor: Some(4.0),
        backoff_factor: Some(0.25),
        growth_interval: Some(100),
        hysteresis: Some(2),
        consecutive_hysteresis: Some(3),
        skip_limit: Some(10),
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
fn a_rounding_is_nearest_or_stochastic_with_a_seed() {
    let read = |value: &str| toml::from_str::<AmpConfig>(&format!("rounding = {value}"));
    let rounding = |value: &str| read(value).unwrap().rounding.unwrap();
    assert_eq!(rounding("\"nearest\""), Rounding::Nearest);
    assert_eq!(rounding("{ stochastic = { seed = 5 } }"), Rounding::Stochastic { seed: 5 });
    for refused in ["\"stochastic\"", "{ stochastic = { sed = 5 } }", "{ stochastic = {} }", "1"] {
        assert!(read(refused).is_err(), "{refused}");
    }
}

#[test]
fn rounding_and_master_weights_exclude_each_other() {
    for master_weights in [true, false] {
        let config = AmpConfig {
            opt_level: AnyLevel::O3Bf16,
            master_weights: Some(master_weights),
            rounding: Some(Rounding::Stochastic { seed: 1 }),
            ..Default::default()
        };
        assert_eq!(config.properties(), Err(OptionError::RoundingAndMasters));
    }
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
